"""A process on some host: what `subprocess.Popen[bytes]` offers, and a signal for its whole group."""

import contextlib
import os
import signal
import subprocess
from typing import IO, Any, Protocol

Stream = int | IO[Any] | None  # of a process to be: subprocess.PIPE, DEVNULL, a file, or None to inherit


class Process(Protocol):
    """One process that a stage started; it leads a session and a process group of its own."""

    # read-only here, so that a class may hold them as it likes
    @property
    def pid(self) -> int:
        """On its host: on a fleet the numbers of two hosts may coincide."""
        ...

    @property
    def stdin(self) -> IO[Any] | None: ...
    @property
    def stdout(self) -> IO[Any] | None: ...
    @property
    def stderr(self) -> IO[Any] | None: ...
    @property
    def returncode(self) -> int | Any | None: ...

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or None while it runs.  -9 when its host was lost."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """subprocess.TimeoutExpired after `timeout` seconds."""
        ...

    def communicate(self, input: bytes | None = None, timeout: float | None = None) -> tuple[Any, Any]: ...

    def kill(self) -> None:
        """SIGKILL for the process alone; does nothing to one that is over."""
        ...

    def end(self, sign: signal.Signals) -> None:
        """A signal for its whole process group; does nothing to one that is over."""
        ...


class LocalProcess(subprocess.Popen[bytes]):
    """A process on this machine that leads a session of its own; start it with `start_new_session=True`."""

    def end(self, sign: signal.Signals) -> None:
        """A signal for its whole process group; does nothing to one that is over."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, sign)
