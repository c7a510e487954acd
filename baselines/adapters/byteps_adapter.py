"""BytePS itself, through the API that its users call."""

from collections.abc import Sequence
from typing import Any

import byteps
from baselines.session import Array, Tensor
from baselines.session import Session as SessionLike


class Session:
    """An initialised job."""

    def __init__(self) -> None:
        byteps.init()
        self._handles: dict[int, Any] = {}

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        """All of a workload in one batch."""
        self._tensors, self._gradients = tensors, gradients
        pairs = zip(tensors, gradients, strict=True)
        byteps.declare({tensor.name: gradient for tensor, gradient in pairs}, op="sum")

    def submit(self, index: int) -> None:
        tensor = self._tensors[index]
        self._handles[index] = byteps.push_pull_async_inplace(
            self._gradients[index], tensor.name, op="sum", priority=tensor.priority
        )

    def wait(self, index: int) -> Array:
        """In place."""
        byteps.synchronize(self._handles.pop(index))
        return self._gradients[index]

    def facts(self) -> dict[str, str]:
        return {"byteps": byteps.__version__, "rank": str(byteps.rank()), "size": str(byteps.size())}

    def close(self) -> None:
        byteps.shutdown()


def start(*, rank: int, size: int, settings: dict[str, str]) -> SessionLike:
    """Setting `device`: "cpu" (default), or "cuda" for gradients on a GPU."""
    session: SessionLike
    if settings.get("device", "cpu") == "cpu":
        session = Session()
    else:
        from baselines.adapters import byteps_device  # torch, which nobody else here needs

        device = byteps_device.device_of(rank)
        byteps.init()
        session = byteps_device.Session(device)
    if (byteps.rank(), byteps.size()) != (rank, size):
        raise RuntimeError(f"byteps says rank {byteps.rank()} of {byteps.size()}, the orchestrator {rank} of {size}")
    return session
