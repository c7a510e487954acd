"""Where launches happen, as `experiments` sees it: named hosts on which processes start and counters are read.

Implemented by the emulated cluster (around `scripts.netns.Lab`) and by real hosts (`scripts.fleet.Fleet`).  A process
behaves like `subprocess.Popen[bytes]`; its pipes are real pipes, so `select` works on them, wherever it runs.
"""

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol

from scripts.calibrate import Calibration
from scripts.fidelity import Fidelity
from scripts.netns import Counters
from scripts.process import Process, Stream

__all__ = ["Process", "Stage", "Stream", "Watched"]


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

    def more_addresses(self, host: str) -> tuple[str, ...]:
        """Of its further NICs, where launches use several."""
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
