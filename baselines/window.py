"""The bounded window of `baselines.strategies`: so many bytes outstanding and no more, the most urgent pieces first.

Whoever makes room calls the contender: `submit` when a piece comes and the credit allows it, else a thread that waits
for the outstanding pieces in the order of their hand-over and gives their credit back.  One piece may always be
outstanding, however large.  Rank 0 chooses the next piece, and the others take the pieces that it chose in the same
order (see `baselines.order`), each when its tensor is ready and its credit allows.  As the order is one and the credit
too, the first piece that is not through everywhere can be handed over on every rank: nobody waits for ever.
Standard library only.
"""

import heapq
import threading
from collections import deque
from collections.abc import Sequence

from baselines.order import Follower, Leader
from baselines.session import Array, Session


class Window:
    """Between a strategy and the contender."""

    def __init__(self, base: Session, order: Leader | Follower, *, credit_nbytes: int) -> None:
        self._base = base
        self._order = order
        self._credit_nbytes = credit_nbytes
        self._changed = threading.Condition()  # guards all that follows, and calls of the contender's `submit`
        self._nbytes: Sequence[int] = ()
        self._urgency: Sequence[int] = ()
        self._ready: list[tuple[int, int]] = []  # rank 0: a heap of urgency (smaller first) and piece
        self._submitted: set[int] = set()  # the others: pieces of tensors that are ready
        self._decided: deque[int] = deque()  # and what rank 0 chose
        self._outstanding: deque[int] = deque()
        self._outstanding_nbytes = 0
        self._results: dict[int, Array] = {}
        self._failure: BaseException | None = None
        self._closing = False
        self._threads = [threading.Thread(target=self._collect, name="strategy-window", daemon=True)]
        if isinstance(order, Follower):
            self._threads.append(
                threading.Thread(target=self._follow, args=(order,), name="strategy-order", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    def begin(self, nbytes: Sequence[int], urgency: Sequence[int]) -> None:
        """A workload of pieces of these sizes; nothing is outstanding."""
        with self._changed:
            self._nbytes, self._urgency = nbytes, urgency
            self._results = {}

    def submit(self, pieces: Sequence[int]) -> None:
        with self._changed:
            self._raise_failure()
            for piece in pieces:
                self._results.pop(piece, None)
                if isinstance(self._order, Leader):
                    heapq.heappush(self._ready, (self._urgency[piece], piece))
                else:
                    self._submitted.add(piece)
            self._hand_over()

    def wait(self, pieces: Sequence[int]) -> list[Array]:
        """The sums of these pieces; raises what ended a thread."""
        with self._changed:
            for piece in pieces:
                while piece not in self._results:
                    self._raise_failure()
                    self._changed.wait()
            return [self._results[piece] for piece in pieces]

    def close(self) -> None:
        """After what is outstanding."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._threads[0].join()
        self._order.close()
        for thread in self._threads:
            thread.join()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"{type(self._failure).__name__}: {self._failure}") from self._failure

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _next(self) -> int | None:
        """The piece whose turn it is, if its tensor is ready."""
        if isinstance(self._order, Leader):
            return self._ready[0][1] if self._ready else None
        return self._decided[0] if self._decided and self._decided[0] in self._submitted else None

    def _hand_over(self) -> None:
        """As much as the credit allows, with `_changed` held: the contender is called by one thread at a time."""
        while (piece := self._next()) is not None:
            nbytes = self._nbytes[piece]
            if self._outstanding and self._outstanding_nbytes + nbytes > self._credit_nbytes:
                return
            if isinstance(self._order, Leader):
                heapq.heappop(self._ready)
                self._order.announce(piece)
            else:
                self._submitted.remove(self._decided.popleft())
            self._base.submit(piece)
            self._outstanding.append(piece)
            self._outstanding_nbytes += nbytes
            self._changed.notify_all()

    def _follow(self, order: Follower) -> None:
        try:
            for pieces in order.decisions():
                with self._changed:
                    self._decided.extend(pieces)
                    self._hand_over()
            raise ConnectionError("rank 0, which decides the order, has left")
        except BaseException as error:
            self._fail(error)

    def _collect(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._outstanding or self._closing)
                    if not self._outstanding:
                        return
                    piece = self._outstanding[0]
                result = self._base.wait(piece)
                with self._changed:
                    self._outstanding.popleft()
                    self._outstanding_nbytes -= self._nbytes[piece]
                    self._results[piece] = result
                    self._hand_over()
                    self._changed.notify_all()
        except BaseException as error:
            self._fail(error)
