"""From records to tables: everything derived is derived here, from records alone.

A launch is the median of its iterations.  With B' = B * 1448/1514, what TCP leaves of a NIC's rate,

    goodput            M / t
    goodput_fraction   M / (t B')           comparable between NICs of any rate, and with the paper's 90 of 100 Gbit/s
    of_optimum         t_opt(n, k, B') / t  the share of the optimum that was reached
    of_ring_bound      2(n-1)M / (n B') / t
    of_bound           the contender's own algorithm's time / t (see `bound_seconds`)
    linear_seconds     backward + forward pass of a replayed model, dilated: an iteration that never waits
    efficiency         linear_seconds / t   the share of linear scaling that was reached
    core_seconds_per_gib   of all processes on a GPU machine, per GiB of gradients

Launches that failed, summed wrongly or were not faithful stay in the table with `verified` false and without times, so
that gaps can be shown; nothing averages over them.

Simulated records of an experiment lie in a file of their own beside the others, NAME.sim.jsonl.  All of them are kept,
oldest first, since it matters which ones are older than the run that they predict.

Records of a full run are read from `raw/`; where an experiment has none there, from `reference/` (a committed full
run), and the figures and the report say so.  The experiment's own file says which contenders belong to it, and of
`raw/` only records of the cases count that it asks for now: others are of earlier knobs, scales or trials.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import pandas as pd

from baselines.launch import server_nbytes
from byteps import theory
from experiments import agenda, catalogue, cluster, lines, record, spec
from experiments.record import BadLine, Case, Record
from experiments.spec import Tier
from experiments.statistics import launch_seconds

NOT_RUN = "not run: "
PREFERRED: tuple[Tier, ...] = ("paper", "reproduce", "sweep", "smoke")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The records of one experiment and where they came from."""

    experiment: str
    tier: str  # "" without records
    source: "Source"
    records: list[Record]  # the newest per case, of one tier
    attempts: list[Record]  # all of that tier: repetitions and failures too
    bad: list[BadLine]
    expected: tuple[str, ...] = ()  # contenders that the experiment's file names for that tier
    earlier: int = 0  # records that were left out, of cases that the experiment's file does not ask for any more
    simulated: tuple[Record, ...] = ()  # all of them, oldest first


Source = Literal["raw", "reference", "cluster", "none"]  # cluster: in raw/, of the hosts that ran last
SOURCES: tuple[Source, ...] = ("raw", "reference")
SIMULATED = "{}.sim.jsonl"  # of the experiment's name


def load(results: Path, experiment: str, *, sources: tuple[Source, ...] = SOURCES) -> Loaded:
    """The most telling tier that has records, from `raw` or else from `reference`."""
    simulated, bad = _simulated(results, experiment, sources)
    nothing = Loaded(
        experiment=experiment, tier="", source="none", records=[], attempts=[], bad=bad, simulated=simulated
    )
    earlier = 0
    for source in sources:
        found, skipped = _read(results, experiment, source)
        bad += skipped
        current = _current_of(experiment, source, found)
        if current is not None:
            earlier = sum(one.case_hash not in current for one in found)
            found = [one for one in found if one.case_hash in current]
        for tier in PREFERRED:
            attempts = [one for one in found if one.case.tier == tier]
            if attempts:
                return replace(
                    nothing,
                    tier=tier,
                    source=source,
                    records=record.latest(attempts),
                    attempts=attempts,
                    expected=_expected(experiment, tier),
                    earlier=earlier,
                )
    return replace(nothing, earlier=earlier)


def _read(results: Path, experiment: str, source: Source) -> tuple[list[Record], list[BadLine]]:
    """The records of one source; of a cluster, those of the site that the newest one is of."""
    if source != "cluster":
        return record.read(results / source / f"{experiment}.jsonl")
    found, skipped = record.read(results / "raw" / cluster.FILE.format(experiment))
    return [one for one in found if one.case.site == found[-1].case.site], skipped


def _current_of(experiment: str, source: Source, found: list[Record]) -> frozenset[str] | None:
    if source == "raw" and found:
        return current_hashes(experiment)
    if source == "cluster" and found and experiment in agenda.experiments():
        try:
            return frozenset(cluster.current_hashes(agenda.load(experiment), found[-1].case.site))
        except (spec.SpecError, ValueError):
            return None
    return None


