"""results/REPORT.md: the verdicts, the tables behind them, how faithful the runs were, and what they are evidence for.

Written from `claims.toml` and the records alone.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import pandas as pd

from baselines.launch import ROOT
from byteps.units import format_nbytes, format_rate
from experiments import agenda, bench
from experiments.analysis import (
    NOT_RUN,
    SOURCES,
    Loaded,
    Source,
    absent,
    absent_text,
    attempted,
    load,
    of_this_code,
)
from experiments.claims import NO_RECORD, Claim, Verdict, judge, load_claims
from experiments.metrics import METRICS, OF_ATTEMPTS
from experiments.progress import outcome_text
from experiments.record import Record, latest
from experiments.spec import is_model
from experiments.tables import errors, fairness, goodput, launches, replays
from experiments.tables.markdown import table

CLAIMS = ROOT / "experiments" / "claims.toml"
FIRST = ("fig12", "fig9b", "fig4", "fig15_16", "slow_nics", "gain", "sizes", "tune")  # others follow by name

NOT_SIMULATED = "not everything is simulated: `python -m experiments run all --on sim`"
NOT_PREDICTED = "no verified launch of a case that was simulated before"

SCOPE = """\
The emulated cluster is evidence about software and algorithms on a network that is limited by bandwidth: every byte
crosses real sockets and kernels, every NIC is shaped in both directions, and all contenders get the same congestion
control.  It is no evidence about the hardware of the paper: there are no GPUs, no PCIe, no RDMA, and NICs are about 500
times slower than 100 Gbit/s.  Figures of the paper are shown beside ours as fractions of each NIC's goodput, never
joined with them.

A training replay is a model's tensors at the moments at which they become ready; computation is waited for.  Its
tensors are divided by the scale, and computation takes `dilation` times as long as published, so that both keep their
proportion.  Latencies, negotiation cycles and the cost of a message or a call stay what they are: beside computation
they weigh 1/dilation times as much as in the real training, more where the dilation is below 1, less where it is above:
{weights}.  The groups above say how large they are beside the network.

The optimum t_opt counts packet headers (rate x 1448/1514) and nothing else.  A launch is one start of fresh processes;
its number is the median of its timed iterations; intervals are taken over blocks of launches.  With few blocks an
interval is the range, and `coverage` says how often it holds the true median: 50 % with 2 blocks, 75 % with 3.
"""


def scope(loaded: Iterable[Loaded]) -> str:
    """What the records are evidence for, with the dilation of every experiment that replays models."""
    texts = []
    for one in loaded:
        dilations = {record.case.dilation for record in one.records if is_model(record.case.workload)}
        if dilations:
            low, high = f"{1 / max(dilations):.2g}", f"{1 / min(dilations):.2g}"
            texts.append(f"{one.experiment} {low if low == high else f'{low} to {high}'} times as much")
    return SCOPE.strip().format(weights=", ".join(texts) or "no replays are among these records")


def experiments() -> tuple[str, ...]:
    """All experiments that run here, in the report's order."""
    known = agenda.experiments()
    return (*(name for name in FIRST if name in known), *(name for name in known if name not in FIRST))


def simulated_only() -> tuple[str, ...]:
    """All experiments that do not run here."""
    return tuple(name for name in agenda.simulations() if name not in agenda.experiments())


def claim_records(claim: Claim, loaded: Iterable[Loaded]) -> list[Record]:
    """The records that a claim speaks of: the newest of each case, or every one of the same code for `OF_ATTEMPTS`.

    Of simulations it is every one: some claims ask which were there first.
    """
    return [
        one
        for experiment in loaded
        for one in (
            *(of_this_code(experiment) if claim.metric in OF_ATTEMPTS else experiment.records),
            *experiment.simulated,
        )
        if one.provenance in (claim.provenance, claim.against)
        and (not claim.experiments or one.case.experiment in claim.experiments)
        and claim.n in (0, one.case.n)
        and claim.nbytes in (0, one.case.nbytes)
    ]


def judge_all(claims: Iterable[Claim], loaded: Sequence[Loaded]) -> list[Verdict]:
    """A verdict for every claim, in their order."""
    verdicts = []
    for claim in claims:
        if claim.metric not in METRICS:
            raise ValueError(f"claim {claim.id}: metric {claim.metric!r} is none of {', '.join(sorted(METRICS))}")
        records = claim_records(claim, loaded)
        tried = attempted(records)
        cores = min((int(one.host.get("cores", "0")) for one in tried), default=0)
        values = METRICS[claim.metric](tried)
        why = _absent(claim, records, loaded)
        possible = bool(tried) or claim.provenance == "simulated"  # anybody can simulate
        verdicts.append(judge(claim, values, cores=cores, attempted=possible, absent=why))
    return verdicts


