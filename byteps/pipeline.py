"""In which order partitions leave a worker, and how many are under way: the algorithm's other half besides placement.

One global order: higher priority first, then the number of the tensor, then the offset within it.  Placement interleaves
owners by share along that order, so any window of it loads every summation service in proportion, and all workers fill the
same slots at the same time.  One small total is in flight per worker: pushes and pulls then overlap after the first few
partitions, which is what t_opt assumes.  Windows per service are not used (right only in the fluid limit).
Partitions of at most SMALL_NBYTES travel together, one frame per service, while earlier frames are under way.
Pure: tasks in, frames out; the caller does the I/O and the locking.  The simulator replays the same class.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from byteps.wire import BATCH_NBYTES, MAX_BATCH_COUNT, SMALL_NBYTES, TensorEntry, make_key


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
    """What goes to one service in one message, and what it costs of the credit until all of it is answered."""

    service: int
    parts: list[tuple[Task, int]]
    cost: int
    open: int = field(init=False)

    def __post_init__(self) -> None:
        self.open = len(self.parts)


class Pipeline:
    """The ordered queue of a worker's communication service."""

    def __init__(self, credit_bytes: int) -> None:
        self.credit_bytes = credit_bytes
        self.in_flight_bytes = 0
        self._queue: list[tuple[int, int, int, Task]] = []
        self._under_way: dict[int, Frame] = {}

    def submit(self, tasks: Iterable[Task]) -> None:
        """Queue tasks of at least one byte; a tensor must not be queued again before it is finished."""
        for task in tasks:
            heapq.heappush(self._queue, (-task.priority, task.entry.number, task.round, task))

    @property
    def ready(self) -> bool:
        """Whether `take` would return something."""
        return bool(self._queue) and (self.in_flight_bytes < self.credit_bytes)

    def take(self) -> list[Frame]:
        """The next frames in order that the credit allows now; possibly none."""
        if not self.ready:
            return []
        gathered: dict[int, list[tuple[Task, int]]] = {}
        gathered_bytes = count = 0
        while self._queue and gathered_bytes < BATCH_NBYTES and count < MAX_BATCH_COUNT:
            task = self._queue[0][3]
            part = task.sent
            start, end = task.span(part)
            if end - start > SMALL_NBYTES:
                if gathered:
                    break
                self._advance(task)
                return [self._launch(Frame(task.entry.owners[part], [(task, part)], end - start))]
            self._advance(task)
            gathered.setdefault(task.entry.owners[part], []).append((task, part))
            gathered_bytes += end - start
            count += 1
        # A frame of small partitions costs as much as a full batch: it is messages that are scarce then, not bytes.
        return [self._launch(Frame(service, parts, BATCH_NBYTES)) for service, parts in gathered.items()]

    def answer(self, key: int) -> None:
        """The answer for a partition is in; KeyError if it was not under way."""
        frame = self._under_way.pop(key)
        frame.open -= 1
        if frame.open == 0:
            self.in_flight_bytes -= frame.cost

    def _advance(self, task: Task) -> None:
        task.sent += 1
        if task.sent == len(task.entry.owners):
            heapq.heappop(self._queue)

    def _launch(self, frame: Frame) -> Frame:
        self.in_flight_bytes += frame.cost
        for task, part in frame.parts:
            self._under_way[make_key(task.entry.number, part)] = frame
        return frame