def _simulated(results: Path, experiment: str, sources: tuple[Source, ...]) -> tuple[tuple[Record, ...], list[BadLine]]:
    """Of the first source that has any."""
    bad: list[BadLine] = []
    for source in sources:
        if source == "cluster":
            continue
        found, skipped = record.read(results / source / SIMULATED.format(experiment))
        bad += skipped
        current = current_simulations(experiment) if source == "raw" and found else None
        if chosen := [one for one in found if current is None or one.case_hash in current]:
            return tuple(sorted(chosen, key=lambda one: one.started_at)), bad
    return (), bad


def current_hashes(experiment: str) -> frozenset[str] | None:
    """The cases that the experiment's file asks for now; None without such a file, or if it cannot be expanded."""
    return _current(experiment, agenda.load) if experiment in agenda.experiments() else None


def current_simulations(experiment: str) -> frozenset[str] | None:
    """The same for what is simulated of it."""
    return _current(experiment, agenda.load_simulation) if experiment in agenda.simulations() else None


def _current(experiment: str, load_file: Callable[[str], spec.Experiment]) -> frozenset[str] | None:
    try:
        return frozenset(agenda.current_hashes(load_file(experiment)))
    except spec.SpecError:  # said by whoever runs it; its records are still shown
        return None


def of_this_code(loaded: Loaded) -> list[Record]:
    """All attempts of the code that left the newest record of their case."""
    code = {one.case_hash: one.code_hash for one in loaded.records}
    return [one for one in loaded.attempts if code.get(one.case_hash) == one.code_hash]


def _expected(experiment: str, tier: str) -> tuple[str, ...]:
    if experiment not in agenda.experiments():
        return ()
    chosen = [choice.name for choice in agenda.load(experiment).contender if not choice.tiers or tier in choice.tiers]
    return tuple(dict.fromkeys(chosen))


def absent(loaded: Loaded) -> dict[str, str]:
    """Contender -> why it has no launch here and what to do; those that were never tried or are not installed."""
    reasons = {}
    for name in dict.fromkeys((*loaded.expected, *(one.case.contender for one in loaded.records))):
        errors = [one.error for one in loaded.records if one.case.contender == name]
        if not errors:
            command = "make sweep" if loaded.tier == "sweep" else "make reproduce"
            reasons[name] = f"no record in this run; {command} adds what is missing"
        elif all(error.startswith(NOT_RUN) for error in errors):
            reasons[name] = errors[-1].removeprefix(NOT_RUN)
    return reasons


def attempted(records: list[Record]) -> list[Record]:
    """Without the places of contenders that are not installed."""
    return [one for one in records if not one.error.startswith(NOT_RUN)]


