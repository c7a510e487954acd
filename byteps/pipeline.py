"""In which order partitions leave a worker, and how many are under way: the algorithm's other half besides placement.

One global order: higher priority first, then the number of the tensor, then the offset within it.  Placement
interleaves owners by share along that order, so any window of it loads every summation service in proportion, and all
workers fill the same slots at the same time.  One small total is in flight per worker: pushes and pulls then overlap
after the first few partitions, which is what t_opt assumes.  Windows per service are not used (right only in the fluid
limit). Partitions of at most SMALL_NBYTES travel together: while a batch of them is under way to a service, the next
ones gather, until its answer is in, a batch is full, or somebody waits for a result. Pure: tasks in, frames out; the
caller does the I/O and the locking.  `lowering` gives the simulator the same order and credit.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from byteps.wire import BATCH_NBYTES, MAX_BATCH_COUNT, SMALL_NBYTES, TensorEntry, make_key

# Calls of `relax` without an answer that are worth one more credit.
RELAX_OVERDRAFT_EVERY = 5
# In flight per worker: enough partitions for pushes and pulls to overlap, few enough that nothing queues up.
_CREDIT_PARTITIONS: Final = 28
_MIN_CREDIT_NBYTES: Final = 28 << 16
MAX_CREDIT_NBYTES: Final = 32 << 20
# The same where priorities differ.  A worker that is ahead then has gradients of front layers in flight while one
# behind still sends those of back layers, and either waits for what the other holds back: with 32 MiB, 4 workers that
# trained 200 tensors on 2 cores left 33 to 69 of 670 core-ms per step idle, with 64 MiB 2.
MAX_CREDIT_OF_ORDERS_NBYTES: Final = 64 << 20


def default_credit_bytes(cut_nbytes: int, services: int, limit_nbytes: int = MAX_CREDIT_NBYTES) -> int:
    """What may be in flight of partitions of this size to so many services, unless the user says otherwise.

    All workers send one order, so only as many services work as there are partitions in flight: with 8 for 128
    services the simulation takes 16 t_opt, with 2 for each 1.25.
    """
    credit = min(max(_CREDIT_PARTITIONS * cut_nbytes, _MIN_CREDIT_NBYTES), limit_nbytes)
    return max(credit, 2 * services * cut_nbytes)


@dataclass(eq=False, slots=True)
class Task:
    """One push_pull of one tensor, from submission to the last answer."""

    entry: TensorEntry
    nbytes: int
    priority: int
    round: int
    sent: int = 0  # partitions handed out
    answered: int = 0

    @property
    def finished(self) -> bool:
        return self.answered == len(self.entry.owners)

    def span(self, part: int) -> tuple[int, int]:
        """Offset and end of a partition, in bytes."""
        start = part * self.entry.cut_nbytes
        return start, min(start + self.entry.cut_nbytes, self.nbytes)


@dataclass(eq=False, slots=True)
class Frame:
    """What goes to one service in one message; its bytes count against the credit until all of it is answered."""

    service: int
    parts: list[tuple[Task, int]] = field(default_factory=list)
    nbytes: int = 0
    answered: int = 0


class Pipeline:
    """The ordered queue of a worker's communication service."""

    def __init__(self, credit_bytes: int) -> None:
        self.credit_bytes = credit_bytes
        self.in_flight_bytes = 0
        self._overdraft_bytes = 0  # beyond the credit, while nothing comes back
        self._silent = 0  # calls of `relax` since the last answer
        self._queue: list[tuple[int, int, int, Task]] = []
        self._under_way: dict[int, Frame] = {}
        self._batches: dict[int, Frame] = {}  # small partitions gathered and not yet sent, by service
        self._busy: set[int] = set()  # services with a batch under way
        self._due = False  # whether a batch may be sent now

    def submit(self, tasks: Iterable[Task]) -> None:
        """Queue tasks of at least one byte; a tensor must not be queued again before it is finished."""
        for task in tasks:
            heapq.heappush(self._queue, (-task.priority, task.entry.number, task.round, task))

    def flush(self) -> None:
        """Somebody waits: send gathered batches even to services that are busy with one."""
        self._busy.clear()
        self._due = bool(self._batches)

    def relax(self) -> None:
        """Somebody still waits, a moment later: if nothing came back in it, hold back less.

        Workers whose orders differ (other priorities, other order of use) could each have filled their credit with what
        only another worker's held-back partitions can complete: without this they would wait for each other for ever.
        """
        self._silent += 1
        if self._silent > 1:
            self.flush()
        if self._silent % RELAX_OVERDRAFT_EVERY == 0 and self._queue:
            self._overdraft_bytes = self.in_flight_bytes  # so one more credit

    @property
    def ready(self) -> bool:
        """Whether `take` might return something."""
        return self._due or (bool(self._queue) and self._affordable)

    @property
    def _affordable(self) -> bool:
        return self.in_flight_bytes < self.credit_bytes + self._overdraft_bytes

    def take(self) -> list[Frame]:
        """The next frames in order that the credit allows now; possibly none."""
        while self._queue and self._affordable:
            task = self._queue[0][3]
            part = task.sent
            start, end = task.span(part)
            task.sent += 1
            if task.sent == len(task.entry.owners):
                heapq.heappop(self._queue)
            service = task.entry.owners[part]
            self.in_flight_bytes += end - start
            if end - start > SMALL_NBYTES:
                frame = Frame(service, [(task, part)], end - start)
                self._under_way[make_key(task.entry.number, part)] = frame
                return [frame]
            batch = self._batches.get(service)
            if batch is None:
                batch = self._batches[service] = Frame(service)
                self._due = self._due or service not in self._busy
            batch.parts.append((task, part))
            batch.nbytes += end - start
            self._under_way[make_key(task.entry.number, part)] = batch
            if batch.nbytes >= BATCH_NBYTES or len(batch.parts) == MAX_BATCH_COUNT:
                return [self._launch(service)]
        if not self._due:
            return []
        self._due = False
        return [self._launch(service) for service in list(self._batches) if service not in self._busy]

    def answer(self, key: int) -> None:
        """The answer for a partition is in; KeyError if it was not under way."""
        frame = self._under_way.pop(key)
        self._silent = 0
        frame.answered += 1
        if frame.answered == len(frame.parts):
            self.in_flight_bytes -= frame.nbytes
            if self.in_flight_bytes <= self.credit_bytes:
                self._overdraft_bytes = 0
            self._busy.discard(frame.service)
            self._due = self._due or frame.service in self._batches

    def _launch(self, service: int) -> Frame:
        self._busy.add(service)
        return self._batches.pop(service)
