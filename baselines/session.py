"""What every contender offers to the driver: a session that synchronises tensors, one after the other or many at once.

The same few calls fit them all: a ring that takes one tensor at a time, a parameter server with keys, a scheduler that
reorders.  Standard library and numpy only (>= 1.22), since adapters run in their peer's own environment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One gradient of a workload; the tensors of a workload stand in gradient-ready order."""

    name: str  # unique within a launch, e.g. "vgg16/features.0.weight"
    numel: int
    dtype: str  # "float32" | "float16"
    ready_seconds: float = 0.0  # after the start of the backward pass
    priority: int = 0  # larger: needed earlier by the next forward pass
    forward_seconds: float = 0.0  # computation of the forward pass that waits for this tensor


class Session(Protocol):
    """A contender that is up.

    One whose sums are complete only when all ranks are done has a further call, `settle(index)`, which returns what
    is checked, outside of the measured time.

    `submit` and `wait` may be called by two threads at once (a strategy's and the driver's), but never one of them
    by two.
    """

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        """A workload begins, and the one before it is over: its tensors and their flat arrays, one each.

        The arrays stay the same for all iterations; the driver refills them before each.
        """

    def submit(self, index: int) -> None:
        """The gradient of that number is complete: start its synchronisation, without waiting for the network."""

    def wait(self, index: int) -> Array:
        """Block until the sum over ranks is there; flat, may be the gradient itself, valid until the next iteration."""
        ...

    def facts(self) -> dict[str, str]:
        """Versions and the knobs in force."""
        ...

    def close(self) -> None:
        """Leave the job; nothing is outstanding."""