def _absent(claim: Claim, records: list[Record], loaded: Sequence[Loaded]) -> dict[str, str]:
    """Contender -> why it has no verified launch among the claim's records, in one of the claim's experiments.

    A contender that the claim names must have one in each: its launches in one say nothing about the other.
    """
    if claim.provenance == "simulated":
        return dict.fromkeys(claim.parts, NOT_PREDICTED if claim.against else NOT_SIMULATED)
    reasons: dict[str, str] = {}
    for name in claim.parts:
        if why := _why_none(name, records, loaded):
            reasons[name] = why
    for name in claim.contenders:
        whys = {
            experiment: _why_none(
                name,
                [one for one in records if one.case.experiment == experiment],
                [one for one in loaded if one.experiment == experiment],
            )
            for experiment in claim.experiments
        } or {"": _why_none(name, records, loaded)}
        told = [f"{where}: {why}" if len(whys) > 1 else why for where, why in whys.items() if why]
        if told:
            reasons[name] = "; ".join(told)
    return reasons


def _why_none(name: str, records: Iterable[Record], loaded: Iterable[Loaded]) -> str:
    """Why a contender has no verified launch among these; "" if it has one."""
    own = [one for one in records if one.case.contender == name]
    if any(one.verified for one in own):
        return ""
    if not_run := [one.error for one in own if one.error.startswith(NOT_RUN)]:
        return not_run[-1]
    if own:
        return outcome_text(own[-1])
    return next((NOT_RUN + missing[name] for one in loaded if name in (missing := absent(one))), NO_RECORD)


def _claims_table(verdicts: list[Verdict]) -> str:
    return table(("claim", "verdict", "because"), [(one.claim.text, f"**{one.word}**", one.reason) for one in verdicts])


def _problems(loaded: Sequence[Loaded]) -> list[str]:
    lines = [f"- {bad}" for experiment in loaded for bad in experiment.bad]
    for experiment in loaded:
        if experiment.earlier:
            lines.append(f"- {experiment.experiment}: {experiment.earlier} records of earlier settings were left out")
        if text := absent_text(absent(experiment)) if experiment.records else "":
            lines.append(f"- {experiment.experiment}: {text}")
    for one in itertools.chain.from_iterable(attempted(experiment.attempts) for experiment in loaded):
        if not one.verified:
            lines.append(f"- {one.started_at} {one.case.title}: {outcome_text(one)} {one.fidelity.reason}".rstrip())
        elif "killed at the end" in one.facts:
            lines.append(f"- {one.started_at} {one.case.title}: had to be killed: {one.facts['killed at the end']}")
    return lines


def _setting(loaded: Sequence[Loaded]) -> str:
    rows = []
    for one in loaded:
        where = "committed reference run" if one.source == "reference" else "this machine's run"
        kinds = [(one.tier, where, one.records), ("-", "simulated", latest(one.simulated))]
        rows += [(one.experiment, *_setting_cells(*kind)) for kind in kinds if kind[2]]
        if not one.records and not one.simulated:
            rows.append((one.experiment, "-", "no records", "-", "-", "-", "-"))
    return table(("experiment", "tier", "records", "cases verified", "NIC", "congestion control", "commit"), rows)


def _setting_cells(tier: str, where: str, records: list[Record]) -> tuple[str, str, str, str, str, str]:
    rates = sorted({record.case.nic_bytes_per_s for record in records} - {0.0})
    commits = sorted({record.git_commit[:12] + record.git_commit[40:] for record in records})
    controls = sorted({record.congestion_control for record in records} - {""})
    tried = attempted(records)
    return (
        tier,
        where,
        f"{sum(record.verified for record in tried)} of {len(tried)}",
        ", ".join(map(format_rate, rates)) or "-",
        ", ".join(controls) or "-",
        ", ".join(commits),
    )


def _machine(loaded: Sequence[Loaded]) -> str:
    records = [one for experiment in loaded for one in experiment.records if one.host]
    seen = pd.unique(pd.Series([msgspec.json.encode((one.host, one.versions)).decode() for one in records]))
    lines = []
    for text in seen:
        host, versions = msgspec.json.decode(text)
        memory = format_nbytes(int(host["memory_bytes"]))
        names = ", ".join(f"{name} {version}" for name, version in versions.items())
        lines.append(f"- {host['cpu']}, {host['cores']} cores, {memory}, {host['system']}; {names}")
    return "\n".join(lines)


Section = tuple[str, str, Callable[[Loaded], str], tuple[str, ...]]  # experiment, title, table, pictures

