"""This process's membership in a job: what `init` starts and `shutdown` ends, and how tensors get their names.

The numpy and the torch API share it; they differ only in how they see a tensor's bytes.
"""

import atexit
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from byteps.communication import Pending
from byteps.errors import BytePSError, StartError
from byteps.launcher import settings_from_environment
from byteps.local_worker import LocalWorker, Participant
from byteps.settings import Settings
from byteps.trace import Trace
from byteps.wire import DTYPES, Op, TensorSpec
from byteps.worker import Worker

LOCAL_GROUP: Final = "local group"
"""Among a session's plugins: the group of its machine's workers, if they are summed together."""


@dataclass(slots=True)
class PendingTensor:
    """What every handle has: the tensor's name, and what to wait for (None: complete)."""

    name: str
    pending: Pending | None

    @property
    def done(self) -> bool:
        return self.pending is None or not self.pending.locked()


class Session:
    """One worker's API state."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.worker = _join(settings) if settings.distributed else None
        self.trace = Trace(Path(settings.trace), self.rank, settings.trace_steps) if settings.trace else None
        self.plugins: dict[str, Any] = {}  # what a framework's API keeps for as long as the job lasts
        if isinstance(self.worker, LocalWorker):
            self.plugins[LOCAL_GROUP] = self.worker.group  # for GPUs, which fill its slots themselves
        self.closing: list[Callable[[], None]] = []  # what it still has to do before the job is left in order
        self._unnamed: Counter[str] = Counter()

    @property
    def rank(self) -> int:
        return self.worker.rank if self.worker else 0

    def submit(self, spec: TensorSpec, source: memoryview, target: memoryview, priority: int) -> Pending | None:
        """Start a push_pull; None if it is complete already (one worker, or no bytes)."""
        if not isinstance(priority, int):
            raise BytePSError(f"tensor {spec.name!r}: priority={priority!r}; use a whole number, higher is sent first")
        if self.worker is None or spec.nbytes == 0:
            if source is not target:
                target[:] = source
            return None
        timing = self.trace.submitted(spec.name, spec.nbytes) if self.trace is not None else None
        return self.worker.submit(spec, source, target, priority, timing)

    def declare(self, specs: list[TensorSpec]) -> None:
        """Register tensors of at least one byte on all workers together."""
        if self.worker is not None:
            self.worker.declare([spec for spec in specs if spec.nbytes])

    def poll(self, handle: PendingTensor) -> bool:
        """Whether `finish` would return at once."""
        if not handle.done and self.worker is not None:
            self.worker.relax()
        return handle.done

    def finish(self, handle: PendingTensor) -> None:
        """Wait for it; raises the job's error.  Finishing it again does nothing."""
        if handle.pending is not None:
            assert self.worker is not None
            began = time.monotonic_ns() if self.trace is not None and not handle.done else 0
            self.worker.wait(handle.pending)
            if began and self.trace is not None:
                self.trace.waited(handle.name, began)
            handle.pending = None
        if handle.name:
            self._release_name(handle.name)
            handle.name = ""

    def claim_name(self, spec: TensorSpec) -> TensorSpec:
        """A name for an unnamed tensor: the first free one of its kind.

        It is free again after synchronize(), a point that all ranks of the same program pass in the same order; so
        ranks agree, and a loop that reduces its loss every step does not register a new tensor every step.
        """
        kind = f"unnamed/{spec.dtype}/{'x'.join(map(str, spec.shape))}/{spec.op.name.lower()}"
        self._unnamed[kind] += 1
        return TensorSpec(name=f"{kind}/{self._unnamed[kind]}", shape=spec.shape, dtype=spec.dtype, op=spec.op)

    def _release_name(self, name: str) -> None:
        if name.startswith("unnamed/"):
            self._unnamed[name.rpartition("/")[0]] -= 1


def _join(settings: Settings) -> Participant:
    """The job, alone on a machine of the network's or as one of several workers that are summed there."""
    return Worker(settings) if settings.workers_per_machine == 1 else LocalWorker(settings)


_session: Session | None = None
_left: set[tuple[str, int, str]] = set()  # jobs that this process has been in


def _job(settings: Settings) -> tuple[str, int, str]:
    """What tells one job from another: where its scheduler is, and its secret."""
    return settings.root_host, settings.root_port, settings.job_secret


