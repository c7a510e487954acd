"""Collectives under way, as torch.distributed sees them: a Work to wait for, or a future to chain on.

Whoever waits first completes the work, in its own thread: a caller of `wait`, or, where somebody asked for a future,
one thread that waits for all such works in the order in which they were started.  So a backward pass is never blocked,
and nothing is handed between threads where nobody asked for it.

A C++ future cannot be given an error from Python except by a callback that raises; DDP then raises a RuntimeError with
our text in it.  What is started in a backward pass is therefore also waited for at its end, in Python, before DDP
itself looks: the script sees the job's own error.
"""

import concurrent.futures
import inspect
import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final, TypeVar

import torch
from torch._C._distributed_c10d import Work as TorchWork
from torch._compile import _disable_dynamo
from torch.futures import Future

from byteps.communication import Pending
from byteps.errors import BytePSError
from byteps.session import Session

# A round to wait for; or one that starts when its tensor has been copied to the host.
Wait = Pending | concurrent.futures.Future[Pending | None]
_NO_TIMEOUT: Final = timedelta(0)
_HOST: Final = torch.device("cpu")
_C = TypeVar("_C")


def opaque(cls: type[_C]) -> type[_C]:
    """torch.compile is not to look into this class: C++ calls it in the midst of what is compiled.

    By torch's own decorator, which costs nothing before the first call; that of torch.compiler imports the compiler.
    """
    for name, each in list(vars(cls).items()):
        if inspect.isfunction(each) and not name.startswith("__"):
            setattr(cls, name, _disable_dynamo(each))
    return cls


@opaque
class Work(TorchWork):
    """Rounds under way; `finish` then does what is left to do, and returns the result."""

    def __init__(
        self,
        session: Session,
        what: str,
        waits: Sequence[Wait],
        finish: Callable[[], Any],
        seconds: float,
        device: torch.device = _HOST,
    ) -> None:
        """`what` names it in errors; it has so many seconds; `device` is where the result is."""
        super().__init__()
        self._session = session
        self._what = what
        self._waits = waits
        self._finish = finish
        self._seconds = seconds
        self._devices: list[int | str | torch.device] = [] if device.type == "cpu" else [device]
        self._deadline = time.monotonic() + seconds
        self._lock = threading.Lock()  # guards all that follows
        self._settled = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._raw: Future[None] | None = None
        self._future: Future[Any] | None = None

    # ---- what torch calls ----

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Until it is over; raises the job's error, or says that it took longer than the time-out."""
        limit = timeout.total_seconds()
        deadline = time.monotonic() + limit if limit > 0 else self._deadline
        self._complete(deadline, limit if limit > 0 else self._seconds)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """Then the results are in their places, too."""
        if self._settled or all(map(_over, self._waits)):
            self._complete(self._deadline, self._seconds)
            return True
        if self._session.worker is not None:
            self._session.worker.relax()
        return False

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The error it ended with, if it has."""
        return self._error if self.is_completed() else None

    def result(self) -> Any:
        self.wait()
        return self._result

    def get_future(self) -> "Future[Any]":
        """Completed, with the result, by whoever completes the work."""
        with self._lock:
            if self._future is not None:
                return self._future
            raw: Future[None] = Future(devices=self._devices)
            self._future = raw.then(self._outcome)
            settled = self._settled
            if not settled:
                self._raw = raw
        if settled:
            raw.set_result(None)
            return self._future
        _waiter().put(self)
        if torch._C._current_graph_task_id() != -1:
            torch.autograd.Variable._execution_engine.queue_callback(self.synchronize)
        return self._future

    # ---- completion ----

    def await_quietly(self) -> None:
        """For the thread that waits on behalf of a future: an error is the future's."""
        try:
            self._complete(self._deadline, self._seconds)
        except Exception as error:
            self._settle(None, error)

    def _complete(self, deadline: float, seconds: float) -> None:
        if self._settled:
            return
        try:
            for wait in self._waits:
                if not self._wait_for(wait, deadline):
                    raise _TooLate(
                        f"{self._what} is not over after {seconds:g} s, the time-out of its call or process group"
                    )
        except _TooLate:
            raise
        except BytePSError as error:
            self._settle(None, error)
            return
        self._settle(self._finish, None)

    def _wait_for(self, wait: Wait | None, deadline: float) -> bool:
        """Whether it is over in time."""
        seconds = max(deadline - time.monotonic(), 0.0)
        if isinstance(wait, concurrent.futures.Future):
            if not concurrent.futures.wait([wait], seconds).done:
                return False
            return self._wait_for(wait.result(), deadline)
        if wait is None or self._session.worker is None:
            return True
        trace = self._session.trace if wait.locked() else None
        began = time.monotonic_ns()
        over = self._session.worker.wait(wait, seconds)
        if trace is not None:
            trace.waited(self._what, began)
        return over

    def _settle(self, finish: Callable[[], Any] | None, error: BaseException | None) -> None:
        """Once: by the first thread that got here."""
        with self._lock:
            if self._settled:
                return
            self._error = error
            if finish is not None:
                try:
                    self._result = finish()
                except BaseException as failure:
                    self._error = failure
            self._settled = True
            raw, self._raw = self._raw, None
        if raw is not None:
            raw.set_result(None)

    def _outcome(self, _: "Future[None]") -> Any:
        if self._error is not None:
            raise self._error
        return self._result


def _over(wait: Wait | None) -> bool:
    if isinstance(wait, concurrent.futures.Future):
        return wait.done() and _over(wait.result())
    return wait is None or not wait.locked()


class _TooLate(BytePSError):
    """Somebody's patience is over, not the work."""


@cache
def _waiter() -> "queue.SimpleQueue[Work]":
    """Works whose futures somebody waits for, for the thread that completes them."""
    works: queue.SimpleQueue[Work] = queue.SimpleQueue()

    def run() -> None:
        while True:
            works.get().await_quietly()

    threading.Thread(target=run, name="completions", daemon=True).start()
    return works