SECTIONS: tuple[Section, ...] = (
    ("fig12", "Figure 12: fraction of the optimum t_opt", goodput.fractions, ("fig12_goodput",)),
    ("fig9b", "Figure 9b: the CPU adder", goodput.adder, ("fig9b_adder",)),
    ("fig4", "Figure 4: VGG-16, share of linear scaling", replays.fig4, ("fig4_vgg16",)),
    ("fig15_16", "Figures 15 and 16: six models, share of linear scaling", replays.models, ("fig15_16_models",)),
    ("slow_nics", "The same models with slower NICs, share of linear scaling", replays.slow_nics, ("slow_nics",)),
    ("gain", "Where the gain comes from: each step on top of the last", replays.gain, ("gain_steps",)),
    ("sizes", "Sizes and numbers of tensors", goodput.sizes, ("sizes_time", "sizes_counts")),
)
VERSUS = ("fig12", "fig4", "fig15_16", "slow_nics", "sizes")
COMPARISON = "How many times faster than its opponents BytePS is in the same block; above 1, BytePS is faster."
GROUPS = """\
What does not dilate weighs 1/dilation times as much beside computation as in the real training (bare tensors: 1).
Latency in shares of the iteration, core-seconds on a GPU machine as cores that would be busy at the NIC's rate, the
token bucket of the emulated NIC in shares of M, and how many partitions each summation service of BytePS has.  A dash:
not recorded, or does not apply."""


def _sections(loaded: Sequence[Loaded]) -> list[str]:
    by_name = {one.experiment: one for one in loaded}
    parts = []
    for name, title, tabulate, pictures in SECTIONS:
        one = by_name.get(name)
        if one is None or not one.records:
            continue
        parts += [f"## {title}", tabulate(one), absent_text(absent(one))]
        parts += [f"![{title}](figures/{picture}.png)" for picture in pictures]
    return parts


def _fairness(loaded: Sequence[Loaded]) -> list[str]:
    by_name = {one.experiment: one for one in loaded}
    texts = [
        ("Tuning: as many trials for everyone, on models that no figure reports", "tune", fairness.tuning),
        ("At several NIC rates: ratios that drift by more than 5 % do not transfer", "rates", fairness.transfer_table),
        ("Scaled against whole models", "scaling", fairness.scaling_table),
    ]
    parts = [
        f"### {title}\n\n{text}"
        for title, name, tabulate in texts
        if name in by_name and (text := tabulate(by_name[name]))
    ]
    everywhere = [one for one in loaded if one.experiment != "tune"]
    for title, text in (
        ("What we do around a peer, and the result without it", fairness.intervention_table(everywhere)),
        ("Default knobs beside tuned ones", fairness.defaults_table(everywhere)),
    ):
        parts += [f"### {title}\n\n{text}"] if text else []
    return ["## Fairness", *parts] if parts else []


def compose(results: Path, *, sources: tuple[Source, ...] = SOURCES) -> tuple[str, list[Verdict]]:
    """The report's text and the verdicts in it."""
    loaded = [load(results, name, sources=sources) for name in (*experiments(), *simulated_only())]
    verdicts = judge_all(load_claims(CLAIMS), loaded)
    emulated = [one for one in loaded if any(record.provenance == "emulated" for record in one.records)]
    parts = ["# Report", _setting(loaded), "## Contenders", launches.contenders(loaded)]
    parts += ["## Claims", _claims_table(verdicts), *_sections(loaded)]
    parts += errors.section(loaded)
    if versus := replays.against_opponents([one for one in emulated if one.experiment in VERSUS]):
        parts += ["## BytePS against its opponents", COMPARISON, versus]
    parts += _fairness(loaded)
    for one in emulated:
        if one.experiment == "fig12" and (spent := launches.cost(one)):
            parts += ["## What it costs", spent]
    if emulated:
        parts += ["## Was the machine fast enough?", "Worst of all launches, repeated ones included."]
        parts += [launches.fidelity(emulated)]
        parts += ["## How far from a real cluster?", GROUPS, launches.dimensionless(emulated)]
    parts += bench.report_parts(results, sources)
    problems = _problems(loaded)
    parts += ["## Launches that were not used, and other trouble", "\n".join(problems) if problems else "None."]
    parts += ["## What this is evidence for", scope(emulated), "## Machine and versions"]
    parts += [_machine(loaded) or "No records."]
    return "\n\n".join(filter(None, parts)) + "\n", verdicts


def write(results: Path) -> tuple[Path, list[Verdict]]:
    """Write REPORT.md."""
    text, verdicts = compose(results)
    path = results / "REPORT.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path, verdicts
