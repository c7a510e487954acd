"""Launches on this machine itself: processes over loopback, without an emulated cluster.

The same driver, lock-step and checks as on any stage (`experiments.launch`); what is measured is software, and nothing
shapes the link.  CPU seconds are read from the processes' own clocks (clock_gettime of another process), exact to the
microsecond, before and after every timed transfer and not while data is written or sums are checked.
"""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import msgspec

from baselines.launch import Contender
from experiments import launch
from experiments.emulated import end_orphans
from experiments.record import Case, Record
from experiments.run import blank_record
from scripts.calibrate import Calibration
from scripts.fidelity import Fidelity
from scripts.netns import Counters, Stream
from scripts.process import LocalProcess

LOOPBACK = "127.0.0.1"
SCHEDULER = "scheduler"


class ThisMachine:
    """A stage whose "hosts" are only names: processes share this machine's own network."""

    provenance: Literal["emulated", "measured"] = "measured"

    def __init__(self) -> None:
        self._started: dict[int, str] = {}  # session id -> host

    def address(self, host: str) -> str:
        return LOOPBACK

    def more_addresses(self, host: str) -> tuple[str, ...]:
        return ()

    def interface(self, host: str) -> str:
        return "lo"

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
        process = LocalProcess(
            argv, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
        )
        self._started[process.pid] = host
        return process

    def pids(self, prefix: str = "") -> list[int]:
        """Every live process of the hosts whose name begins so, grandchildren included."""
        return [pid for pid, host in self._running() if host.startswith(prefix)]

    def end_orphans(self) -> int:
        return end_orphans(self.pids)

    def cpu_seconds(self) -> dict[str, float]:
        """By host; the scheduler is left out: it waits."""
        seconds: dict[str, float] = {}
        for pid, host in self._running():
            if host != SCHEDULER:
                seconds[host] = seconds.get(host, 0.0) + _clock_seconds(pid)
        return seconds

    def all_counters(self) -> dict[str, Counters]:
        """None: loopback is nobody's NIC."""
        return {}

    @contextlib.contextmanager
    def watch(self) -> Iterator[Any]:
        """Nobody watches: a canary would take its share of what is measured here."""
        yield SimpleNamespace(fidelity=_UNWATCHED)

    def calibrate(self, seconds: float) -> Calibration:
        raise NotImplementedError("loopback has no rate to calibrate")

    def one_way_seconds(self) -> float:
        raise NotImplementedError("loopback is no link between machines")

    def facts(self) -> dict[str, str]:
        return {}

    def _running(self) -> list[tuple[int, str]]:
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                    host = self._started.get(int(fields[3]))
                    if host is not None and fields[0] != "Z":
                        found.append((int(entry), host))
        return found


_UNWATCHED = Fidelity(
    wall_seconds=0.0, lateness_p50_seconds=0.0, lateness_p99_seconds=0.0, run_queue_wait_share=0.0, idle_share=0.0
)


def _clock_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    with contextlib.suppress(OSError):
        return time.clock_gettime_ns((~pid << 3) | 2) * 1e-9  # the kernel's CPUCLOCK_SCHED of a process
    return 0.0


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as sock:
        return int(sock.getsockname()[1])


def run(case: Case, contender: Contender, *, logs: Path) -> Record:
    """One launch; a failure is a record with its error."""
    (outcome,) = launch.run(
        [case], contender, ThisMachine(), logs=logs, tell=lambda _case, _doing: None, port=free_port()
    )
    return msgspec.structs.replace(
        blank_record(case, contender, "measured"),
        startup_seconds=outcome.startup_seconds,
        warmup_seconds=outcome.warmup_seconds,
        seconds=outcome.seconds if not outcome.error else [],
        oracle=outcome.oracle,
        cpu_seconds=sum(outcome.cpu_seconds.values()),
        facts=outcome.facts,
        error=outcome.error,
    )
