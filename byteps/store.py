"""The weights that one process keeps for workers which change them on their own; `staleness` says what to do.

Weights live in the accumulator's type: 16-bit ones are kept in fp32 and rounded for each answer.  An answer is a copy,
made under the partition's lock, since the next difference may come while it is being sent.
"""

import threading
import time
from typing import NamedTuple

from byteps import kernels, wire
from byteps.kernels import NUMPY_DTYPES, Array
from byteps.staleness import Ledger
from byteps.summation import Action, Push
from byteps.wire import Op


class Copy(NamedTuple):
    """A partition's weights as they were when the answers to these pushes became due."""

    key: int
    weights: Array
    due: tuple[Push, ...]


class Shelf:
    """A partition with its bytes."""

    __slots__ = ("ledger", "lock", "since", "weights")

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.lock = threading.Lock()  # guards everything here
        self.weights: Array | None = None
        self.since = 0.0  # the last push

    def copy(self, key: int, due: tuple[Push, ...]) -> Copy | None:
        """Under the lock."""
        if not due:
            return None
        assert self.weights is not None
        dtype = NUMPY_DTYPES[due[0].dtype]
        same = self.weights.dtype == dtype
        weights = self.weights.copy() if same else kernels.finish(self.weights, Op.SUM, 1, dtype)
        return Copy(key, weights, due)


class WeightStore:
    """All weights of one process."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._lock = threading.Lock()  # guards _shelves against a worker's leave, and _left; taken before a shelf's
        self._shelves: dict[int, Shelf] = {}
        self._left: set[int] = set()

    def handle(self, key: int, push: Push, incoming: Array) -> Copy | None:
        """Add what a worker pushed; what is now to be answered.  Raises ProtocolError."""
        shelf = self._shelves.get(key) or self._create(key)
        with shelf.lock:
            action, due = shelf.ledger.handle(push)
            if action is Action.ADOPT:
                shelf.weights = kernels.widen(incoming)
            elif action is Action.ADD:
                assert shelf.weights is not None
                kernels.accumulate(shelf.weights, incoming)
            shelf.since = time.monotonic()
            return shelf.copy(key, due)

    def leave(self, worker: int) -> list[Copy]:
        """A worker has left the job: it holds nobody back."""
        copies = []
        with self._lock:
            self._left.add(worker)
            for key, shelf in self._shelves.items():
                with shelf.lock:
                    copies.append(shelf.copy(key, shelf.ledger.leave(worker)))
        return [copy for copy in copies if copy is not None]

    def oldest(self, now: float) -> wire.Waiting | None:
        """The partition whose held answers have seen nothing happen for longest."""
        with self._lock:
            waiting = [(shelf.since, key, shelf) for key, shelf in self._shelves.items() if shelf.ledger.held]
        if not waiting:
            return None
        since, key, shelf = min(waiting, key=lambda item: item[0])
        with shelf.lock:
            if not shelf.ledger.held:
                return None
            behind = shelf.ledger.behind()
        ready = tuple(worker for worker in range(self._num_workers) if worker not in behind)
        return wire.Waiting(number=key >> 32, seconds=now - since, ready=ready)

    def summary(self) -> str:
        """What was added, and how stale it was; empty if nothing was."""
        ledgers = [shelf.ledger for shelf in list(self._shelves.values())]
        if not (added := sum(ledger.added for ledger in ledgers)):
            return ""
        missed = sum(ledger.missed for ledger in ledgers) / added
        most = max(ledger.most_missed for ledger in ledgers)
        return f"added {added} differences, whose workers had not seen {missed:.1f} others (at most {most}) yet"

    def _create(self, key: int) -> Shelf:
        with self._lock:
            return self._shelves.setdefault(key, Shelf(Ledger(self._num_workers, self._left)))
