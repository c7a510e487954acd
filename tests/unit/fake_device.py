"""GPUs in plain memory: everything queued runs later, in any order that streams, events and collectives allow.

One seeded loop makes all choices: which stream goes on, which notice is delivered, which copy is half done meanwhile.
Queued work knows addresses, not owners, as on a GPU: memory nobody refers to is written over by the next user of the
caller's stream.  Memory that was never written, or whose contents are undefined, is NaN, and NaN ends in the sums.
"""

import random
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from byteps.device_plan import Collective, DevicePlan

SPEEDS = (1.0, 1.0, 0.05)  # some streams are slow, so that the others get far ahead
CHUNKS = 2  # a copy is made in so many parts, with anything in between
Run = Callable[[], None]


class Memory:
    """Elements; a part keeps the whole alive."""

    def __init__(self, data: np.ndarray, whole: "Memory | None" = None) -> None:
        self.data, self.whole = data, whole

    def __getitem__(self, place: slice) -> "Memory":
        return Memory(self.data[place], self.whole or self)


@dataclass(eq=False)
class Event:
    queue: "Queue"
    reached: bool = False
    watchers: list[Callable[[BaseException | None], None]] = field(default_factory=list)


@dataclass(eq=False)
class Queue:
    """A stream: its work, and notices that are due, each in order."""

    name: str
    speed: float
    work: deque[Any] = field(default_factory=deque)
    notices: deque[Run] = field(default_factory=deque)


@dataclass(eq=False)
class Meeting:
    """A rank's part in a collective."""

    rank: int
    step: Collective
    data: np.ndarray


class Gpus:
    """All devices of a machine, and the loop."""

    def __init__(self, ranks: int, seed: int, device: "type[FakeDevice] | None" = None) -> None:
        self.random = random.Random(seed)
        self.queues: dict[tuple[int, str], Queue] = {}
        self.devices = [(device or FakeDevice)(self, rank) for rank in range(ranks)]
        self.others: list[Callable[[], Run | None]] = []  # what else can happen now: programs, the host

    def queue(self, rank: int, name: str) -> Queue:
        if (rank, name) not in self.queues:
            self.queues[rank, name] = Queue(f"{name} of rank {rank}", self.random.choice(SPEEDS))
        return self.queues[rank, name]

    def choices(self) -> list[tuple[float, Run]]:
        """What can happen next, and how likely it is."""
        found = [(1.0, run) for run in (other() for other in self.others) if run is not None]
        for queue in self.queues.values():
            if queue.notices:
                found.append((queue.speed, lambda queue=queue: queue.notices.popleft()()))  # type: ignore[misc]
            if queue.work and (run := self._head(queue)) is not None:
                found.append((queue.speed, run))
        return found

    def run(self, most: int = 100_000) -> None:
        """Until nothing can happen any more."""
        for _ in range(most):
            choices = self.choices()
            if not choices:
                return
            weights, runs = zip(*choices, strict=True)
            self.random.choices(runs, weights)[0]()
        raise AssertionError("no end")

    def stuck(self) -> list[str]:
        """Streams that have work left, and on what they wait."""
        return [f"{queue.name}: {queue.work[0]}" for queue in self.queues.values() if queue.work]

    def _head(self, queue: Queue) -> Run | None:
        head = queue.work[0]
        if isinstance(head, Event):
            return (queue.work.popleft) if head.reached else None
        if isinstance(head, Meeting):
            return self._meet(head) if head.rank == head.step.ranks[0] else None
        return lambda: queue.work.popleft()()

    def _meet(self, first: Meeting) -> Run | None:
        queues = [self.queue(rank, "collect") for rank in first.step.ranks]
        heads = [queue.work[0] if queue.work else None for queue in queues]
        if not all(isinstance(head, Meeting) and head.step == first.step for head in heads):
            return None

        def run() -> None:
            for queue in queues:
                queue.work.popleft()
            _collective(first.step, [head.data for head in heads])  # type: ignore[union-attr]

        return run


def _collective(step: Collective, data: list[np.ndarray]) -> None:
    root = step.ranks.index(step.root) if step.root >= 0 else -1
    if step.what == "broadcast":
        for one in data:
            one[:] = data[root].copy()
    elif step.what == "reduce":
        total = np.sum(data, axis=0)
        for index, one in enumerate(data):
            one[:] = total if index == root else np.nan
    else:
        parts = [np.split(one, len(data)) for one in data]
        for index in range(len(data)):
            if step.what == "all-gather":
                for row in parts:
                    row[index][:] = parts[index][index].copy()
            else:
                total = np.sum([row[index] for row in parts], axis=0)
                for other, row in enumerate(parts):
                    row[index][:] = total if other == index else np.nan


