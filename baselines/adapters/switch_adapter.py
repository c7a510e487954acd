"""A switch that sums: one transfer per tensor, in the order of their submission."""

import zlib
from collections.abc import Sequence

import numpy as np

from baselines.session import Array, Tensor
from baselines.switch import Shape
from baselines.switch_worker import Endpoint

WAIT_SECONDS = 300.0
DTYPES = ("float32", "float16")


class Session:
    """A worker; alone, its gradients are the sums."""

    def __init__(self, endpoint: Endpoint | None, facts: dict[str, str]) -> None:
        self._endpoint = endpoint
        self._facts = facts

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        for tensor in tensors:
            if tensor.dtype not in DTYPES:
                raise ValueError(f"tensor {tensor.name} is {tensor.dtype}; a switch sums {' and '.join(DTYPES)}")
        self._what = [zlib.crc32(f"{one.name} {one.numel} {one.dtype}".encode()) for one in tensors]
        self._gradients = gradients
        self._transfers: dict[int, int] = {}

    def submit(self, index: int) -> None:
        if self._endpoint:
            self._transfers[index] = self._endpoint.submit(self._what[index], self._gradients[index])

    def wait(self, index: int) -> Array:
        """In place."""
        if self._endpoint:
            self._endpoint.wait(self._transfers[index], seconds=WAIT_SECONDS)
        return self._gradients[index]

    def facts(self) -> dict[str, str]:
        return self._facts

    def close(self) -> None:
        if self._endpoint:
            self._endpoint.log()
            self._endpoint.close()


def start(*, rank: int, size: int, settings: dict[str, str]) -> Session:
    facts = {name: settings[name] for name in ("pool", "block", "timeout", "loss")} | {"numpy": np.__version__}
    if size == 1:
        return Session(None, facts)
    endpoint = Endpoint(
        Shape.of({**settings, "n": size}),
        rank,
        (settings["switch"], int(settings["port"])),
        bytes.fromhex(settings["secret"]),
        timeout_seconds=float(settings["timeout"]),
        loss=float(settings["loss"]),
        seed=int(settings["seed"]),
    )
    return Session(endpoint, facts)
