"""The bounded window of `baselines.strategies`: the most urgent pieces first, so many bytes outstanding and no more.

Whoever makes room calls the contender: `submit` when a piece comes and the credit allows it, else the window's thread,
which waits for outstanding pieces in the order of their hand-over and gives their credit back.  One piece may always be
outstanding, however large.

Ranks whose orders differ could each have filled their credit with pieces that the others hold back, and would wait for
each other for ever.  So if nothing comes back for a while although somebody waits, a further credit is lent until the
window is within its own again.  Slow pieces look the same, so each time the while becomes twice as long.
Standard library only.
"""

import heapq
import sys
import threading
from collections import deque
from collections.abc import Sequence

from baselines.session import Array, Session

STALL_SECONDS = 0.25
LONGEST_STALL_SECONDS = 4.0


class Window:
    """Between a strategy and the contender; `_changed` guards all that follows it."""

    def __init__(self, base: Session, *, credit_nbytes: int, may_stall: bool) -> None:
        self._base = base
        self._credit_nbytes = credit_nbytes
        self._may_stall = may_stall  # whether the order may differ between ranks
        self._changed = threading.Condition()
        self._nbytes: Sequence[int] = ()
        self._urgency: Sequence[int] = ()
        self._queue: list[tuple[int, int]] = []  # urgency (smaller first), piece
        self._outstanding: deque[int] = deque()
        self._outstanding_nbytes = 0
        self._lent_nbytes = 0
        self._patience_seconds = STALL_SECONDS
        self._results: dict[int, Array] = {}
        self._num_answers = 0
        self._failure: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="strategy-window", daemon=True)
        self._thread.start()

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
                heapq.heappush(self._queue, (self._urgency[piece], piece))
            self._hand_over()

    def wait(self, pieces: Sequence[int]) -> list[Array]:
        """The sums of these pieces; raises what ended the thread."""
        with self._changed:
            for piece in pieces:
                while piece not in self._results:
                    self._raise_failure()
                    seen = self._num_answers
                    if not self._changed.wait(self._patience_seconds) and seen == self._num_answers:
                        self._lend()
            return [self._results[piece] for piece in pieces]

    def close(self) -> None:
        """After what is outstanding."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"{type(self._failure).__name__}: {self._failure}") from self._failure

    def _lend(self) -> None:
        if self._may_stall and self._queue and self._outstanding:
            self._lent_nbytes = self._outstanding_nbytes
            stall = f"nothing came back for {self._patience_seconds} s, {self._outstanding_nbytes} bytes outstanding"
            print(f"strategy: {stall}; {self._credit_nbytes} more are allowed", file=sys.stderr, flush=True)
            self._patience_seconds = min(2 * self._patience_seconds, LONGEST_STALL_SECONDS)
            self._hand_over()

    def _hand_over(self) -> None:
        """As much as the credit allows, with `_changed` held: the contender is called by one thread at a time."""
        while self._queue:
            nbytes = self._nbytes[self._queue[0][1]]
            if self._outstanding and self._outstanding_nbytes + nbytes > self._credit_nbytes + self._lent_nbytes:
                return
            piece = heapq.heappop(self._queue)[1]
            self._base.submit(piece)
            self._outstanding.append(piece)
            self._outstanding_nbytes += nbytes
            self._changed.notify_all()

    def _run(self) -> None:
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
                    if self._outstanding_nbytes <= self._credit_nbytes:
                        self._lent_nbytes = 0
                    self._results[piece] = result
                    self._num_answers += 1
                    self._hand_over()
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
