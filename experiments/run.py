"""Runs an experiment: block after block, launch after launch, one record each; a second run does only what is missing.

One stage with all the machines of the largest case serves the whole experiment, an emulated cluster or a real one
(`experiments.conduct`): hosts that a case does not use are idle, and their counters show it.  The links are calibrated
before the first launch, after every block, and after a minute of launches within one, so each launch lies between two
calibrations; its record is kept after the second, or, without it and marked `links-off`, when the run is interrupted.
A calibration that fails is repeated once, since another programme may have been busy for a moment; launches beside a
failed one are kept and marked `links-off`.

A launch that was not faithful is run once more at once; both records are kept.  What is repeated depends on the canary
and the calibration alone, never on the measured time.  A launch that failed or summed wrongly is not repeated here: the
record stays, and the next `run` tries again.
"""

import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import msgspec

from baselines import contenders
from baselines.launch import ROOT, Contender
from baselines.wiring import fat_tree_ports, shape
from byteps.units import format_rate
from experiments import adder, fat_tree, inside, launch, networks, provenance, record, spec
from experiments.agenda import RunError, cases_of, load
from experiments.emulated import Emulated
from experiments.progress import Display, display, expected_seconds
from experiments.record import LATENCY_FACT, Calibration, Case, Record
from scripts.lab import LabSpec, bcube, overload, star
from scripts.netns import Lab, LabError, why_no_lab
from scripts.stage import Stage

RAW = ROOT / "results" / "raw"
CALIBRATION_SECONDS = 1.5
STRETCH_SECONDS = 60.0  # of launches between two calibrations
ATTEMPTS = 2
NOT_CALIBRATED = Calibration(least_fraction=0.0, greatest_fraction=0.0, seconds=0.0, passed=False)


def missing_seconds(name: str, tier: spec.Tier, *, raw: Path = RAW) -> float:
    """About how long the cases that are missing take."""
    experiment = load(name)
    kept, _ = record.read(raw / f"{experiment.name}.jsonl")
    there, _ = split([case for case in cases_of(experiment, tier) if not is_done(case, kept)])
    return sum(map(expected_seconds, there))


def run(name: str, tier: spec.Tier, *, raw: Path = RAW, later_seconds: float = 0.0) -> int:
    """Run what is missing of an experiment; returns how many cases still have no usable record.

    `later_seconds` is what other experiments will take afterwards, for the estimate on the screen.
    """
    experiment = load(name)
    path = raw / f"{experiment.name}.jsonl"
    kept, bad = record.read(path)
    cases = cases_of(experiment, tier)
    missing = [case for case in cases if not is_done(case, kept)]
    there, not_run = split(missing)
    with display(there, later_seconds) as show:
        for line in bad:
            show.note(str(line))
        show.note(f"{experiment.name}, tier {tier}: {len(missing)} of {len(cases)} cases to run, records in {path}")

        def keep(one: Record) -> None:
            record.append(path, one)

        note_not_run(not_run, _missing, experiment.provenance, kept, keep, show)
        results: list[Record] = []
        if experiment.provenance == "measured":
            results = [_run_here(case, keep, show) for case in there]
        else:
            for reason, impossible in networks.impossible(there).items():
                note_not_run(impossible, _always(reason), experiment.provenance, kept, keep, show)
                there = [case for case in there if case not in impossible]
            there = networks.one_after_the_other(there)
            for _, cases_of_a_lab in groupby(there, key=lambda case: (case.nic_bytes_per_s, networks.network_of(case))):
                groups = spec.launches(experiment, list(cases_of_a_lab))
                results += _run_in_lab(groups, raw / "logs", keep, show)
    return len([case for case in there if not is_done(case, kept + results)])


def _missing(contender: str) -> str:
    return contenders.get(contender).missing()


def _always(reason: str) -> Callable[[str], str]:
    return lambda _contender: reason


def split(cases: list[Case], why_not: Callable[[str], str] = _missing) -> tuple[list[Case], list[Case]]:
    """Those whose contender can run, and the others; `why_not` gives the reason by the contender's name."""
    missing = {name: bool(why_not(name)) for name in {case.contender for case in cases}}
    return [case for case in cases if not missing[case.contender]], [case for case in cases if missing[case.contender]]


def note_not_run(
    cases: list[Case],
    why_not: Callable[[str], str],
    source: record.Provenance,
    kept: list[Record],
    keep: Callable[[Record], None],
    show: Display,
) -> None:
    """A contender that cannot run leaves a record that says so, once, for its place in figures and tables."""
    for reason in sorted({why_not(case.contender) for case in cases}):
        show.note(f"not run: {reason}")
    for case in cases:
        error = f"not run: {why_not(case.contender)}"
        wanted = record.case_hash(case)
        if not any(one.case_hash == wanted and one.error == error for one in kept):
            keep(msgspec.structs.replace(blank_record(case, contenders.get(case.contender), source), error=error))


