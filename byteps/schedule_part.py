"""One node's part in a schedule: which of its messages may leave, which sums may be made, as others arrive.

Events in, instructions out; whoever holds the sockets and the data does what they say (`baselines.executor`).
Pure: no I/O, no clock, no randomness.
"""

from dataclasses import dataclass, field

from byteps.schedule import Reduce, Schedule, Send, Step, dependencies


@dataclass(frozen=True, kw_only=True, slots=True)
class Transmit:
    """Send what the place of the chunk holds; then say `done(step)`."""

    step: int
    dst: int
    chunk: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Combine:
    """Add the messages to the chunk's place (`keep`), or put the one there instead; then say `done(step)`."""

    step: int
    chunk: int
    keep: bool
    messages: tuple[int, ...]  # steps of the senders


Instruction = Transmit | Combine


@dataclass(frozen=True, kw_only=True, eq=False)
class PartPlan:
    """What a node does in a schedule, whatever the data."""

    node: int
    mine: dict[int, Instruction]  # by step
    waits: dict[int, int]  # by step of mine: how many ends and arrivals it waits for
    allows: dict[int, tuple[int, ...]]  # by step of anybody: which of mine wait for it
    arriving: dict[int, Send]  # messages for this node, by step
    connection_order: dict[int, tuple[int, ...]]  # by receiver: my messages to it, in order

    @property
    def peers(self) -> set[int]:
        """Nodes that it sends to or receives from."""
        return set(self.connection_order) | {send.src for send in self.arriving.values()}


def plan_parts(schedule: Schedule) -> list[PartPlan]:
    """Of every node."""
    steps = list(schedule.steps())
    before = dependencies(schedule)
    by_node: list[list[int]] = [[] for _ in range(schedule.num_nodes)]
    for index, step in enumerate(steps):
        by_node[step.src if isinstance(step, Send) else step.node].append(index)
    arriving: list[dict[int, Send]] = [{} for _ in range(schedule.num_nodes)]
    for index, step in enumerate(steps):
        if isinstance(step, Send):
            arriving[step.dst][index] = step
    return [_part(node, own, steps, before, arriving[node]) for node, own in enumerate(by_node)]


def _part(
    node: int, own: list[int], steps: list[Step], before: list[tuple[int, ...]], arriving: dict[int, Send]
) -> PartPlan:
    mine: dict[int, Instruction] = {}
    allows: dict[int, list[int]] = {}
    order: dict[int, list[int]] = {}
    for index in own:
        step = steps[index]
        for earlier in before[index]:
            allows.setdefault(earlier, []).append(index)
        if isinstance(step, Reduce):
            messages = tuple(earlier for earlier in before[index] if earlier in arriving)
            mine[index] = Combine(step=index, chunk=step.chunk, keep=step.keep, messages=messages)
        else:
            mine[index] = Transmit(step=index, dst=step.dst, chunk=step.chunk)
            order.setdefault(step.dst, []).append(index)
    return PartPlan(
        node=node,
        mine=mine,
        waits={index: len(before[index]) for index in own},
        allows={index: tuple(after) for index, after in allows.items()},
        arriving=arriving,
        connection_order={dst: tuple(sent) for dst, sent in order.items()},
    )


@dataclass(kw_only=True, eq=False)
class Part:
    """The progress of one synchronisation at one node."""

    plan: PartPlan
    started: bool = False
    _left: dict[int, int] = field(init=False)
    _ready: set[int] = field(init=False, default_factory=set)  # messages whose turn on their connection has not come
    _next: dict[int, int] = field(init=False)  # by receiver: how many of its messages were let go
    _open: int = field(init=False)  # steps of mine that are not done
    _missing: set[int] = field(init=False)  # messages that have not arrived

    def __post_init__(self) -> None:
        self._left = dict(self.plan.waits)
        self._next = dict.fromkeys(self.plan.connection_order, 0)
        self._open = len(self._left)
        self._missing = set(self.plan.arriving)

    @property
    def finished(self) -> bool:
        return self.started and not self._open

    def start(self) -> list[Instruction]:
        """The node's own contribution is there, or it needs none."""
        self.started = True
        return self._release([index for index, left in self._left.items() if left == 0])

    def arrived(self, step: int) -> list[Instruction]:
        """A message for this node is complete."""
        if step not in self._missing:
            raise ValueError(f"node {self.plan.node} got message {step}, which is not expected, or was here before")
        self._missing.remove(step)
        return self._allow(step)

    def done(self, step: int) -> list[Instruction]:
        """An instruction was carried out."""
        self._open -= 1
        return self._allow(step)

    def waiting_for(self) -> str:
        """For errors: what has not come."""
        missing = sorted(self._missing)
        if not missing:
            return "its own messages to leave"
        sends = [self.plan.arriving[step] for step in missing[:3]]
        named = ", ".join(f"chunk {send.chunk} from node {send.src}" for send in sends)
        return f"{named} and {len(missing) - 3} more messages" if len(missing) > 3 else named

    def _allow(self, step: int) -> list[Instruction]:
        free = []
        for index in self.plan.allows.get(step, ()):
            self._left[index] -= 1
            if self._left[index] == 0:
                free.append(index)
        return self._release(free) if self.started else []

    def _release(self, free: list[int]) -> list[Instruction]:
        """Sums at once; messages in the order of their connection."""
        result: list[Instruction] = []
        touched = dict[int, None]()
        for index in free:
            instruction = self.plan.mine[index]
            if isinstance(instruction, Combine):
                result.append(instruction)
            else:
                self._ready.add(index)
                touched[instruction.dst] = None
        for dst in touched:
            order = self.plan.connection_order[dst]
            while self._next[dst] < len(order) and order[self._next[dst]] in self._ready:
                self._ready.remove(order[self._next[dst]])
                result.append(self.plan.mine[order[self._next[dst]]])
                self._next[dst] += 1
        return result
