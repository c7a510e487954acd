"""A switch that sums: its slots, a worker's window over them, and floats as integers (DAIET, SwitchML).

A transfer of C blocks is C + L steps, L = min(pool, C); step o of it carries the largest exponent of block o, and the
integers of block o - L, whose common exponent step o - L has brought back: exponents travel one packet ahead.  Steps
are numbered on through all transfers.  Step s goes to slot s mod pool, whose two versions take turns; a worker sends it
when the result of step s - pool is in (self-clocking), so at most `pool` packets of a worker are under way.

*Recovery.*  A slot's version keeps its sum until it is used again, which is two steps of that slot later.  A worker
sends step s + 2 pool only after the result of s + pool, which takes everyone's s + pool, which they send only after the
result of s: so nobody can miss a result that is overwritten.  A packet that was counted is known by a bit and answered
with the result if there is one; one of an earlier step than its version holds is of the past and dropped, however late.

*Scaling.*  With e the agreed exponent (|x| < 2^e in every worker's block) and b = 30 - ceil(log2 n), x goes as the
integer nearest to x 2^(b-e), at most 2^b, so n of them add up within 32 bits.  Each is off by half a unit at most:

    |result - sum| <= n 2^(e-b-1), before the result is rounded to the tensor's type,

and integers below 2^b are exact.  A block with an infinity or NaN anywhere comes back as NaN everywhere.
Pure: no I/O, no clock (the caller says what time it is), no randomness.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

NO_EXPONENT: Final = -2000  # of a packet that brings none; below all others, as the agreed one is the largest
ZERO: Final = -1074  # of a block of zeros
NOT_FINITE: Final = 2000
MOST_WORKERS: Final = 1024
MOST_BACKOFF: Final = 16  # times the time-out
_BITS = 30


class AggregationError(RuntimeError):
    """Workers that disagree about what they sum; the text names two of them."""


def bits(workers: int) -> int:
    """b: of one worker's integers, so that the sum of all fits into 32 bits."""
    if not 1 <= workers <= MOST_WORKERS:
        raise ValueError(f"{workers} workers; a switch sums for 1 to {MOST_WORKERS}")
    return _BITS - math.ceil(math.log2(workers))


def exponent(block: Array) -> int:
    """The least e with |x| < 2^e for all x."""
    largest = float(np.abs(block).max()) if block.size else 0.0
    if not math.isfinite(largest):
        return NOT_FINITE
    return math.frexp(largest)[1] if largest else ZERO


def encode(block: Array, agreed: int, num_bits: int, out: Array) -> None:
    """A block as integers of 32 bits; `agreed` is at least its own exponent."""
    if agreed in (ZERO, NOT_FINITE):
        out[:] = 0
        return
    scaled = np.multiply(block, math.ldexp(1.0, num_bits - agreed), dtype=np.float64)
    np.rint(scaled, out=scaled)
    out[:] = scaled


def decode(total: Array, agreed: int, num_bits: int, out: Array) -> None:
    """A sum of integers as floats, with one rounding."""
    if agreed == NOT_FINITE:
        out[:] = np.nan
        return
    unit = math.ldexp(1.0, agreed - num_bits) if agreed != ZERO else 0.0
    with np.errstate(over="ignore"):  # a sum that the tensor's type does not hold is infinite
        np.multiply(total, unit, out=out, dtype=np.float64, casting="same_kind")


def error_bound(agreed: int, workers: int) -> float:
    """Of an element, before the result is rounded to its type."""
    return workers * math.ldexp(1.0, agreed - bits(workers) - 1) if agreed not in (ZERO, NOT_FINITE) else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Packet:
    """What a worker sends and, with what all sent in it, what the switch answers."""

    step: int
    what: int  # tells tensors apart: all workers must mean the same one
    ahead: int  # exponent of a later block
    integers: Array  # none where only an exponent is agreed upon


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A result and whom to send it to; its integers are the slot's own, good until the next packet."""

    to: Sequence[int]
    packet: Packet


@dataclass(kw_only=True, slots=True)
class _Cell:
    """One version of a slot."""

    integers: Array
    step: int = -1
    what: int = 0
    size: int = 0  # elements
    ahead: int = NO_EXPONENT
    seen: int = 0  # a bit per worker
    first: int = -1  # whose packet came first
    left: int = 0  # workers that are missing