def is_done(case: Case, records: list[Record]) -> bool:
    """Whether nothing is left to try: a verified record, or one CPU-bound attempt after the other."""
    contender = contenders.get(case.contender)
    version, code = contender.version(), provenance.code_of(contender)
    answers = [one for one in records if record.answers(one, case, contender_version=version, code=code)]
    bound = sum(one.correct and one.fidelity.verdict == "cpu-bound" for one in answers)
    return any(one.verified for one in answers) or bound >= ATTEMPTS


def blank_record(case: Case, contender: Contender, source: record.Provenance) -> Record:
    """A record with all that is known before the launch."""
    return Record(
        schema=record.SCHEMA_VERSION,
        case=case,
        case_hash=record.case_hash(case),
        code_hash=provenance.code_of(contender),
        contender_version=contender.version(),
        provenance=source,
        started_at=provenance.now(),
        versions=provenance.versions(),
        git_commit=provenance.git_commit(),
        host=provenance.host(),
    )


def _run_here(case: Case, keep: Callable[[Record], None], show: Display) -> Record:
    """A launch without machines of its own: the CPU adder."""
    started = time.monotonic()
    blank = blank_record(case, contenders.get(case.contender), "measured")
    try:
        outcome = adder.run(case)
        result = msgspec.structs.replace(
            blank,
            warmup_seconds=outcome.warmup_seconds,
            seconds=outcome.seconds,
            oracle=outcome.oracle,
            cpu_seconds=outcome.cpu_seconds,
            facts={"threads": str(outcome.num_threads)},
        )
    except (MemoryError, ValueError) as error:
        result = msgspec.structs.replace(blank, error=f"{type(error).__name__}: {error}")
    keep(result)
    show.launched(result, time.monotonic() - started, final=True)
    return result


def cluster_of(cases: list[Case]) -> dict[str, float]:
    """The hosts that serve all these cases: name -> NIC rate."""
    rates = {case.nic_bytes_per_s for case in cases}
    if len(rates) != 1:
        raise RunError(f"cases ask for {len(rates)} NIC rates; one lab has one rate, run them apart")
    rate = rates.pop()
    names = [f"gpu{i}" for i in range(max(case.n for case in cases))]
    names += [f"cpu{i}" for i in range(max(case.k for case in cases))]
    return dict.fromkeys([*names, "scheduler"], rate)


def lab_of(cases: list[Case]) -> LabSpec:
    """The emulated cluster that serves all these cases, which are of one network."""
    hosts = cluster_of(cases)
    ports, levels = shape(networks.wiring_of(cases[0]))
    spec = bcube(ports, levels, max(hosts.values()), beside=("scheduler",)) if ports else star(hosts)
    return networks.applied(spec, cases[0])


@dataclass(frozen=True)
class _Launched:
    """A launch that waits for the calibration after it."""

    attempt: int
    blanks: list[Record]
    outcomes: list[launch.Outcome]
    seconds: float
    logs: Path

    def records(
        self, before: Calibration, after: Calibration, facts: dict[str, str], facts_of: Callable[[Case], dict[str, str]]
    ) -> list[Record]:
        made = [assemble(*pair, before, after) for pair in zip(self.blanks, self.outcomes, strict=True)]
        return [msgspec.structs.replace(one, facts={**one.facts, **facts, **facts_of(one.case)}) for one in made]


def _run_in_lab(groups: list[list[Case]], logs: Path, keep: Callable[[Record], None], show: Display) -> list[Record]:
    """Launch after launch on one emulated cluster; the cases of a group share a launch."""
    if reason := why_no_lab():
        raise RunError(reason)
    cases, cores = [case for group in groups for case in group], int(provenance.host()["cores"])
    special: Callable[[list[Case], int], AbstractContextManager[Stage]] | None = None
    if inside.is_inside(cases[0]):
        special = inside.open_stage
    elif fat_tree_ports(networks.wiring_of(cases[0])):
        special = fat_tree.open_stage
    if special:
        with special(cases, cores) as stage:
            show.note(f"emulated cluster: {stage}")
            return run_on(stage, groups, logs, keep, show)
    plan = lab_of(cases)
    if reason := overload(plan, cores):
        raise RunError(reason)
    rate = format_rate(plan.hosts[0].nic_bytes_per_s)
    show.note(f"emulated cluster: {len(plan.hosts)} machines, {plan.nics} NIC each, {rate} each way")
    with Lab(plan) as lab:
        return run_on(Emulated(lab), groups, logs, keep, show)


