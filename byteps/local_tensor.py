"""A tensor that the workers of a machine sum, as one of them has it: its memory, its rounds, and the work on them.

`LocalGroup` says when; nothing here waits, nor knows of other workers.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from byteps import local_sums
from byteps.communication import Pending, make_pending
from byteps.local_layout import Layout, divides_at_the_end, itemsize, part, travelling
from byteps.trace import Span
from byteps.wire import Op, TensorSpec

Done = Callable[[BaseException | None], None]


@dataclass(eq=False, slots=True, kw_only=True)
class LocalRound:
    """A contribution of this worker, from its submission to its result."""

    gives: bool = True
    wants: bool = True
    priority: int = 0
    pending: Pending = field(default_factory=make_pending)
    source: memoryview | None = None  # what is copied into the slot; None: it is there
    target: memoryview | None = None  # where the result is copied; None: it is read where it is
    done: Done | None = None
    timing: Span | None = None

    def end(self, error: BaseException | None) -> None:
        if self.timing is not None and error is None:
            self.timing.answered()
        self.pending.release()
        if self.done is not None:
            self.done(error)


@dataclass(eq=False, slots=True)
class LocalTensor:
    """A tensor's memory on this machine, and this worker's rounds of it."""

    spec: TensorSpec
    slots: int
    place: Layout
    number: int = -1  # the root's
    memory: memoryview | None = None
    mapped: threading.Event = field(default_factory=threading.Event)
    waiting: deque[LocalRound] = field(default_factory=deque)
    active: LocalRound | None = None

    def bytes(self, where: slice) -> memoryview:
        assert self.memory is not None
        return self.memory[where]

    def fill(self, source: memoryview, worker: int) -> None:
        """A worker's contribution into its slot."""
        _copy(source, self.bytes(self.place.slot(worker)))

    def fetch(self, target: memoryview) -> None:
        """The result, to where the user wants it."""
        _copy(self.bytes(self.place.result), target)

    def add_up(self, sources: Iterable[int], index: int, count: int, workers: int) -> None:
        """Add up one of `count` parts of these slots, to which so many `workers` of this machine contribute."""
        start, end = part(self.spec.numel, itemsize(self.spec), index, count)
        if start < end:
            slots = [local_sums.view(self.bytes(self.place.slot(one)), self.spec.dtype)[start:end] for one in sources]
            total = local_sums.view(self.bytes(self.place.wide), travelling(self.spec).dtype)[start:end]
            average = self.spec.op is Op.AVERAGE and not divides_at_the_end(self.spec)
            local_sums.add_up(slots, total, workers if average else 1)


def members(bits: int) -> list[int]:
    """Whose bits are set."""
    return [index for index in range(bits.bit_length()) if bits >> index & 1]


def _copy(source: memoryview, target: memoryview) -> None:
    """Without the interpreter lock."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
