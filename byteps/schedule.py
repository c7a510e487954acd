"""What a synchronisation algorithm is: which messages carry which chunk from where to where, and in what order.

A tensor is cut into chunks.  Every endpoint has one place for every chunk: a worker's holds its contribution at first,
any other's is empty.  A schedule is a sequence of rounds, and a round is a set of messages:

    Send(src, dst, chunk)    carries what src's place for the chunk holds when the round begins
    Reduce(node, chunk)      adds up what the round brought to that place, with what it holds (`keep`) or instead of it

The order is a program's, not one of barriers: a step waits for the earlier ones that touch the same place, a message
also for its sender's turn, and for nothing else (`dependencies`).  So the rounds of different chunks overlap, and one
definition serves the proof (`byteps.symbolic`), the sockets (`baselines.executor`), the simulation
(`byteps.scheduled`) and the counting here.  A round is stored as arrays: a ring of 1024 has two million messages.
Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
Floats = NDArray[np.float64]
Goal = Literal["all-reduce", "reduce-scatter", "all-gather"]

_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Send:
    """A message: what `src` holds of a chunk, to `dst`."""

    src: int
    dst: int
    chunk: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduce:
    """What arrived at a place since the last one there becomes part of it, or replaces it."""

    node: int
    chunk: int
    keep: bool


Step = Send | Reduce


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """Messages that are read before any of them is added; three arrays of one length."""

    src: Indices
    dst: Indices
    chunk: Indices
    keep: bool  # add to what is there; False: replace it

    def __post_init__(self) -> None:
        if not self.src.shape == self.dst.shape == self.chunk.shape:
            raise ValueError(
                f"a round has {self.src.size} senders, {self.dst.size} receivers and {self.chunk.size} chunks; "
                "give one of each per message"
            )

    def steps(self) -> Iterator[Step]:
        """The messages, then what becomes of them."""
        for src, dst, chunk in zip(self.src.tolist(), self.dst.tolist(), self.chunk.tolist(), strict=True):
            yield Send(src=src, dst=dst, chunk=chunk)
        for node, chunk in dict.fromkeys(zip(self.dst.tolist(), self.chunk.tolist(), strict=True)):
            yield Reduce(node=node, chunk=chunk, keep=self.keep)


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """One synchronisation.  Workers are the nodes 0 to `num_workers` - 1; further nodes are servers or switches."""

    name: str
    num_workers: int
    num_nodes: int
    shares: Floats  # of the tensor's bytes, by chunk; they sum to 1
    rounds: tuple[Round, ...]
    goal: Goal = "all-reduce"
    # where a chunk is complete after the reduce half, by chunk; what reduce-scatter ends and all-gather begins with
    owners: Indices = field(default_factory=lambda: np.empty(0, dtype=np.intp))

    def __post_init__(self) -> None:
        if not 1 <= self.num_workers <= self.num_nodes:
            raise ValueError(f"{self.name}: {self.num_workers} workers among {self.num_nodes} nodes; use 1 to all")
        if self.shares.size == 0 or not (self.shares > 0).all() or abs(self.shares.sum() - 1) > _ROUNDING:
            raise ValueError(
                f"{self.name}: the chunks' shares sum to {self.shares.sum():.12g}, the least is "
                f"{self.shares.min(initial=np.inf):.3g}; chunks must cover the tensor, each more than nothing of it"
            )
        if self.goal != "all-reduce" and self.owners.size != self.shares.size:
            raise ValueError(f"{self.name}: {self.goal} needs the owner of each of the {self.shares.size} chunks")
        for number, one in enumerate(self.rounds):
            for what, values, limit in (
                ("sender", one.src, self.num_nodes),
                ("receiver", one.dst, self.num_nodes),
                ("chunk", one.chunk, self.shares.size),
            ):
                bad = values[(values < 0) | (values >= limit)]
                if bad.size:
                    raise ValueError(f"{self.name}: round {number} has {what} {bad[0]}; allowed are 0 to {limit - 1}")
            if (one.src == one.dst).any():
                node = one.src[one.src == one.dst][0]
                raise ValueError(f"{self.name}: in round {number} node {node} sends to itself; leave that message out")

    @property
    def num_messages(self) -> int:
        return sum(one.src.size for one in self.rounds)

    def steps(self) -> Iterator[Step]:
        """Round by round."""
        for one in self.rounds:
            yield from one.steps()

    def sent(self) -> Floats:
        """By node: what it sends, as a multiple of the tensor's bytes."""
        return self._per_node([one.src for one in self.rounds])

    def received(self) -> Floats:
        """By node: what it receives, as a multiple of the tensor's bytes."""
        return self._per_node([one.dst for one in self.rounds])

    def _per_node(self, ends: Sequence[Indices]) -> Floats:
        total = np.zeros(self.num_nodes)
        for end, one in zip(ends, self.rounds, strict=True):
            total += np.bincount(end, self.shares[one.chunk], minlength=self.num_nodes)
        return total


