"""One launch: start a contender's processes on an emulated cluster, lead its workers through the iterations in
lock-step, and bring home what they measured.

The timed region of a rank is the contender's call alone (see `baselines.driver`).  The machine is watched while a
timed transfer runs and at no other time: writing the data and checking the sums load the cores, and would be mistaken
for a contender that starves.  The NIC counters are read before the first and after the last timed transfer; in between
nothing but the contender sends.

A launch that fails costs one record, not the run: its error comes back as an outcome.
"""

import contextlib
import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from baselines.contenders import PORT, Contender, Launch, Machine
from experiments.crew import STOP_SECONDS, Crew, LaunchError
from experiments.record import Case, Fidelity, NicBytes, NicCounters, OracleCheck
from scripts.fidelity import Watch
from scripts.lab import NIC
from scripts.netns import Lab

START_SECONDS = 180.0  # until all ranks are up: imports of a framework, many at a time on two cores
SLACK_SECONDS = 60.0
SLOWEST_FACTOR = 25.0  # a transfer that takes longer than this many M/B hangs (a lone server for 8 workers takes 16)
CHECK_SECONDS = 60.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(kw_only=True)
class Outcome:
    """What a launch brought home; filled as it proceeds, so that a failed one keeps what it had."""

    startup_seconds: float = 0.0
    warmup_seconds: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    nics: dict[str, NicBytes] = field(default_factory=dict)
    max_error: float = 0.0
    checked: int = 0
    cpu_seconds: float = 0.0
    watches: list[Watch] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def oracle(self) -> OracleCheck | None:
        if not self.checked:
            return None
        return OracleCheck(max_error=self.max_error, tolerance=0.0, checked=self.checked, passed=self.max_error == 0.0)

    @property
    def idle_share(self) -> float:
        shares = [watch.fidelity.idle_share for watch in self.watches]
        return sum(shares) / len(shares) if shares else 0.0

    @property
    def fidelity(self) -> Fidelity:
        """The worst timed transfer decides."""
        if not self.watches:
            return Fidelity(reason="no timed transfer was watched")
        seen = [watch.fidelity for watch in self.watches]
        order = ("good", "suspect", "cpu-bound")
        return Fidelity(
            verdict=max((one.verdict for one in seen), key=order.index),
            canary_p99_seconds=max(one.lateness_p99_seconds for one in seen),
            runqueue_share=max(one.run_queue_wait_share for one in seen),
        )


def machines(case: Case, lab: Lab) -> tuple[tuple[Machine, ...], tuple[Machine, ...], Machine]:
    """The case's GPU machines, its CPU machines, and the scheduler's, among the hosts of the lab."""

    def machine(host: str) -> Machine:
        return Machine(host=host, address=lab.spec.address(host), interface=NIC)

    gpus = tuple(machine(f"gpu{i}") for i in range(case.n))
    cpus = tuple(machine(f"cpu{i}") for i in range(case.k))
    return gpus, cpus, machine("scheduler")


def run(case: Case, contender: Contender, lab: Lab, *, logs: Path, tell: Callable[[str], None]) -> Outcome:
    """Run one launch; a failure is an outcome with its error, not an exception."""
    outcome = Outcome()
    assert contender.plan is not None
    gpus, cpus, scheduler = machines(case, lab)
    launch = Launch(
        gpu_machines=gpus,
        cpu_machines=cpus,
        scheduler=scheduler,
        nic_bytes_per_s=case.nic_bytes_per_s,
        nbytes=case.nbytes,
        settings=case.settings,
        secret=secrets.token_hex(16),
        port=PORT + (case.block * 100 + case.position) % 1000,
    )
    crew = Crew(lab, contender.plan(launch), logs)
    try:
        started = time.monotonic()
        with crew:
            tell("starting")
            facts = crew.expect("started", seconds=START_SECONDS)
            outcome.startup_seconds = time.monotonic() - started
            outcome.facts = {key: value for key, value in facts[0].get("facts", {}).items() if key != "rank"}
            _iterate(case, lab, crew, outcome, tell)
            crew.expect("ready", seconds=CHECK_SECONDS)
            crew.say("stop")
            crew.expect("stopped", seconds=STOP_SECONDS)
    except LaunchError as error:
        outcome.error = str(error)
    if crew.killed:
        outcome.facts["killed at the end"] = ", ".join(crew.killed)
    return outcome


def _iterate(case: Case, lab: Lab, crew: Crew, outcome: Outcome, tell: Callable[[str], None]) -> None:
    limit = SLACK_SECONDS + SLOWEST_FACTOR * case.nbytes / case.nic_bytes_per_s
    before: dict[str, NicCounters] = {}
    for iteration in range(case.warmups + case.iterations):
        timed = iteration >= case.warmups
        tell(f"iteration {iteration + 1} of {case.warmups + case.iterations}")
        crew.expect("ready", seconds=CHECK_SECONDS)
        if timed and not before:
            before = _counters(lab)
        with _watched(lab, outcome) if timed else contextlib.nullcontext():
            crew.say("go")
            done = crew.expect("done", seconds=limit)
        (outcome.seconds if timed else outcome.warmup_seconds).append(max(event["seconds"] for event in done))
        if iteration + 1 == case.warmups + case.iterations:
            after = _counters(lab)
            outcome.nics = {host: NicBytes(before=before[host], after=after[host]) for host in after}
        crew.say("check")
        checks = crew.expect("checked", seconds=CHECK_SECONDS)
        outcome.max_error = max(outcome.max_error, *(event["max_error"] for event in checks))
        outcome.checked += len(checks)


@contextlib.contextmanager
def _watched(lab: Lab, outcome: Outcome) -> Iterator[None]:
    cpu = _cpu_seconds(lab)
    with Watch(lab.pids) as watch:
        yield
    outcome.cpu_seconds += _cpu_seconds(lab) - cpu
    outcome.watches.append(watch)


def _counters(lab: Lab) -> dict[str, NicCounters]:
    """Of every host; the contender is at rest, so the two readings need not be simultaneous."""
    return {
        host: NicCounters(
            tx_bytes=seen.tx_bytes,
            rx_bytes=seen.rx_bytes,
            tx_packets=(packets := _packets(lab, host))[0],
            rx_packets=packets[1],
            tx_wire_bytes=seen.tx_wire_bytes,
            rx_wire_bytes=seen.rx_wire_bytes,
            dropped_packets=seen.dropped_packets,
        )
        for host, seen in lab.all_counters().items()
    }


def _packets(lab: Lab, host: str) -> tuple[int, int]:
    """Packets sent and received: each carries one header, which `Counters` counts as bytes of the NIC."""
    command = ["ip", "-n", lab.namespace(host), "-s", "-j", "link", "show", "dev", NIC]
    answer = subprocess.run(command, capture_output=True, check=True, timeout=CHECK_SECONDS).stdout
    stats = json.loads(answer)[0]["stats64"]
    return stats["tx"]["packets"], stats["rx"]["packets"]


def _cpu_seconds(lab: Lab) -> float:
    """User and system time of everything in the lab, finished children included."""
    ticks = 0
    for pid in lab.pids():
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(value) for value in fields[11:15])
    return ticks / _TICKS_PER_SECOND
