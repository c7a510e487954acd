"""What the GPUs of a machine do with a gradient, step by step: the strategies of `strategy` for real tensors.

A strategy is a set of groups of GPUs.  Each group adds up its gradients on the devices and copies the sum to a *slot*
of host memory; CPUs add up the slots, the network takes it from there, and the result goes back the same way:

                        groups                       slots
    cpu-assisted        every island                 one per island
    reduce-scatter      all GPUs                     1, so that CPUs have nothing to add
    reduce-broadcast    all GPUs, to some roots      1
    brute-force         every GPU for itself         one per GPU

In a group without given roots every member ends with an equal part of the sum (reduce-scatter), copies that part out,
gets the same part of the result back, and hands it to the others (all-gather).  Parts are multiples of 64 elements;
what is left over, all of a small tensor, is reduced to the group's last member.  Large tensors go in pieces that follow
each other through the stages.  `strawman` is reduce-scatter over GPUs of several islands: NCCL does not know better.

The order of the steps is the same on all ranks, since the members of a group must start their collectives in one order.
A rank does the steps that name it.
Source: BytePS, OSDI 2020, section 4.2.
Pure: no I/O, no clock, no randomness.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from byteps.machine import Topology
from byteps.strategy import islands

ALIGNED = 64  # elements
PIECE_NBYTES = 16 << 20

_SHARED = re.compile(r"(\d+)% (\S+)")
_SCATTERED = ("reduce-scatter", "strawman", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Elements of the flat gradient."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """On the devices of some local ranks, in place.

    reduce-scatter   each rank's equal part of the span becomes the sum there; parts in the order of `ranks`
    all-gather       each rank's equal part of the span goes to all
    reduce           the span becomes the sum at the root; elsewhere it is undefined from then on
    broadcast        the root's span goes to all
    """

    what: Literal["reduce-scatter", "all-gather", "reduce", "broadcast"]
    ranks: tuple[int, ...]
    span: Span
    root: int = -1  # of reduce and broadcast: a local rank


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """Between a rank's device and host memory."""

    what: Literal["out", "in"]  # to a slot, from the result
    rank: int
    span: Span
    slot: int = -1  # of "out"


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSum:
    """On the CPUs: the result's span is the sum of the same span of the first so many slots."""

    span: Span
    slots: int


Step = Collective | Copy


@dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """One gradient through one machine."""

    name: str
    ranks: int
    size: int  # elements
    before: tuple[Step, ...]
    sums: tuple[HostSum, ...]  # they cover the gradient
    after: tuple[Step, ...]

    @cached_property
    def slots(self) -> int:
        return max((one.slots for one in self.sums), default=1)

    def steps(self, rank: int, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Those of `before` or `after` that a rank takes part in."""
        return tuple(one for one in steps if rank in (one.ranks if isinstance(one, Collective) else (one.rank,)))


@dataclass(frozen=True, kw_only=True)
class Group:
    """Local ranks that add up on their devices, and which of them copy; the same ones: all."""

    ranks: tuple[int, ...]
    roots: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Way:
    """What becomes of a share of every gradient."""

    name: str
    share: float
    groups: tuple[Group, ...]  # slot by slot


def first_gpus(topology: Topology, count: int) -> Topology:
    """The machine with its first so many GPUs alone: local rank i has the i-th."""
    if not 1 <= count <= len(topology.gpus):
        raise ValueError(
            f"{count} workers on machine {topology.name!r}, which has {len(topology.gpus)} GPUs; "
            "start one worker for each GPU or fewer, or describe the machine as it is"
        )
    gone = set(topology.gpus[count:])
    return replace(
        topology,
        nodes=tuple(node for node in topology.nodes if node.name not in gone),
        links=tuple(link for link in topology.links if link.a not in gone),
    )


def ways_of(topology: Topology, name: str, roots: Sequence[str] = ()) -> tuple[Way, ...]:
    """A strategy of `strategy` or `planner`, mixtures by their names; every GPU of the topology is a local rank."""
    shares = [(float(share), one) for share, one in _SHARED.findall(name)] or [(1.0, name.removeprefix("weighted "))]
    total = sum(share for share, _ in shares)
    return tuple(Way(name=one, share=s / total, groups=_groups(topology, one, roots)) for s, one in shares)


def scattered(ranks: int) -> tuple[Way, ...]:
    """Reduce-scatter over all: what is right on every machine, and fast where nothing is between the GPUs."""
    everyone = tuple(range(ranks))
    return (Way(name="reduce-scatter", share=1.0, groups=(Group(ranks=everyone, roots=everyone),)),)


def _groups(topology: Topology, name: str, roots: Sequence[str]) -> tuple[Group, ...]:
    numbers = {gpu: rank for rank, gpu in enumerate(topology.gpus)}
    everyone = tuple(numbers.values())
    if name == "cpu-assisted":
        found = [tuple(sorted(numbers[gpu] for gpu in island)) for island in islands(topology)]
        return tuple(Group(ranks=ranks, roots=ranks) for ranks in found)
    if name == "brute-force":
        return tuple(Group(ranks=(rank,), roots=(rank,)) for rank in everyone)
    if name in _SCATTERED:
        return (Group(ranks=everyone, roots=everyone),)
    if name == "reduce-broadcast" and roots and set(roots) <= set(numbers):
        return (Group(ranks=everyone, roots=tuple(sorted(numbers[root] for root in set(roots)))),)
    raise ValueError(
        f"strategy {name!r} with roots {list(roots)} on {topology.name!r} with GPUs {list(topology.gpus)}; use "
        "cpu-assisted, brute-force, reduce-scatter, strawman, or reduce-broadcast with some of these GPUs as roots"
    )


def device_plan(ways: Sequence[Way], size: int, element_nbytes: int, piece_nbytes: int = PIECE_NBYTES) -> DevicePlan:
    """The steps of all ranks for a gradient of so many elements."""
    if size < 1 or element_nbytes < 1 or piece_nbytes < element_nbytes:
        raise ValueError(
            f"a gradient of {size} elements of {element_nbytes} bytes in pieces of {piece_nbytes} bytes; "
            "use 1 or more, and pieces of an element or more"
        )
    before, after, sums, start, share = list[Step](), list[Step](), list[HostSum](), 0, 0.0
    for way in ways:
        share += way.share
        end = size if way is ways[-1] else round(share * size)
        pieces = -(-(end - start) * element_nbytes // piece_nbytes)
        for number in range(pieces):
            first, last = (start + (end - start) * one // pieces for one in (number, number + 1))
            span = Span(start=first, end=last)
            inside = [_inside(group, span, slot) for slot, group in enumerate(way.groups)]
            before += [one for collectives, _ in inside for one in collectives]
            before += [one for _, copies in inside for one in copies]
            after += [replace(one, what="in", slot=-1) for _, copies in inside for one in copies]
            after += [_back(one) for collectives, _ in inside for one in collectives]
            sums.append(HostSum(span=span, slots=len(way.groups)))
        start = end
    ranks = 1 + max(rank for way in ways for group in way.groups for rank in group.ranks)
    return DevicePlan(
        name=" + ".join(way.name for way in ways),
        ranks=ranks,
        size=size,
        before=tuple(before),
        sums=tuple(sums),
        after=tuple(after),
    )


def _inside(group: Group, span: Span, slot: int) -> tuple[list[Collective], list[Copy]]:
    """Who adds up what in a group, and who copies it out."""
    unit = span.size // len(group.roots) // ALIGNED * ALIGNED
    ends = [span.start + unit * number for number in range(1, len(group.roots))]
    parts = [Span(start=a, end=b) for a, b in zip([span.start, *ends], [*ends, span.end], strict=True)]
    collectives = []
    if len(group.ranks) == 1:
        pass
    elif group.roots == group.ranks:
        rest = Span(start=span.start + unit * len(group.ranks), end=span.end)
        if unit:
            whole = Span(start=span.start, end=rest.start)
            collectives.append(Collective(what="reduce-scatter", ranks=group.ranks, span=whole))
        if rest.size:
            collectives.append(Collective(what="reduce", ranks=group.ranks, span=rest, root=group.ranks[-1]))
    else:
        collectives = [
            Collective(what="reduce", ranks=group.ranks, span=part, root=root)
            for root, part in zip(group.roots, parts, strict=True)
            if part.size
        ]
    copies = [
        Copy(what="out", rank=root, span=part, slot=slot)
        for root, part in zip(group.roots, parts, strict=True)
        if part.size
    ]
    return collectives, copies


def _back(one: Collective) -> Collective:
    """The way of the result."""
    return replace(one, what="all-gather" if one.what == "reduce-scatter" else "broadcast")
