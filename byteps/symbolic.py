"""Proof that a schedule is right: run with what each place *would* hold instead of numbers.

A place holds how often each worker's contribution is in it.  At the end of an all-reduce every worker must hold every
contribution to every chunk exactly once; on the way no place may be read before it was written, and none may be written
by two messages that replace.  The first violation is named: round, node, chunk, and why.  Also counted: what an
endpoint has to store at once, beyond the tensor itself, for messages that wait for their reduction.
Pure: no I/O, no clock, no randomness.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from byteps.schedule import Round, Schedule

_Counts = NDArray[np.int16]
_NAMED = 4


class ScheduleError(ValueError):
    """A schedule that does not compute what it should; the text names the first wrong chunk and why."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What a correct schedule costs in memory."""

    most_waiting: float  # of any node in any round: bytes of messages that arrived, as a multiple of the tensor
    most_stored: float  # of any node: bytes of all chunks that it ever holds, as a multiple of the tensor


def check(schedule: Schedule) -> Proof:
    """ScheduleError unless the schedule reaches its goal."""
    held = _initial(schedule)
    most_waiting = 0.0
    for number, one in enumerate(schedule.rounds):
        where = f"{schedule.name}: round {number}"
        messages = held[one.src, one.chunk]
        _check_read(where, one, messages)
        place = one.dst * schedule.shares.size + one.chunk
        places, index = np.unique(place, return_inverse=True)
        arrived = np.zeros((places.size, schedule.num_workers), dtype=np.int16)
        np.add.at(arrived, index, messages)
        nodes, chunks = np.divmod(places, schedule.shares.size)
        if one.keep:
            arrived += held[nodes, chunks]
            _check_once(where, schedule, one, nodes, chunks, arrived)
        elif places.size < place.size:
            first = int(np.argmax(np.bincount(index) > 1))
            raise ScheduleError(
                f"{where}: {np.bincount(index)[first]} messages replace chunk {chunks[first]} of node {nodes[first]}; "
                "send one, or add them"
            )
        held[nodes, chunks] = arrived
        waiting = np.bincount(one.dst, schedule.shares[one.chunk], minlength=schedule.num_nodes)
        most_waiting = max(most_waiting, float(waiting.max()))
    _check_goal(schedule, held)
    stored = (held.any(axis=2) * schedule.shares).sum(axis=1)
    return Proof(most_waiting=most_waiting, most_stored=float(stored.max()))


def _initial(schedule: Schedule) -> _Counts:
    """By node, chunk and worker: how often that worker's contribution is in the place."""
    workers, chunks = schedule.num_workers, schedule.shares.size
    held = np.zeros((schedule.num_nodes, chunks, workers), dtype=np.int16)
    if schedule.goal == "all-gather":
        held[schedule.owners, np.arange(chunks)] = 1
    else:
        held[np.arange(workers), :, np.arange(workers)] = 1
    return held


def _check_read(where: str, one: Round, messages: _Counts) -> None:
    empty = ~messages.any(axis=1)
    if empty.any():
        first = int(np.argmax(empty))
        raise ScheduleError(
            f"{where}: node {one.src[first]} sends chunk {one.chunk[first]} to node {one.dst[first]} "
            "before it holds anything of it"
        )


def _check_once(
    where: str,
    schedule: Schedule,
    one: Round,
    nodes: NDArray[np.intp],
    chunks: NDArray[np.intp],
    arrived: _Counts,
) -> None:
    twice = (arrived > 1).any(axis=1)
    if twice.any():
        first = int(np.argmax(twice))
        worker = int(np.argmax(arrived[first] > 1))
        senders = one.src[(one.dst == nodes[first]) & (one.chunk == chunks[first])]
        raise ScheduleError(
            f"{where}: worker {worker}'s contribution to chunk {chunks[first]} is counted {arrived[first, worker]} "
            f"times at node {nodes[first]}, with what nodes {_listed(senders)} send"
        )


def _check_goal(schedule: Schedule, held: _Counts) -> None:
    if schedule.goal == "reduce-scatter":
        ends = held[schedule.owners, np.arange(schedule.shares.size)][None]
        holders = schedule.owners
    else:
        ends = held[: schedule.num_workers]
        holders = np.arange(schedule.num_workers)
    wrong = (ends != 1).any(axis=2)
    if wrong.any():
        row, chunk = (int(value) for value in np.argwhere(wrong)[0])
        node = holders[chunk] if schedule.goal == "reduce-scatter" else holders[row]
        missing = np.flatnonzero(ends[row, chunk] == 0)
        raise ScheduleError(
            f"{schedule.name}: at the end chunk {chunk} of node {node} lacks the contribution of "
            f"worker{'s' if missing.size > 1 else ''} {_listed(missing)}"
        )


def _listed(nodes: NDArray[np.intp]) -> str:
    names = ", ".join(map(str, nodes[:_NAMED].tolist()))
    return f"{names}, ..." if nodes.size > _NAMED else names
