"""The Summation Service's rule for one partition, without its bytes (paper, section 4.1 and 5).

Every worker of a tensor pushes once per round.  The first contribution becomes the accumulator, each later one is added
on arrival, and with the last push the sum is answered to everybody who pushed.  A push of 0 bytes contributes nothing
but counts.  A worker may push round r + 1 as soon as it has the answer of round r, which is after all pushes of round r
are in: so a slot is never in two rounds, and an answer still being sent belongs to a buffer that the next round does
not touch.  Pure: one event in, the actions it causes out; the caller does the I/O.
"""

import enum
from typing import NamedTuple

from byteps.wire import DTYPES, ROUNDS, Op, ProtocolError


class Action(enum.Enum):
    """What the caller does about the push that just arrived."""

    ADOPT = "it becomes the accumulator"
    ADD = "add it to the accumulator"
    REPLY = "send the accumulator to every worker that pushed, unless it declined it"


class Push(NamedTuple):
    """A complete push."""

    worker: int
    round: int
    nbytes: int  # 0: it contributes nothing
    dtype: int
    op: int
    members: int = 0  # pushes in a round; 0: one of every worker
    wants: bool = True  # the answer, and not only that the round is over
    coding: bytes = b""  # how its bytes are encoded (`wire`); none: as numbers

    def describe(self) -> str:
        of = f" of {self.members} workers" if self.members else ""
        by = f" encoded as {self.coding.hex()}" if self.coding else ""
        return f"{self.nbytes} bytes {DTYPES[self.dtype]} {Op(self.op).name.lower()}{of}{by}"


_NOTHING: tuple[Action, ...] = ()
_REPLY = (Action.REPLY,)
_ADOPT = (Action.ADOPT,)
_ADOPT_REPLY = (Action.ADOPT, Action.REPLY)
_ADD = (Action.ADD,)
_ADD_REPLY = (Action.ADD, Action.REPLY)


class Slot:
    """One partition's state: the round under way and who has pushed in it."""

    __slots__ = ("answered", "arrived", "num_workers", "round", "summing", "template")

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.round = 0
        self.arrived: dict[int, bool] = {}  # the workers that have pushed; whether they want the answer
        self.answered: dict[int, bool] | None = None  # the same of the last complete round; None: all workers want it
        self.summing = False  # whether there is an accumulator
        self.template: Push | None = None  # the first push, if possible with bytes

    def handle(self, push: Push) -> tuple[Action, ...]:
        """Raises ProtocolError if the push does not fit what the slot expects."""
        if push.round != self.round:
            raise ProtocolError(f"worker {push.worker} pushed round {push.round}, round {self.round} is under way")
        if push.worker in self.arrived:
            raise ProtocolError(f"worker {push.worker} pushed round {push.round} twice")
        first = self.template
        if first is not None and (
            (push.dtype, push.op, push.members) != (first.dtype, first.op, first.members)
            or ((push.nbytes != first.nbytes or push.coding != first.coding) and push.nbytes and first.nbytes)
        ):
            raise ProtocolError(
                f"worker {first.worker} pushed {first.describe()}, worker {push.worker} {push.describe()}"
            )
        if first is None or not first.nbytes:
            self.template = push
        self.arrived[push.worker] = push.wants
        opening = not self.summing
        if push.nbytes:
            if push.op == Op.COPY and not opening:
                raise ProtocolError(f"worker {push.worker} contributed to a copy that has its contribution")
            self.summing = True
        if len(self.arrived) < (push.members or self.num_workers):
            return _NOTHING if not push.nbytes else _ADOPT if opening else _ADD
        if not self.summing:
            raise ProtocolError(f"no worker contributed to round {self.round}")
        self.answered = None if not push.members and all(self.arrived.values()) else self.arrived
        self.arrived = {}
        self.round = (self.round + 1) % ROUNDS
        self.summing = False
        return _REPLY if not push.nbytes else _ADOPT_REPLY if opening else _ADD_REPLY
