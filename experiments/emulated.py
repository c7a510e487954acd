"""The emulated cluster as a stage: `scripts.netns.Lab` in the words of `scripts.stage`.

All hosts are this one machine, so one watch serves all, and /proc tells the processor time of each.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from scripts import calibrate, latency
from scripts.fidelity import Watch
from scripts.lab import NIC
from scripts.netns import Counters, Lab, Stream
from scripts.process import LocalProcess

ORPHAN_SECONDS: Final = 5.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def end_orphans(pids: Callable[[], list[int]]) -> int:
    """SIGKILL for all of these local processes, until none is left or the deadline has passed; how many there were."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    found = len(pids())
    while (orphans := pids()) and time.monotonic() < deadline:
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return found


def cpu_seconds(pids: Iterable[int], host_of: Callable[[int], str]) -> dict[str, float]:
    """User and system time of these local processes by host, finished children included."""
    seconds: dict[str, float] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            host = host_of(pid)
            seconds[host] = seconds.get(host, 0.0) + sum(int(value) for value in fields[11:15]) / _TICKS_PER_SECOND
    return seconds


class Emulated:
    """A lab that is up; whoever made it takes it down."""

    provenance: Literal["emulated", "measured"] = "emulated"

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def address(self, host: str) -> str:
        return self._lab.spec.address(host)

    def more_addresses(self, host: str) -> tuple[str, ...]:
        return tuple(self._lab.spec.address(host, nic) for nic in range(1, self._lab.spec.nics))

    def interface(self, host: str) -> str:
        return NIC

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
    ) -> LocalProcess:
        if env is not None:  # ours choose for themselves: what the network has, as on hosts
            env = {**env, "BYTEPS_CONGESTION_CONTROL": self._lab.spec.congestion_control}
        return self._lab.popen(host, argv, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)

    def pids(self) -> list[int]:
        return self._lab.pids()

    def end_orphans(self) -> int:
        return end_orphans(self.pids)

    def cpu_seconds(self) -> dict[str, float]:
        return cpu_seconds(self.pids(), self._lab.host_of)

    def all_counters(self) -> dict[str, Counters]:
        return self._lab.all_counters()

    def watch(self) -> Watch:
        return Watch(self.pids)

    def calibrate(self, seconds: float) -> calibrate.Calibration:
        return calibrate.calibrate(self._lab, seconds=seconds)

    def one_way_seconds(self) -> float:
        return latency.one_way_seconds(self._lab)

    def facts(self) -> dict[str, str]:
        return {}
