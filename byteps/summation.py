"""The Summation Service's rule for one partition, without its bytes (paper, section 4.1 and 5).

Every worker pushes once per round.  The first contribution becomes the accumulator, each later one is added on arrival,
and the last one is answered to everybody.  A worker may push round r + 1 as soon as it has the answer of round r,
which is after all contributions of round r are in: so a slot is never in two rounds, and an answer still being sent
belongs to a buffer that the next round does not touch. Pure: one event in, the actions it causes out; the caller does
the I/O.
"""

import enum
from typing import NamedTuple

from byteps.wire import DTYPES, Op, ProtocolError


class Action(enum.Enum):
    """What the caller does with the contribution that just arrived."""

    ADOPT = "it becomes the accumulator"
    ADD = "add it to the accumulator"
    REPLY = "send the accumulator to every worker"


class Push(NamedTuple):
    """A complete contribution."""

    worker: int
    round: int
    nbytes: int
    dtype: int
    op: int

    def describe(self) -> str:
        return f"{self.nbytes} bytes {DTYPES[self.dtype]} {Op(self.op).name.lower()}"


_ADOPT = (Action.ADOPT,)
_ADOPT_REPLY = (Action.ADOPT, Action.REPLY)
_ADD = (Action.ADD,)
_ADD_REPLY = (Action.ADD, Action.REPLY)


class Slot:
    """One partition's state: the round under way and who has contributed to it."""

    __slots__ = ("arrived", "num_workers", "round", "template")

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.round = 0
        self.arrived: set[int] = set()
        self.template: Push | None = None

    def handle(self, push: Push) -> tuple[Action, ...]:
        """Raises ProtocolError if the push does not fit what the slot expects."""
        if push.round != self.round:
            raise ProtocolError(f"worker {push.worker} pushed round {push.round}, round {self.round} is under way")
        if push.worker in self.arrived:
            raise ProtocolError(f"worker {push.worker} pushed round {push.round} twice")
        first = self.template
        if first is None:
            self.template = first = push
        elif (push.nbytes, push.dtype, push.op) != (first.nbytes, first.dtype, first.op):
            raise ProtocolError(
                f"worker {first.worker} pushed {first.describe()}, worker {push.worker} {push.describe()}"
            )
        self.arrived.add(push.worker)
        opening = len(self.arrived) == 1
        if len(self.arrived) < self.num_workers:
            return _ADOPT if opening else _ADD
        self.arrived.clear()
        self.round += 1
        return _ADOPT_REPLY if opening else _ADD_REPLY
