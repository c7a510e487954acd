"""A schedule run by our executor: one synchronisation per tensor, in the order of their submission."""

from collections.abc import Sequence

import numpy as np

from baselines import executor
from baselines.session import Array, Tensor

WAIT_SECONDS = 300.0


class Session:
    """A worker's node."""

    def __init__(self, endpoint: executor.Endpoint, scheme: str) -> None:
        self._endpoint = endpoint
        self._scheme = scheme
        self._rounds: list[int] = []  # by tensor: how often it was submitted
        self._first = 0  # number of the workload's first synchronisation

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        self._first += len(self._rounds) * max(self._rounds, default=0)
        self._gradients = gradients
        self._rounds = [0] * len(tensors)

    def submit(self, index: int) -> None:
        self._endpoint.submit(self._number(index), self._gradients[index])
        self._rounds[index] += 1

    def wait(self, index: int) -> Array:
        """In place."""
        self._endpoint.wait(self._number(index) - len(self._rounds), seconds=WAIT_SECONDS)
        return self._gradients[index]

    def facts(self) -> dict[str, str]:
        return {"scheme": self._scheme, "numpy": np.__version__}

    def close(self) -> None:
        self._endpoint.close()

    def _number(self, index: int) -> int:
        """The same on every rank, whatever the order in which tensors are submitted."""
        return self._first + self._rounds[index] * len(self._rounds) + index


def start(*, rank: int, size: int, settings: dict[str, str]) -> Session:
    return Session(executor.start(settings, rank), settings["scheme"])