def dependencies(schedule: Schedule) -> list[tuple[int, ...]]:
    """For every step of `schedule.steps()`, the earlier steps that must have ended before it begins.

    A message waits for the last write to the place that it reads, and for its sender's turn: a node sends round by
    round, so that what others wait for does not share its NIC with what is needed later; the adding half and the
    replacing half each have their own turns.  A reduction waits for its messages, for the write before it, and for the
    messages that still read what it is about to change.
    """
    written: dict[tuple[int, int], int] = {}
    readers: dict[tuple[int, int], list[int]] = {}
    arrived: dict[tuple[int, int], list[int]] = {}
    turns: dict[tuple[int, bool], list[int]] = {}  # by sender and half: its messages in its last round there
    result: list[tuple[int, ...]] = []
    for one in schedule.rounds:
        now: dict[tuple[int, bool], list[int]] = {}
        for step in one.steps():
            index = len(result)
            if isinstance(step, Send):
                source, turn = (step.src, step.chunk), (step.src, one.keep)
                before = {*turns.get(turn, ()), *([written[source]] if source in written else ())}
                now.setdefault(turn, []).append(index)
                readers.setdefault(source, []).append(index)
                arrived.setdefault((step.dst, step.chunk), []).append(index)
            else:
                place = (step.node, step.chunk)
                before = {*arrived.pop(place, ()), *readers.pop(place, ())}
                before |= {written[place]} if place in written else set()
                written[place] = index
            result.append(tuple(sorted(before)))
        turns |= now
    return result


def one_round(messages: Iterable[tuple[int, int, int]], *, keep: bool) -> Round:
    """From (sender, receiver, chunk) triples."""
    table = np.array(list(messages), dtype=np.intp).reshape(-1, 3)
    return Round(src=table[:, 0], dst=table[:, 1], chunk=table[:, 2], keep=keep)


def joined(rounds: Sequence[Round]) -> Round:
    """Several rounds as one; all of them must keep, or none."""
    if len({one.keep for one in rounds}) != 1:
        raise ValueError(f"rounds that keep ({[one.keep for one in rounds]}) and rounds that replace cannot be joined")
    return Round(
        src=np.concatenate([one.src for one in rounds]),
        dst=np.concatenate([one.dst for one in rounds]),
        chunk=np.concatenate([one.chunk for one in rounds]),
        keep=rounds[0].keep,
    )


def reduce_half(schedule: Schedule) -> Schedule:
    """Its rounds that add, as a schedule of its own: every chunk ends complete at its owner."""
    return _half(schedule, "reduce-scatter", keep=True)


def gather_half(schedule: Schedule) -> Schedule:
    """Its rounds that replace, as a schedule of its own: every chunk begins complete at its owner."""
    return _half(schedule, "all-gather", keep=False)


def _half(schedule: Schedule, goal: Goal, *, keep: bool) -> Schedule:
    return Schedule(
        name=f"{schedule.name}, {goal}",
        num_workers=schedule.num_workers,
        num_nodes=schedule.num_nodes,
        shares=schedule.shares,
        rounds=tuple(one for one in schedule.rounds if one.keep == keep),
        goal=goal,
        owners=schedule.owners,
    )


def boundaries(shares: Floats, num_elements: int) -> Indices:
    """Where chunks begin and end in a tensor of so many elements: one more than there are chunks; some may be empty."""
    ends = np.rint(np.cumsum(shares) * num_elements).astype(np.intp)
    ends[-1] = num_elements
    return np.concatenate([np.zeros(1, dtype=np.intp), ends])