def _leave_to_the_parent() -> None:
    """In a forked child: the job is the parent's, and copies of its sockets would hide its death from its peers."""
    global _session
    if _session is not None and _session.worker is not None:
        _session.worker.abandon()
    _session = None


os.register_at_fork(after_in_child=_leave_to_the_parent)


def init(settings: Settings | None = None) -> None:
    """Join the job that the launcher's variables describe (or `settings`); does nothing if this process is in one.

    Raises StartError if the job does not come together within the start time-out, naming what is missing; and at once
    if this process has left the same job before, which ended with that.
    """
    global _session
    if _session is None:
        settings = settings or settings_from_environment()
        if settings.distributed and _job(settings) in _left:
            raise StartError(
                f"init() after shutdown(): this process has left the job of scheduler {settings.root_host}:"
                f"{settings.root_port}, and a job ends when its workers leave; call shutdown() once, at the end, or "
                "start another job with `byteps launch`"
            )
        _session = Session(settings)
        if _session.trace is not None and (optimizer := sys.modules.get("torch.optim.optimizer")):
            _session.trace.count_steps_of(optimizer)
        atexit.register(_leave_at_exit)


def shutdown() -> None:
    """Leave the job in order.  Called at exit, too, if the script did not."""
    _leave("")


def _leave_at_exit() -> None:
    """The script is over.  If an exception ended it, the others must not wait for what will never come."""
    # Set for an uncaught exception, but also after any error at an interactive prompt.
    error = getattr(sys, "last_value", None)
    if error is None or hasattr(sys, "ps1"):
        _leave("")
    else:
        lines = str(error).splitlines()
        _leave(f"{type(error).__name__}: {lines[0]:.200}" if lines else type(error).__name__)


def _leave(error: str) -> None:
    global _session
    if _session is not None:
        session = _session
        if not error:
            with contextlib.suppress(BytePSError):  # of a job that failed, and has told so
                for close in session.closing:
                    close()
        _session = None
        if session.worker is not None:
            _left.add(_job(session.settings))
            session.worker.shutdown(error)
        if session.trace is not None:
            session.trace.close()
        atexit.unregister(_leave_at_exit)


def current() -> Session:
    if _session is None:
        raise BytePSError("byteps is not initialised in this process; call byteps.init() first")
    return _session


def is_initialized() -> bool:
    """Whether this process is in a job."""
    return _session is not None


def rank() -> int:
    """This worker's rank, 0 to size() - 1."""
    return current().rank


def size() -> int:
    """The number of workers."""
    return current().settings.size


def local_rank() -> int:
    """This worker's rank on its machine."""
    return current().settings.local_rank


def local_size() -> int:
    """The number of workers on this machine."""
    return current().settings.local_size


def make_spec(name: str | None, shape: tuple[int, ...], dtype: str, average: bool | None, op: str | None) -> TensorSpec:
    """The declaration of a tensor; errors name what was given and what is allowed.

    Without a name, it is still to be claimed.
    """
    if dtype not in DTYPES:
        raise BytePSError(f"tensor {name!r}: element type {dtype} is not supported; use one of {', '.join(DTYPES)}")
    if op not in (None, "average", "sum"):
        raise BytePSError(f"tensor {name!r}: op={op!r} is none; use 'average' or 'sum'")
    if average is not None and average not in (True, False):
        raise BytePSError(f"tensor {name!r}: average={average!r}; use True or False")
    if average is not None and op is not None and bool(average) != (op == "average"):
        raise BytePSError(f"tensor {name!r}: average={average} contradicts op={op!r}; give one of them")
    chosen = Op.SUM if op == "sum" or (average is not None and not average) else Op.AVERAGE
    if name is not None:
        if not isinstance(name, str) or not name or name.startswith("unnamed/"):
            raise BytePSError(f"name {name!r} is not usable; give a non-empty str that does not begin with 'unnamed/'")
        if name.encode(errors="ignore").decode() != name:
            raise BytePSError(f"name {name!r} is not usable; it has characters that UTF-8 cannot encode")
        name = str(name)  # numpy.str_ is a str, too
    return TensorSpec(name=name or "", shape=shape, dtype=dtype, op=chosen)
