"""The thread of a worker that copies and adds up for the sums of its machine.

One is enough: the workers of a machine are several processes already.  What other workers wait for goes first.
"""

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Final

ADD: Final = 0  # all workers' parts are needed before a sum can leave
FILL: Final = 1  # a slot
FETCH: Final = 2  # a result


class Jobs:
    """A queue of work by priority, and the thread that does it."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        """`failed` is told what a job raised."""
        self._failed = failed
        self._queue: list[tuple[int, int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="local sums", daemon=True)
        self._thread.start()

    def put(self, priority: int, kind: int, job: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._queue, (-priority, kind, next(self._numbers), job))
            self._changed.notify()

    def stop(self) -> None:
        """No further job begins; returns when the one under way is over."""
        with self._changed:
            self._over = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._over:
                    self._changed.wait()
                if self._over:
                    return
                job = heapq.heappop(self._queue)[3]
            try:
                job()
            except Exception as error:  # MemoryError, or a mistake of ours: the job must not wait for ever
                self._failed(error)
            del job  # it refers to tensors of the user's
