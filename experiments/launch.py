"""One launch: start a contender's processes on the hosts of a stage, lead its workers through the iterations in
lock-step, and bring home what they measured.

A launch may serve several cases, which differ in what is synchronised only; each has an outcome of its own.  The timed
region of a rank is the iteration alone (see `baselines.replay`).  The machine is watched while a timed iteration runs
and at no other time: writing the data and checking the sums load the cores, and would be mistaken for a contender that
starves.  The NIC counters are read before the first and after the last timed iteration of a case; in between nothing
but the contender sends.

A launch that fails costs records, not the run: its error comes back in the outcomes that were not complete.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from baselines.launch import PORT, SWITCH, Contender, Launch, Machine
from experiments import catalogue
from experiments.crew import STOP_SECONDS, Crew, LaunchError
from experiments.record import Case, Fidelity, NicBytes, NicCounters, OracleCheck
from scripts.fidelity import Fidelity as Seen
from scripts.fidelity import FidelityError
from scripts.netns import LabError
from scripts.stage import Stage

START_SECONDS = 180.0  # until all ranks are up: imports of a framework, many at a time on two cores
SLACK_SECONDS = 60.0
SLOWEST_FACTOR = 25.0  # a transfer that takes longer than this many M/B hangs (a lone server for 8 workers takes 16)
CHECK_SECONDS = 60.0
UNSHAPED_SECONDS = 60.0  # of a transfer over a link without a rate


@dataclass(kw_only=True)
class Outcome:
    """What a launch brought home; filled as it proceeds, so that a failed one keeps what it had."""

    startup_seconds: float = 0.0
    warmup_seconds: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    nics: dict[str, NicBytes] = field(default_factory=dict)
    max_error: float = 0.0
    checked: int = 0
    cpu_seconds: dict[str, float] = field(default_factory=dict)  # by host
    seen: list[Seen] = field(default_factory=list)  # one per timed iteration
    facts: dict[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def oracle(self) -> OracleCheck | None:
        if not self.checked:
            return None
        return OracleCheck(max_error=self.max_error, tolerance=0.0, checked=self.checked, passed=self.max_error == 0.0)

    @property
    def idle_share(self) -> float:
        shares = [one.idle_share for one in self.seen]
        return sum(shares) / len(shares) if shares else 0.0

    @property
    def fidelity(self) -> Fidelity:
        """The worst timed transfer decides."""
        if not self.seen:
            return Fidelity(reason="no timed transfer was watched")
        order = ("good", "suspect", "cpu-bound")
        return Fidelity(
            verdict=max((one.verdict for one in self.seen), key=order.index),
            canary_p99_seconds=max(one.lateness_p99_seconds for one in self.seen),
            runqueue_share=max(one.run_queue_wait_share for one in self.seen),
        )


def machines(case: Case, stage: Stage) -> tuple[tuple[Machine, ...], tuple[Machine, ...], Machine]:
    """The case's GPU machines, its CPU machines, and the scheduler's, among the hosts of the stage."""

    def machine(host: str) -> Machine:
        rate = case.nics.get(host, case.nic_bytes_per_s)
        return Machine(
            host=host,
            address=stage.address(host),
            interface=stage.interface(host),
            nic_bytes_per_s=rate,
            more_addresses=stage.more_addresses(host),
        )

    gpus = tuple(machine(f"gpu{i}") for i in range(case.n))
    cpus = tuple(machine(f"cpu{i}") for i in range(case.k))
    return gpus, cpus, machine("scheduler")


def run(
    cases: Sequence[Case],
    contender: Contender,
    stage: Stage,
    *,
    logs: Path,
    tell: Callable[[Case, str], None],
    port: int = 0,
) -> list[Outcome]:
    """Run one launch for all these cases; a failure is an outcome with its error, not an exception.

    `port`: where the contender's processes meet; 0 chooses one.
    """
    outcomes = [Outcome() for _ in cases]
    first = cases[0]
    assert contender.plan is not None
    gpus, cpus, scheduler = machines(first, stage)
    launch = Launch(
        gpu_machines=gpus,
        cpu_machines=cpus,
        scheduler=scheduler,
        nic_bytes_per_s=first.nic_bytes_per_s,
        nbytes=max(case.nbytes for case in cases),
        settings=first.settings,
        scale=first.scale,
        secret=secrets.token_hex(16),
        port=port or PORT + int(time.monotonic()) % 1000,  # not that of the launch before, which may linger
        switch_address=stage.address(SWITCH) if contender.uses_switch else "",
    )
    try:
        processes = contender.plan(launch)
    except ValueError as refused:  # a setting that the contender does not take
        return [Outcome(error=str(refused)) for _ in cases]
    crew = Crew(stage, processes, logs)
    finished = 0
    error = ""
    try:
        started = time.monotonic()
        with crew:
            tell(first, "starting")
            facts = crew.expect("started", seconds=START_SECONDS)
            startup = time.monotonic() - started
            for case, outcome in zip(cases, outcomes, strict=True):
                outcome.startup_seconds = startup
                outcome.facts = {key: value for key, value in facts[0].get("facts", {}).items() if key != "rank"}
                _iterate(case, stage, crew, outcome, tell)
                finished += 1
            crew.say("stop")
            crew.expect("stopped", seconds=STOP_SECONDS)
    except (LaunchError, LabError, FidelityError) as failure:  # a machine so busy that nobody could watch, too
        error = str(failure)
    for outcome in outcomes[finished:] if finished < len(cases) else outcomes[-1:]:
        outcome.error = error
    if crew.killed:
        outcomes[-1].facts["killed at the end"] = ", ".join(crew.killed)
    return outcomes


def _iterate(case: Case, stage: Stage, crew: Crew, outcome: Outcome, tell: Callable[[Case, str], None]) -> None:
    tensors = catalogue.of_case(case.workload, case.nbytes, case.scale, case.dilation)
    limit = SLACK_SECONDS + _slowest_seconds(case) + catalogue.computation_seconds(tensors)
    before: dict[str, NicCounters] = {}
    crew.say("workload " + json.dumps({"tensors": [asdict(tensor) for tensor in tensors]}))
    crew.expect("declared", seconds=START_SECONDS)
    crew.expect("ready", seconds=CHECK_SECONDS)
    for iteration in range(case.warmups + case.iterations):
        timed = iteration >= case.warmups
        tell(case, f"iteration {iteration + 1} of {case.warmups + case.iterations}")
        if timed and not before:
            before = _counters(stage)
        with _watched(stage, outcome) if timed else contextlib.nullcontext():
            crew.say("go" if timed else "warm")
            done = crew.expect("done", seconds=limit)
        (outcome.seconds if timed else outcome.warmup_seconds).append(max(event["seconds"] for event in done))
        if iteration + 1 == case.warmups + case.iterations:
            after = _counters(stage)
            outcome.nics = {host: NicBytes(before=before[host], after=after[host]) for host in after}
        crew.say("check")
        checks = crew.expect("checked", seconds=CHECK_SECONDS)
        outcome.max_error = max(outcome.max_error, *(event["max_error"] for event in checks))
        outcome.checked += len(checks)
        crew.expect("ready", seconds=CHECK_SECONDS)


def _slowest_seconds(case: Case) -> float:
    """What a transfer may take."""
    return SLOWEST_FACTOR * case.nbytes / case.nic_bytes_per_s if case.nic_bytes_per_s else UNSHAPED_SECONDS


@contextlib.contextmanager
def _watched(stage: Stage, outcome: Outcome) -> Iterator[None]:
    with stage.watch() as watch:
        before = stage.cpu_seconds()
        yield
        after = stage.cpu_seconds()
    for host, seconds in after.items():
        outcome.cpu_seconds[host] = outcome.cpu_seconds.get(host, 0.0) + seconds - before.get(host, 0.0)
    outcome.seen.append(watch.fidelity)


def _counters(stage: Stage) -> dict[str, NicCounters]:
    """Of every host; the contender is at rest, so the readings need not be simultaneous."""
    return {host: NicCounters(**asdict(seen)) for host, seen in stage.all_counters().items()}
