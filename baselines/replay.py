"""One iteration of a workload: the computation is waited for, the synchronisation is real.

Backward: each gradient is handed to the contender when it is ready.  Forward: layer after layer, in the order of
priorities; a layer starts when its parameters' sums are there and the layer before it is done, so a contender that
finishes urgent tensors first lets the forward pass begin while others are still on their way.  The iteration ends with
the forward pass.  Computation is sleep: the processor is free for the contenders, as a GPU's host is.
"""

import time
from collections.abc import Sequence

from baselines.session import Array, Session, Tensor

_GRAIN_SECONDS = 1e-3  # shorter sleeps cost more than they are; what is not slept is made up by the next


def _sleep_until(moment: float) -> None:
    if (left := moment - time.monotonic()) > _GRAIN_SECONDS:
        time.sleep(left)


def iterate(session: Session, tensors: Sequence[Tensor], *, compute: bool) -> tuple[float, list[Array]]:
    """Seconds of the iteration and the sums; `compute` False leaves the computation out, as in a warm-up."""
    results: list[Array | None] = [None] * len(tensors)
    forward = sorted(range(len(tensors)), key=lambda index: -tensors[index].priority)
    started = time.monotonic()
    for index, tensor in enumerate(tensors):
        if compute:
            _sleep_until(started + tensor.ready_seconds)
        session.submit(index)
    computed = started
    for index in forward:
        results[index] = session.wait(index)
        if compute and tensors[index].forward_seconds:
            computed = max(computed, time.monotonic()) + tensors[index].forward_seconds
            _sleep_until(computed)
    ended = max(computed, time.monotonic())
    if (left := ended - time.monotonic()) > 0:
        time.sleep(left)
    return ended - started, [result for result in results if result is not None]


def iterate_one_by_one(session: Session, tensors: Sequence[Tensor]) -> tuple[float, list[Array]]:
    """As a user's loop over blocking calls does it; without computation."""
    results = []
    started = time.monotonic()
    for index in range(len(tensors)):
        session.submit(index)
        results.append(session.wait(index))
    return time.monotonic() - started, results
