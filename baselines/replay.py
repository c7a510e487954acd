"""One iteration of a workload: the computation is waited for, the synchronisation is real.

Backward: each gradient is handed to the contender when it is ready.  Forward: layer after layer, in the order of
priorities; a layer starts when its parameters' sums are there and the layer before it is done, so a contender that
finishes urgent tensors first lets the forward pass begin while others are still on their way.  The iteration ends with
the forward pass.  Computation is sleep: the processor is free for the contenders, as a GPU's host is.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from baselines.session import Array, Session, Tensor

Result = TypeVar("Result")
_BLOCKED_SECONDS = 2e-4  # a call for a sum that is there takes less
_GRAIN_SECONDS = 1e-3  # shorter sleeps cost more than they are; what is not slept is made up by the next


def _sleep_until(moment: float) -> None:
    if (left := moment - time.monotonic()) > _GRAIN_SECONDS:
        time.sleep(left)


class _Computation:
    """Up to which moment the device has computed.

    It is late only by calls that blocked: its own clock does not wait for a host that slept a little too long, as a
    GPU with work queued does not, and such delays would add up over hundreds of layers.
    """

    def __init__(self) -> None:
        self.until = time.monotonic()

    def compute(self, seconds: float) -> None:
        self.until += seconds
        _sleep_until(self.until)

    def call(self, function: Callable[[int], Result], index: int) -> Result:
        began = time.monotonic()
        result = function(index)
        ended = time.monotonic()
        if ended - began > _BLOCKED_SECONDS:
            self.until = max(self.until, ended)
        return result


def iterate(session: Session, tensors: Sequence[Tensor], *, compute: bool) -> tuple[float, list[Array]]:
    """Seconds of the iteration and the sums; `compute` False leaves the computation out, as in a warm-up."""
    results: dict[int, Array] = {}
    started = time.monotonic()
    device = _Computation()
    ready_seconds = 0.0
    for index, tensor in enumerate(tensors):
        if compute:
            device.compute(tensor.ready_seconds - ready_seconds)
            ready_seconds = tensor.ready_seconds
        device.call(session.submit, index)
    for index in sorted(range(len(tensors)), key=lambda index: -tensors[index].priority):
        results[index] = device.call(session.wait, index)
        if compute:
            device.compute(tensors[index].forward_seconds)
    if (left := device.until - time.monotonic()) > 0:
        time.sleep(left)
    return time.monotonic() - started, [results[index] for index in range(len(tensors))]


def iterate_one_by_one(session: Session, tensors: Sequence[Tensor]) -> tuple[float, list[Array]]:
    """As a user's loop over blocking calls does it; without computation."""
    results = []
    started = time.monotonic()
    for index in range(len(tensors)):
        session.submit(index)
        results.append(session.wait(index))
    return time.monotonic() - started, results