def run_on(
    stage: Stage,
    groups: list[list[Case]],
    logs: Path,
    keep: Callable[[Record], None],
    show: Display,
    *,
    check: Callable[[], None] = lambda: None,
    facts_of: Callable[[Case], dict[str, str]] = lambda _case: {},
) -> list[Record]:
    """Launch after launch on the hosts of a stage; the cases of a group share a launch.

    `check` is called after every launch and may raise a LabError to end the run; what was launched is kept, a failed
    launch with that error.  `facts_of` adds to a record's facts.
    """
    results: list[Record] = []
    queue = deque((group, 1) for group in groups)
    waiting: deque[_Launched] = deque()
    facts = stage.facts() | _latency(stage)
    before = _calibrate(stage, show)
    calibrated = time.monotonic()
    try:
        while queue:
            cases, attempt = queue.popleft()
            done = _launch(cases, attempt, stage, logs, show)
            waiting.append(done)
            try:
                check()
            except LabError as failure:
                for outcome in done.outcomes:
                    outcome.error = f"{failure}\n{outcome.error}" if outcome.error else ""
                raise
            same_block = bool(queue) and queue[0][0][0].block == cases[0].block
            failed = any(outcome.error for outcome in done.outcomes)
            if same_block and not failed and time.monotonic() < calibrated + STRETCH_SECONDS:
                continue
            show.tell(cases[0], "calibrating")
            after = _calibrate(stage, show)
            calibrated = time.monotonic()
            while waiting:
                one = waiting.popleft()
                made = one.records(before, after, facts, facts_of)
                again = [made_one.case for made_one in made if made_one.correct and not made_one.faithful]
                if again and one.attempt < ATTEMPTS:
                    queue.appendleft((again, one.attempt + 1))
                for made_one in made:
                    keep(made_one)
                    final = one.attempt == ATTEMPTS or made_one.case not in again
                    show.launched(made_one, one.seconds / len(made), final=final)
                if all(made_one.verified for made_one in made):
                    shutil.rmtree(one.logs, ignore_errors=True)
                results += made
            # What comes next must not be judged by a disturbance that is over.
            before = after if after.passed or not queue else _calibrate(stage, show)
    finally:
        for one in waiting:  # interrupted before their second calibration
            for made_one in one.records(before, NOT_CALIBRATED, facts, facts_of):
                keep(made_one)
                show.launched(made_one, one.seconds / len(one.blanks), final=True)
    return results


def _latency(stage: Stage) -> dict[str, str]:
    """For the facts of every record; nothing where it could not be measured."""
    try:
        return {LATENCY_FACT: f"{stage.one_way_seconds():.2g}"}
    except (LabError, OSError, ValueError, subprocess.TimeoutExpired):
        return {}


def _launch(cases: list[Case], attempt: int, stage: Stage, logs: Path, show: Display) -> _Launched:
    started = time.monotonic()
    contender = contenders.get(cases[0].contender)
    blanks = [blank_record(case, contender, stage.provenance) for case in cases]
    folder = logs / f"{blanks[0].case_hash[:12]}-{time.time_ns()}"
    outcomes = launch.run(cases, contender, stage, logs=folder, tell=show.tell)
    return _Launched(attempt, blanks, outcomes, time.monotonic() - started, folder)


def assemble(blank: Record, outcome: launch.Outcome, before: Calibration, after: Calibration) -> Record:
    """The record of a launch that lay between two calibrations."""
    fidelity = outcome.fidelity
    if not (before.passed and after.passed):
        off = before if not before.passed else after
        reason = f"links at {off.least_fraction:.3f} to {off.greatest_fraction:.3f} of expected"
        fidelity = msgspec.structs.replace(fidelity, verdict="links-off", reason=reason)
    elif fidelity.verdict == "cpu-bound":
        reason = f"canary {fidelity.canary_p99_seconds * 1e3:.1f} ms late, run queue {fidelity.runqueue_share:.2f}"
        fidelity = msgspec.structs.replace(fidelity, reason=reason)
    return msgspec.structs.replace(
        blank,
        startup_seconds=outcome.startup_seconds,
        warmup_seconds=outcome.warmup_seconds,
        seconds=outcome.seconds if not outcome.error else [],
        nics=outcome.nics,
        oracle=outcome.oracle,
        cpu_seconds=sum(outcome.cpu_seconds.values()),
        cpu_seconds_by_host=outcome.cpu_seconds,
        idle_share=outcome.idle_share,
        fidelity=fidelity,
        calibration_before=before,
        calibration_after=after,
        congestion_control=networks.congestion_control_of(blank.case),
        facts=outcome.facts,
        error=outcome.error,
    )


def _calibrate(stage: Stage, show: Display) -> Calibration:
    """Twice at most; the second result counts."""
    result = calibrate_once(stage)
    if not result.passed:
        show.note(f"calibration: links at {result.least_fraction:.3f} of expected, once more")
        result = calibrate_once(stage)
    return result


def calibrate_once(stage: Stage) -> Calibration:
    """All links at once; one that does not start counts as carrying nothing."""
    try:
        seen = stage.calibrate(CALIBRATION_SECONDS)
    except (LabError, OSError, subprocess.TimeoutExpired):
        return NOT_CALIBRATED
    ratios = [flow.ratio for flow in seen.flows]
    return Calibration(
        least_fraction=min(ratios), greatest_fraction=max(ratios), seconds=seen.seconds, passed=seen.faithful
    )
