"""Launches on this machine itself: processes over loopback, without an emulated cluster.

The same driver, lock-step and checks as on the emulated cluster (`experiments.launch`); what is measured is software,
and nothing shapes the link.  CPU seconds are read from the processes' own clocks (clock_gettime of another process),
exact to the microsecond, before and after every timed transfer and not while data is written or sums are checked.
"""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, cast

import msgspec

from baselines.launch import Contender, Launch, Machine
from experiments import catalogue
from experiments.crew import STOP_SECONDS, Crew, LaunchError
from experiments.record import Case, OracleCheck, Record
from experiments.run import blank_record
from scripts.netns import Lab

START_SECONDS = 60.0
TRANSFER_SECONDS = 120.0
LOOPBACK = "127.0.0.1"


class ThisMachine:
    """Stands in for `Lab` where processes share this machine's own network: "hosts" are only names."""

    def __init__(self) -> None:
        self._started: dict[int, str] = {}  # session id -> host

    def popen(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> "subprocess.Popen[bytes]":
        popen = subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
        )
        self._started[popen.pid] = host
        return popen

    def pids(self, prefix: str = "") -> list[int]:
        """Every live process of the hosts whose name begins so, grandchildren included."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                    host = self._started.get(int(fields[3]))
                    if host is not None and host.startswith(prefix) and fields[0] != "Z":
                        found.append(int(entry))
        return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of these processes so far."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += time.clock_gettime_ns((~pid << 3) | 2)  # the kernel's CPUCLOCK_SCHED of a process
    return total * 1e-9


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as sock:
        return int(sock.getsockname()[1])


def run(case: Case, contender: Contender, *, logs: Path) -> Record:
    """One launch; a failure is a record with its error."""
    assert contender.plan is not None
    result = blank_record(case, contender, "measured")
    launch = Launch(
        gpu_machines=tuple(_machine(f"gpu{i}") for i in range(case.n)),
        cpu_machines=tuple(_machine(f"cpu{i}") for i in range(case.k)),
        scheduler=_machine("scheduler"),
        nic_bytes_per_s=0.0,
        nbytes=case.nbytes,
        settings=case.settings,
        scale=case.scale,
        secret=secrets.token_hex(16),
        port=free_port(),
    )
    here = ThisMachine()
    crew = Crew(cast(Lab, here), contender.plan(launch), logs)
    started = time.monotonic()
    try:
        with crew:
            facts = crew.expect("started", seconds=START_SECONDS)[0].get("facts", {})
            startup = time.monotonic() - started
            result = msgspec.structs.replace(_iterate(case, here, crew, result), startup_seconds=startup, facts=facts)
            crew.say("stop")
            crew.expect("stopped", seconds=STOP_SECONDS)
    except LaunchError as error:
        result = msgspec.structs.replace(result, seconds=[], error=str(error))
    return result


def _machine(host: str) -> Machine:
    return Machine(host=host, address=LOOPBACK, interface="lo")


def _iterate(case: Case, here: ThisMachine, crew: Crew, result: Record) -> Record:
    warmups: list[float] = []
    seconds: list[float] = []
    cpu, worst, checked = 0.0, 0.0, 0
    pids = [pid for pid in here.pids() if pid not in here.pids("scheduler")]
    tensors = catalogue.of_case(case.workload, case.nbytes, case.scale, case.dilation)
    crew.say("workload " + json.dumps({"tensors": [asdict(tensor) for tensor in tensors]}))
    crew.expect("declared", seconds=START_SECONDS)
    crew.expect("ready", seconds=TRANSFER_SECONDS)
    for iteration in range(case.warmups + case.iterations):
        before = cpu_seconds(pids)
        crew.say("go")
        done = crew.expect("done", seconds=TRANSFER_SECONDS)
        spent = cpu_seconds(pids) - before
        slowest = max(event["seconds"] for event in done)
        if iteration < case.warmups:
            warmups.append(slowest)
        else:
            seconds.append(slowest)
            cpu += spent
        crew.say("check")
        checks = crew.expect("checked", seconds=TRANSFER_SECONDS)
        worst = max(worst, *(event["max_error"] for event in checks))
        checked += len(checks)
        crew.expect("ready", seconds=TRANSFER_SECONDS)
    return msgspec.structs.replace(
        result,
        warmup_seconds=warmups,
        seconds=seconds,
        cpu_seconds=cpu,
        oracle=OracleCheck(max_error=worst, tolerance=0.0, checked=checked, passed=worst == 0.0),
    )
