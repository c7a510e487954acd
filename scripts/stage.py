"""Where launches happen, as `experiments` sees it: named hosts on which processes start and counters are read.

Implemented by the emulated cluster (around `scripts.netns.Lab`) and by real hosts (`scripts.fleet.Fleet`).  A process
behaves like `subprocess.Popen[bytes]`; its pipes are real pipes, so `select` works on them, wherever it runs.
"""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from scripts.calibrate import Calibration
from scripts.fidelity import Fidelity
from scripts.netns import Counters, Stream


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


class Watched(Protocol):
    """What `Stage.watch` gives."""

    @property
    def fidelity(self) -> Fidelity:
        """After the with block; of several machines, the worst of each figure."""
        ...


class Stage(Protocol):
    """Hosts by name.  Every method may raise `scripts.leftovers.LabError`, which names the host and what to do."""

    @property
    def provenance(self) -> Literal["emulated", "measured"]: ...

    def address(self, host: str) -> str: ...

    def interface(self, host: str) -> str:
        """The name of the host's first NIC."""
        ...

    def popen(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> Process: ...

    def pids(self) -> list[int]:
        """Every live process that `popen` or its processes started; of several machines, numbers may coincide."""
        ...

    def end_orphans(self) -> int:
        """SIGKILL for every process of `pids`, until none is left; returns how many there were.  Deadline 5 s."""
        ...

    def cpu_seconds(self) -> dict[str, float]:
        """By host: user and system time of its live processes and of their finished children."""
        ...

    def all_counters(self) -> dict[str, Counters]: ...

    def watch(self) -> AbstractContextManager[Watched]: ...

    def calibrate(self, seconds: float) -> Calibration: ...

    def one_way_seconds(self) -> float: ...

    def facts(self) -> dict[str, str]:
        """What records say about the hosts."""
        ...
