"""The Summation Service's rule for weights that workers change on their own, without their bytes (paper, section 5).

Every worker keeps its optimiser.  After a step it pushes the difference w' - w; the service adds it to its weights on
arrival and answers with the newest ones, which replace the worker's.  So the weights are w0 plus the sum of all
differences, whatever their order: Theorem 2 says that they are those of an asynchronous parameter server that gets the
same pushes in the same order.

A worker's clock is the number of differences it has pushed.  With a staleness bound of s (Ho et al., NIPS 2013) the
answer to a worker at clock c is held until no clock is below c - s.  Hence a worker goes on at clock c only if it is
at most s ahead of the slowest, and then has every difference of clocks up to c - s.  With s = 0 all answers of a clock
are the same, after all its pushes: BSP.  Without a bound nothing is held.

A worker's first push sets the weights if it has bytes, which one worker's must have; those of 0 bytes wait for it.
A later push of 0 bytes says that its worker is out of steps: it holds nobody back, and is answered when all are out
or have left, with the final weights, the same ones for all.  Then clocks begin anew.

How stale gradients were is counted: the differences of others that came between a worker's answer and its next push.

Pure: one event in, what to do about it out; the caller does the I/O.
"""

from collections.abc import Collection
from typing import NamedTuple

from byteps.summation import Action, Push
from byteps.wire import ROUNDS, ProtocolError


class Outcome(NamedTuple):
    """What the caller does: ADOPT or ADD the bytes (None: there are none), then answer these pushes alike."""

    action: Action | None
    due: tuple[Push, ...]


class Ledger:
    """One partition: the workers' clocks, and the pushes whose answers are held."""

    __slots__ = (
        "_rounds",
        "_seen",
        "_set",
        "_template",
        "added",
        "clocks",
        "held",
        "left",
        "missed",
        "most_missed",
        "out",
    )

    def __init__(self, num_workers: int, left: Collection[int] = ()) -> None:
        """`left`: the workers that have left the job already."""
        self.clocks = [0] * num_workers
        self.held: dict[int, Push] = {}
        self.out: set[int] = set()  # of steps
        self.left = set(left)  # the job
        self.added = 0  # differences
        self.missed = 0  # for each of them, those of others that its worker had not seen when it computed it; and
        self.most_missed = 0
        self._seen = [0] * num_workers  # of `added`, with the last answer
        self._rounds: dict[int, int] = {}  # the next one of each worker that has pushed
        self._set = False  # whether there are weights
        self._template: Push | None = None  # the first push, if possible with bytes

    def handle(self, push: Push) -> Outcome:
        """Raises ProtocolError if the push does not fit the ones before it."""
        worker = push.worker
        first = worker not in self._rounds
        self._check(push)
        action = None
        if push.nbytes:
            if first and self._set:
                raise ProtocolError(
                    f"worker {worker} set weights that are set; give every rank the same root, which sets them"
                )
            if not first and not self._set:
                raise ProtocolError(f"worker {worker} pushed a difference to weights that nobody has set")
            action = Action.ADOPT if first else Action.ADD
            self._set = True
            if not first:
                self.clocks[worker] += 1
                self._count(worker)
        elif not first:
            self.out.add(worker)
        self._rounds[worker] = (push.round + 1) % ROUNDS
        self.held[worker] = push
        return Outcome(action, self._release())

    def leave(self, worker: int) -> tuple[Push, ...]:
        """A worker has left the job; the pushes to answer now."""
        self.left.add(worker)
        return self._release()

    def behind(self) -> set[int]:
        """The workers for which the held answers wait."""
        if not self.held:
            return set()
        everybody = set(range(len(self.clocks)))
        if not self._set:
            return everybody - set(self._rounds) or everybody
        active = self._active()
        if not self.out.isdisjoint(self.held):
            return active
        needed = max(self.clocks[push.worker] - (push.members - 1) for push in self.held.values())
        return {worker for worker in active if self.clocks[worker] < needed}

    def _check(self, push: Push) -> None:
        expected = self._rounds.get(push.worker, 0)
        if push.round != expected:
            raise ProtocolError(f"worker {push.worker} pushed round {push.round}, its next one is {expected}")
        if push.worker in self.held:
            raise ProtocolError(f"worker {push.worker} pushed round {push.round} before the answer to the one before")
        template = self._template
        if template is not None and (
            (push.dtype, push.members) != (template.dtype, template.members)
            or (push.nbytes != template.nbytes and push.nbytes and template.nbytes)
        ):
            raise ProtocolError(
                f"worker {template.worker} pushed {_describe(template)}, worker {push.worker} {_describe(push)}"
            )
        if template is None or not template.nbytes:
            self._template = push

    def _count(self, worker: int) -> None:
        missed = self.added - self._seen[worker]
        self.added += 1
        self.missed += missed
        self.most_missed = max(self.most_missed, missed)

    def _active(self) -> set[int]:
        return set(range(len(self.clocks))) - self.out - self.left

    def _release(self) -> tuple[Push, ...]:
        """Answer the held pushes whose time has come."""
        if not self._set or not self.held:
            return ()
        active = self._active()
        slowest = min((self.clocks[worker] for worker in active), default=0)
        due = tuple(
            push
            for worker, push in self.held.items()
            if not active
            or (worker not in self.out and (not push.members or self.clocks[worker] - slowest < push.members))
        )
        if not active:
            self.out.clear()
            self.clocks = [0] * len(self.clocks)
        for push in due:
            del self.held[push.worker]
            self._seen[push.worker] = self.added
        return due


def _describe(push: Push) -> str:
    within = f" within {push.members - 1} clocks" if push.members else ""
    return f"{push.describe().partition(' of ')[0]}{within}"