def absent_text(reasons: dict[str, str]) -> str:
    """One sentence per reason, for captions and tables; "" if nothing is missing."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(lines.label_of(name))
    return " ".join(f"Not run: {', '.join(labels)} ({reason})." for reason, labels in by_reason.items())


def frame(records: list[Record]) -> pd.DataFrame:
    """One row per launch."""
    name = lines.naming(one.case for one in records)
    table = pd.DataFrame([_row(one, name(one.case)) for one in records], columns=list(_COLUMNS))
    return table.astype(
        {"verified": bool, "correct": bool, "main": bool}
    )  # an empty table must be indexable by them too


_COLUMNS = (
    *(
        "experiment",
        "tier",
        "contender",
        "line",
        "look",
        "main",
        "strategy",
        "n",
        "k",
        "nic_bytes_per_s",
        "nbytes",
        "block",
    ),
    *("site", "workload", "scale", "dilation", "provenance", "partition", "dtype", "cores", "machine", "local"),
    *("verified", "correct", "verdict", "error"),
    *("seconds", "goodput", "goodput_fraction", "of_optimum", "of_ring_bound", "of_bound", "gbit_per_s"),
    *("linear_seconds", "efficiency", "core_seconds_per_gib", "first_use_seconds"),
    *("startup_seconds", "idle_share", "cpu_seconds", "canary_p99_seconds", "least_link", "max_error"),
)


def _row(one: Record, line: lines.Line) -> dict[str, object]:
    case = one.case
    row: dict[str, object] = {
        "experiment": case.experiment,
        "tier": case.tier,
        "contender": case.contender,
        "line": line.label,
        "look": line,
        "main": line.main,
        "strategy": line.strategy,
        "n": case.n,
        "k": case.k,
        "nic_bytes_per_s": case.nic_bytes_per_s,
        "nbytes": case.nbytes,
        "block": case.block,
        "site": case.site,
        "workload": case.workload,
        "scale": case.scale,
        "dilation": case.dilation,
        "provenance": one.provenance,
        "partition": case.settings.get("partition", ""),
        "dtype": case.settings.get("dtype", ""),
        "cores": case.settings.get("cores", ""),
        "machine": case.settings.get("machine", ""),
        "local": case.settings.get("local", ""),
        "verified": one.verified,
        "correct": one.correct,
        "verdict": one.fidelity.verdict,
        "error": one.error,
        "startup_seconds": one.startup_seconds,
        "first_use_seconds": one.warmup_seconds[0] if one.warmup_seconds else float("nan"),
        "idle_share": one.idle_share,
        "cpu_seconds": one.cpu_seconds,
        "canary_p99_seconds": one.fidelity.canary_p99_seconds,
        "least_link": min(
            (seen.least_fraction for seen in (one.calibration_before, one.calibration_after) if seen),
            default=float("nan"),
        ),
        "max_error": one.oracle.max_error if one.oracle else float("nan"),
        "linear_seconds": linear_seconds(case),
    }
    if one.correct:
        seconds = launch_seconds(one.seconds)
        row |= {"seconds": seconds, "goodput": case.nbytes / seconds, "gbit_per_s": case.nbytes * 8e-9 / seconds}
        row |= {"efficiency": linear_seconds(case) / seconds, "core_seconds_per_gib": core_seconds_per_gib(one)}
        payload_rate = case.nic_bytes_per_s * theory.TCP_PAYLOAD_FRACTION
        if payload_rate and case.n > 1:
            row |= {
                "goodput_fraction": case.nbytes / seconds / payload_rate,
                "of_optimum": cluster.optimum_seconds(case) / seconds,
                "of_ring_bound": ring_seconds(case) / seconds,
                "of_bound": bound_seconds(case) / seconds,
            }
    return row


@lru_cache(maxsize=4096)
def _linear(workload: str, nbytes: int, scale: float, dilation: float) -> float:
    tensors = catalogue.of_case(workload, nbytes, scale, dilation)
    return catalogue.computation_seconds(tensors)


def linear_seconds(case: Case) -> float:
    """Computation alone, backward and forward; not a number for bare tensors and for models unknown to this version."""
    if not spec.is_model(case.workload):
        return float("nan")
    try:
        return _linear(case.workload, case.nbytes, case.scale, case.dilation)
    except (OSError, ValueError):  # a training that was recorded elsewhere
        return float("nan")


def bound_seconds(case: Case) -> float:
    """How long the contender's algorithm takes on these NICs if nothing else costs time; not a number without formula.

    A GPU machine's NIC carries what the table of contenders says.  A parameter server's CPU machines carry n M / k,
    which is more for k < n; BytePS balances both.
    """
    contender = lines.contender_of(case.contender)
    payload_rate = case.nic_bytes_per_s * theory.TCP_PAYLOAD_FRACTION
    if contender is None or contender.nic_nbytes is None or not payload_rate or case.n < 2:
        return float("nan")
    if case.nics:
        return cluster.unequal_bound_seconds(case)
    if contender.nic_nbytes is server_nbytes and case.k:
        return theory.noncolocated_ps_seconds(case.nbytes, case.n, case.k, payload_rate)
    return contender.nic_nbytes(case.n, case.k, case.nbytes) / payload_rate


def ring_seconds(case: Case) -> float:
    """All-reduce's bound for this case."""
    return cluster.ring_seconds(case)


def communication_bound(case: Case) -> bool:
    """A replay whose computation is no longer than ring all-reduce takes for its gradients."""
    return case.n > 1 and case.nic_bytes_per_s > 0 and linear_seconds(case) <= ring_seconds(case)


def core_seconds_per_gib(one: Record) -> float:
    """Core-seconds of everything that runs on a GPU machine, mean over them, per GiB of gradients."""
    spent = [seconds for host, seconds in one.cpu_seconds_by_host.items() if host.startswith("gpu")]
    if not spent:
        return float("nan")
    return sum(spent) / one.case.n / (one.case.iterations * one.case.nbytes / 2**30)