class Switch:
    """The slots: packets in, answers out."""

    def __init__(self, *, workers: int, pool: int, block: int) -> None:
        """`block`: elements, at most."""
        bits(workers)
        self._everyone = tuple(range(workers))
        self._pool = pool
        self._cells = [_Cell(integers=np.zeros(block, dtype=np.int32)) for _ in range(2 * pool)]

    def receive(self, worker: int, packet: Packet) -> Answer | None:
        """Count it, once; the result for everyone if it was the last that was missing, or again for one who asks."""
        step = packet.step
        cell = self._cells[step % (2 * self._pool)]  # slot and version in one: they take turns
        if step < cell.step:
            return None  # of the past: everyone has its result
        if step > cell.step:
            self._begin(cell, worker, packet)
        bit = 1 << worker
        if cell.seen & bit:
            return Answer(to=(worker,), packet=self._result(cell)) if not cell.left else None
        if (packet.what, packet.integers.size) != (cell.what, cell.size):
            raise AggregationError(
                f"worker {worker} sends another tensor, or one of another size or type, than worker {cell.first} "
                f"in step {step}; all must hand over the same tensors in the same order"
            )
        if cell.left == len(self._everyone):
            cell.integers[: cell.size] = packet.integers
        elif cell.size:
            cell.integers[: cell.size] += packet.integers
        cell.ahead = max(cell.ahead, packet.ahead)
        cell.seen |= bit
        cell.left -= 1
        return None if cell.left else Answer(to=self._everyone, packet=self._result(cell))

    def _begin(self, cell: _Cell, worker: int, packet: Packet) -> None:
        if cell.left:
            raise AggregationError(
                f"worker {worker} is in step {packet.step}, while step {cell.step} of the same slot is not complete"
            )
        cell.step, cell.what, cell.size = packet.step, packet.what, packet.integers.size
        cell.ahead, cell.seen, cell.first, cell.left = NO_EXPONENT, 0, worker, len(self._everyone)

    def _result(self, cell: _Cell) -> Packet:
        return Packet(step=cell.step, what=cell.what, ahead=cell.ahead, integers=cell.integers[: cell.size])

    def waiting_for(self) -> tuple[int, ...]:
        """Workers that are missing in steps that others have sent."""
        open_cells = [cell for cell in self._cells if cell.left]
        return tuple(one for one in self._everyone if any(not cell.seen >> one & 1 for cell in open_cells))


@dataclass(frozen=True, kw_only=True, slots=True)
class Send:
    """Send this step: the integers of one block and the exponent of another, or one of the two (-1: none)."""

    step: int
    transfer: int
    block: int
    agreed: int  # exponent for the integers
    ahead: int  # the block whose exponent is to be told


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrived:
    """A result that is new: the sum of a block (-1: none was in it), and what to send now."""

    transfer: int
    block: int
    agreed: int
    finished: bool  # it was the transfer's last
    sends: list[Send]


@dataclass(kw_only=True, slots=True)
class _Transfer:
    first: int  # step
    blocks: int
    lead: int  # L
    agreed: dict[int, int] = field(default_factory=dict)  # by block, until its sum is in
    open: int = 0  # steps whose result is missing


class Window:
    """A worker's side: which steps to send, and which again."""

    def __init__(self, *, pool: int, timeout_seconds: float) -> None:
        self._pool = pool
        self._timeout = timeout_seconds
        self._transfers: dict[int, _Transfer] = {}
        self._count = 0  # transfers so far
        self._steps = 0  # of all transfers so far
        self._of: dict[int, int] = {}  # step -> transfer, where the result is missing
        self._next = list(range(pool))  # by slot: the step whose turn it is
        self._sent: dict[int, tuple[Send, float, float]] = {}  # by step: what, when it is late, and its time-out

    @property
    def idle(self) -> bool:
        return not self._sent

    def submit(self, blocks: int, now: float) -> tuple[int, list[Send]]:
        """A tensor of so many blocks is ready; the number of its transfer, which is finished if it has no blocks."""
        number, lead = self._count, min(self._pool, blocks)
        self._count += 1
        steps = range(self._steps, self._steps + lead + blocks)
        if steps:
            self._transfers[number] = _Transfer(first=self._steps, blocks=blocks, lead=lead, open=len(steps))
            self._of |= dict.fromkeys(steps, number)
            self._steps = steps.stop
        return number, [send for step in steps[: self._pool] for send in self._try(step, now)]

    def arrived(self, step: int, ahead: int, now: float) -> Arrived | None:
        """A result from the switch; None if it was here before."""
        if self._sent.pop(step, None) is None:
            return None
        number = self._of.pop(step)
        transfer = self._transfers[number]
        offset = step - transfer.first
        if offset < transfer.blocks:
            transfer.agreed[offset] = ahead
        block = offset - transfer.lead
        agreed = transfer.agreed.pop(block) if block >= 0 else NO_EXPONENT
        transfer.open -= 1
        if not transfer.open:
            del self._transfers[number]
        self._next[step % self._pool] = step + self._pool
        sends = self._try(step + self._pool, now)
        if offset < transfer.blocks and transfer.lead < self._pool:  # else it is the same step
            sends += self._try(step + transfer.lead, now)
        return Arrived(transfer=number, block=max(block, -1), agreed=agreed, finished=not transfer.open, sends=sends)

    def late(self, now: float) -> list[Send]:
        """What has had no result for so long that it goes once more; each time it is given twice as long."""
        found = []
        for step, (send, due, timeout) in self._sent.items():
            if due <= now:
                longer = min(2 * timeout, MOST_BACKOFF * self._timeout)
                self._sent[step] = (send, now + longer, longer)
                found.append(send)
        return found

    def next_late(self) -> float:
        """When `late` will have something; infinity if nothing is under way."""
        return min((due for _, due, _ in self._sent.values()), default=math.inf)

    def _try(self, step: int, now: float) -> list[Send]:
        """Send it if its slot is free, its tensor ready, and the exponent of its block agreed upon."""
        number = self._of.get(step)
        if number is None or self._next[step % self._pool] != step or step in self._sent:
            return []
        transfer = self._transfers[number]
        offset = step - transfer.first
        block = offset - transfer.lead
        if block >= 0 and block not in transfer.agreed:
            return []
        send = Send(
            step=step,
            transfer=number,
            block=max(block, -1),
            agreed=transfer.agreed[block] if block >= 0 else NO_EXPONENT,
            ahead=offset if offset < transfer.blocks else -1,
        )
        self._sent[step] = (send, now + self._timeout, self._timeout)
        return [send]