class FakeDevice:
    """A `byteps.torch.device.Device`."""

    def __init__(self, gpus: Gpus, rank: int) -> None:
        self.gpus, self.rank = gpus, rank
        self.pinned = 0
        self.aborted = False

    def stream(self, name: str) -> Queue:
        return self.gpus.queue(self.rank, name)

    def current(self) -> Queue:
        return self.stream("compute")

    def attend(self) -> None: ...

    def record(self, stream: Queue) -> Event:
        event = Event(stream)
        stream.work.append(partial(self._reach, event))
        return event

    def _reach(self, event: Event) -> None:
        event.reached = True
        event.queue.notices.extend(partial(done, None) for done in event.watchers)

    def wait(self, stream: Queue, event: Event) -> None:
        stream.work.append(event)

    def reached(self, event: Event) -> bool:
        return event.reached

    def watch(self, event: Event, done: Callable[[BaseException | None], None]) -> None:
        event.watchers.append(done)
        if event.reached:
            event.queue.notices.append(partial(done, None))

    def copy(self, stream: Queue, source: Memory, target: Memory) -> None:
        assert source.data.shape == target.data.shape
        for a, b in zip(np.array_split(source.data, CHUNKS), np.array_split(target.data, CHUNKS), strict=True):
            stream.work.append(partial(np.copyto, b, a))

    def collect(self, stream: Queue, step: Collective, memory: Memory) -> None:
        assert memory.data.size == step.span.size
        stream.work.append(Meeting(self.rank, step, memory.data))

    def pin(self, memory: memoryview, like: Memory) -> Memory:
        self.pinned += 1
        return Memory(np.frombuffer(memory, dtype=like.data.dtype))

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.pinned = 0

    # ---- what a user of the device does ----

    def empty(self, size: int) -> Memory:
        """From the allocator of the caller's stream: whoever comes next there may write over it when it is let go."""
        memory = Memory(np.full(size, np.nan))
        weakref.finalize(memory, self.current().work.append, partial(memory.data.fill, np.nan))
        return memory

    def compute(self, run: Run) -> None:
        """A kernel."""
        self.current().work.append(run)


class FakeHost:
    """The shared memory, CPUs and network of a machine: adds up slots, and what other machines contribute."""

    def __init__(
        self,
        gpus: Gpus,
        plans: dict[str, DevicePlan],
        elsewhere: Callable[[str, int], np.ndarray],
        *,
        in_place: bool = False,
    ) -> None:
        """`in_place`: the only slot is the result."""
        self.gpus, self.plans, self.elsewhere = gpus, plans, elsewhere
        self.bytes: dict[str, tuple[list[bytearray], bytearray]] = {}
        for name, plan in plans.items():
            nan = np.full(plan.size, np.nan).tobytes()
            slots = [bytearray(nan) for _ in range(plan.slots)]
            self.bytes[name] = slots, slots[0] if in_place else bytearray(nan)
        self.rounds = dict.fromkeys(plans, 0)
        self.waiting: dict[str, dict[int, Callable[[BaseException | None], None]]] = {name: {} for name in plans}
        self.todo: list[deque[Run]] = []  # each in order
        self.failed: BaseException | None = None  # what a rank has told
        self.over: BaseException | None = None  # the job's error
        gpus.others.append(self._choice)

    def _choice(self) -> Run | None:
        self.todo = [queue for queue in self.todo if queue]
        if not self.todo:
            return None
        queue = self.gpus.random.choice(self.todo)
        return lambda: queue.popleft()()

    def contribute(self, name: str, rank: int, done: Callable[[BaseException | None], None]) -> None:
        assert rank not in self.waiting[name], "contributed twice"
        self.waiting[name][rank] = done
        if len(self.waiting[name]) == self.plans[name].ranks:
            there, self.waiting[name] = self.waiting[name], {}
            self.todo.append(deque(self._sum(name, there)))

    def _sum(self, name: str, there: dict[int, Callable[[BaseException | None], None]]) -> list[Run]:
        slots = [np.frombuffer(memory) for memory in self.bytes[name][0]]
        result, number = np.frombuffer(self.bytes[name][1]), self.rounds[name]
        self.rounds[name] += 1
        elsewhere = self.elsewhere(name, number)
        separate = self.bytes[name][0][0] is not self.bytes[name][1]
        runs: list[Run] = [partial(result.fill, np.nan)] if separate else []

        def add(start: int, end: int, count: int) -> None:
            result[start:end] = sum(slot[start:end] for slot in slots[:count]) + elsewhere[start:end]
            for slot in slots if separate else ():
                slot[start:end] = np.nan

        runs += [partial(add, one.span.start, one.span.end, one.slots) for one in self.plans[name].sums]

        def tell() -> None:
            self.todo += [deque([partial(done, None)]) for done in there.values()]

        return [*runs, tell]


class FakeRank:
    """The host as one local rank sees it."""

    def __init__(self, host: FakeHost, rank: int) -> None:
        self.host, self.rank = host, rank
        self.peers: list[Any] = []  # of the leader: the other LocalDevices
        self.told: dict[int, deque[Run]] = {}

    def memory(self, name: str) -> tuple[list[memoryview], memoryview]:
        slots, result = self.host.bytes[name]
        return [memoryview(slot) for slot in slots], memoryview(result)

    def contribute(self, name: str, done: Callable[[BaseException | None], None]) -> None:
        self.host.contribute(name, self.rank, done)

    def announce(self, name: str, half: Any) -> None:
        assert self.rank == 0
        for index, peer in enumerate(self.peers):
            queue = self.told.setdefault(index, deque())
            queue.append(partial(peer.turn, name, half))
            if not any(queue is one for one in self.host.todo):
                self.host.todo.append(queue)

    def check(self, name: str) -> None:
        if self.host.over is not None:
            raise self.host.over

    def fail(self, error: BaseException) -> None:
        self.host.failed = error
