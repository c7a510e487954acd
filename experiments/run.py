"""Runs an experiment: block after block, launch after launch, one record each; a second run does only what is missing.

One emulated cluster with all the machines of the largest case serves the whole experiment: hosts that a case does not
use are idle, and their counters show it.  The links are calibrated before the first launch and after every one, so each
launch lies between two calibrations, and so does every block.  A calibration that fails is repeated once, since another
programme may have been busy for a moment; launches beside a failed one are kept and marked `links-off`.

A launch that was not faithful is run once more at once; both records are kept.  What is repeated depends on the canary
and the calibration alone, never on the measured time.  A launch that failed or summed wrongly is not repeated here: the
record stays, and the next `run` tries again.
"""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from baselines import contenders
from baselines.contenders import Contender
from byteps.units import format_rate
from experiments import adder, launch, provenance, record, spec
from experiments.progress import Display, display
from experiments.record import Calibration, Case, Record
from scripts import calibrate
from scripts.lab import CONGESTION_CONTROL, overload, star
from scripts.netns import Lab, LabError, why_no_lab

ROOT = contenders.ROOT
CASES = ROOT / "experiments" / "cases"
RAW = ROOT / "results" / "raw"
CALIBRATION_SECONDS = 1.5
ATTEMPTS = 2


class RunError(RuntimeError):
    """The experiment cannot run here; the text says what to do."""


def experiments() -> dict[str, Path]:
    """All experiments by name."""
    return {path.stem: path for path in sorted(CASES.glob("*.toml"))}


def load(name: str) -> spec.Experiment:
    known = experiments()
    if name not in known:
        raise RunError(f"no experiment {name!r}; there are {', '.join(known)}")
    return spec.load(known[name])


def run(name: str, tier: spec.Tier, *, raw: Path = RAW) -> int:
    """Run what is missing of an experiment; returns how many launches still have no usable record."""
    experiment = load(name)
    path = raw / f"{name}.jsonl"
    kept, bad = record.read(path)
    cases = spec.expand(experiment, tier, uses_k=contenders.USES_K)
    missing = [case for case in cases if not _is_done(case, kept)]
    with display(missing) as show:
        for line in bad:
            show.note(str(line))
        show.note(f"{name}, tier {tier}: {len(missing)} of {len(cases)} launches to run, records in {path}")
        if not missing:
            return 0

        def keep(one: Record) -> None:
            record.append(path, one)

        if experiment.provenance == "measured":
            results = [_run_here(case, keep, show) for case in missing]
        else:
            results = _run_in_lab(missing, raw / "logs", keep, show)
    return len(missing) - len({one.case_hash for one in results if one.verified})


def _is_done(case: Case, records: list[Record]) -> bool:
    contender = contenders.get(case.contender)
    version, code = contender.version(), provenance.code_of(contender)
    return any(record.done(one, case, contender_version=version, code=code) for one in records)


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
    show.launched(case, result, time.monotonic() - started, final=True)
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


def _run_in_lab(cases: list[Case], logs: Path, keep: Callable[[Record], None], show: Display) -> list[Record]:
    if reason := why_no_lab():
        raise RunError(reason)
    hosts = cluster_of(cases)
    plan = star(hosts)
    if reason := overload(plan, int(provenance.host()["cores"])):
        raise RunError(reason)
    show.note(f"emulated cluster: {len(hosts)} machines, NICs of {format_rate(cases[0].nic_bytes_per_s)} each way")
    results: list[Record] = []
    with Lab(plan) as lab:
        before = _calibrate(lab, show)
        for case in cases:
            for attempt in range(ATTEMPTS):
                started = time.monotonic()
                blank = blank_record(case, contenders.get(case.contender), "emulated")
                folder = logs / f"{blank.case_hash[:12]}-{time.time_ns()}"
                outcome = launch.run(case, contenders.get(case.contender), lab, logs=folder, tell=show.tell(case))
                show.tell(case)("calibrating")
                after = _calibrate(lab, show)
                result = assemble(blank, outcome, before, after)
                before = after
                keep(result)
                results.append(result)
                final = attempt + 1 == ATTEMPTS or not result.correct or result.faithful
                show.launched(case, result, time.monotonic() - started, final=final)
                if final:
                    break
    return results


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
        cpu_seconds=outcome.cpu_seconds,
        idle_share=outcome.idle_share,
        fidelity=fidelity,
        calibration_before=before,
        calibration_after=after,
        congestion_control=CONGESTION_CONTROL,
        facts=outcome.facts,
        error=outcome.error,
    )


def _calibrate(lab: Lab, show: Display) -> Calibration:
    """Twice at most; the second result counts."""
    result = calibrate_once(lab)
    if not result.passed:
        show.note(f"calibration: links at {result.least_fraction:.3f} of expected, once more")
        result = calibrate_once(lab)
    return result


def calibrate_once(lab: Lab) -> Calibration:
    """All links at once; one that does not start counts as carrying nothing."""
    try:
        seen = calibrate.calibrate(lab, seconds=CALIBRATION_SECONDS)
    except LabError:
        return Calibration(least_fraction=0.0, greatest_fraction=0.0, seconds=0.0, passed=False)
    ratios = [flow.ratio for flow in seen.flows]
    return Calibration(
        least_fraction=min(ratios), greatest_fraction=max(ratios), seconds=seen.seconds, passed=seen.faithful
    )
