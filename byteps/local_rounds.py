"""The course of one tensor's rounds on a machine, as its root sees it; without the bytes.

Every worker of the machine contributes once per round, with bytes or with nothing, and wants the result or not:

    all have contributed -> all add up their parts -> the root hands the sum to the network -> the result is told to all

A small tensor is added up by the root alone, since a message to everybody and back takes longer.  A worker contributes
to the next round only when it has read the result of the one before, so a result is never overwritten under a reader,
and a round never meets the next one.
Pure: one event in, what comes next out; the caller does it.
"""

import enum
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from byteps.wire import Op, ProtocolError

ALONE_NBYTES: Final = 128 << 10


class Next(enum.Enum):
    """What the root does now."""

    WAIT = "nothing: others are still to come"
    ADD = "have everybody add up a part"
    ADD_ALONE = "add up all of it"
    SEND = "hand the machine's sum to the network"
    RESULT = "tell everybody that the result is there"


@dataclass(eq=False, kw_only=True)
class Rounds:
    """One tensor's."""

    workers: int  # of this machine
    op: Op
    nbytes: int
    networked: bool  # whether there are other machines
    slots: int = 0  # 0: one per worker, and those without a contribution are left out; else all are summed
    arrived: dict[int, bool] = field(default_factory=dict)  # by worker: whether it gave bytes
    wanted: bool = False  # somebody's
    priority: int = 0
    _adding: set[int] = field(default_factory=set)

    def contribute(self, worker: int, *, gives: bool, wants: bool, priority: int) -> Next:
        """Raises ProtocolError if the worker cannot contribute now."""
        if worker in self.arrived:
            raise ProtocolError(f"it contributed twice to one round of {self.nbytes} bytes")
        if gives and self.op is Op.COPY and any(self.arrived.values()):
            raise ProtocolError("it contributed to a copy that has its contribution")
        self.priority = max(self.priority, priority) if self.arrived else priority
        self.wanted = wants or (self.wanted and bool(self.arrived))
        self.arrived[worker] = gives
        if len(self.arrived) < self.workers:
            return Next.WAIT
        if not self.sources:
            return self._summed()
        if self.nbytes <= ALONE_NBYTES:
            return Next.ADD_ALONE
        self._adding = set(range(self.workers))
        return Next.ADD

    @property
    def sources(self) -> Collection[int]:
        """The slots to be added up."""
        if self.slots:
            return range(self.slots)
        return [worker for worker, gives in sorted(self.arrived.items()) if gives]

    def added(self, worker: int) -> Next:
        """A worker has added up its part; ProtocolError if it was not asked to."""
        if worker not in self._adding:
            raise ProtocolError("it added up a part that is not under way")
        self._adding.discard(worker)
        return Next.WAIT if self._adding else self._summed()

    def added_alone(self) -> Next:
        return self._summed()

    def _summed(self) -> Next:
        if self.networked:
            return Next.SEND
        if not self.sources:
            raise ProtocolError("no worker contributed to this round")
        return Next.RESULT

    @property
    def declines(self) -> bool:
        """Whether the network need not send the answer: nobody wants it, or it is here."""
        return not self.wanted or (self.op is Op.COPY and bool(self.sources))

    def begin(self) -> None:
        """The result is out: the next round may begin."""
        self.arrived = {}
        self.wanted = False
