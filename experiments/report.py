"""results/REPORT.md: the verdicts, the tables behind them, how faithful the runs were, and what they are evidence for.

Written from `claims.toml` and the records alone.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pandas as pd

from baselines.contenders import CONTENDERS
from baselines.launch import ROOT
from byteps.units import format_nbytes, format_rate
from experiments import bench, paper
from experiments.analysis import SOURCES, Loaded, Source, frame, load, traffic_deviation
from experiments.claims import Claim, Verdict, judge, load_claims
from experiments.figures import DEFAULT_PARTITION
from experiments.metrics import METRICS
from experiments.progress import outcome_text
from experiments.record import Record
from experiments.statistics import interval_over_blocks

CLAIMS = ROOT / "experiments" / "claims.toml"
EXPERIMENTS = ("fig12", "fig9b")

SCOPE = """\
The emulated cluster is evidence about software and algorithms on a network that is limited by bandwidth: every byte
crosses real sockets and kernels, every NIC is shaped in both directions, and all contenders get the same congestion
control.  It is no evidence about the hardware of the paper: there are no GPUs, no PCIe, no RDMA, and NICs are about 500
times slower than 100 Gbit/s, so that costs per message and per byte on the CPU, and latencies, weigh far less than they
would there.  Figures of the paper are shown beside ours as fractions of each NIC's goodput, never joined with them.

The optimum t_opt counts packet headers (rate x 1448/1514) and nothing else.  A launch is one start of fresh processes;
its number is the median of its timed iterations; intervals are taken over blocks of launches.  With few blocks an
interval is the range, and `coverage` says how often it holds the true median: 50 % with 2 blocks, 75 % with 3.
"""


def claim_records(claim: Claim, loaded: Iterable[Loaded]) -> list[Record]:
    """The records that a claim speaks of."""
    return [
        one
        for experiment in loaded
        for one in experiment.records
        if one.provenance == claim.provenance and claim.n in (0, one.case.n) and claim.nbytes in (0, one.case.nbytes)
    ]


def judge_all(claims: Iterable[Claim], loaded: Sequence[Loaded]) -> list[Verdict]:
    """A verdict for every claim, in their order."""
    verdicts = []
    for claim in claims:
        if claim.metric not in METRICS:
            raise ValueError(f"claim {claim.id}: metric {claim.metric!r} is none of {', '.join(sorted(METRICS))}")
        records = claim_records(claim, loaded)
        cores = min((int(one.host.get("cores", "0")) for one in records), default=0)
        values = METRICS[claim.metric](records)
        verdicts.append(judge(claim, values, cores=cores, attempted=bool(records)))
    return verdicts


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _claims_table(verdicts: list[Verdict]) -> str:
    return table(("claim", "verdict", "because"), [(one.claim.text, f"**{one.word}**", one.reason) for one in verdicts])


def _interval(values: Sequence[float]) -> str:
    return str(interval_over_blocks(list(values), seed=0)) if len(values) else "-"


def _fractions_table(loaded: Loaded) -> str:
    """Fractions of t_opt, per k; the paper's own beside them where it measured the same n."""
    everything = frame(loaded.records)
    used = everything[everything["verified"]]
    published = paper.fig12()
    rows = []
    for (nbytes, n, k), group in everything.groupby(["nbytes", "n", "k"]):
        columns = []
        for name, partition in (("byteps", "auto"), ("byteps", DEFAULT_PARTITION), ("gloo-ring", "")):
            chosen = used[
                (used["nbytes"] == nbytes)
                & (used["n"] == n)
                & (used["k"] == k)
                & (used["contender"] == name)
                & (used["partition"] == partition)
            ]
            columns.append(_interval(chosen["of_optimum"].tolist()))
        known = n == published.n and k in published.k
        cited = f"{published.byteps[k] / published.optimal[k]:.3f}" if known else "-"
        launches = f"{int(group['verified'].sum())} of {len(group)}"
        rows.append((format_nbytes(int(nbytes)), str(n), str(k), *columns, cited, launches))
    return table(
        (
            "M",
            "n",
            "k",
            "BytePS",
            "BytePS, 4,096,000-byte partitions",
            "ring (k = 0 only)",
            "BytePS, paper",
            "launches used",
        ),
        rows,
    )


def _adder_table(loaded: Loaded) -> str:
    everything = frame(loaded.records)
    used = everything[everything["verified"]]
    published = {"fp32": paper.fig9b().fp32, "fp16": paper.fig9b().fp16}
    rows = []
    for dtype in ("fp32", "fp16", "bf16"):
        chosen = used[used["dtype"] == dtype]
        columns = [_interval(chosen[chosen["cores"] == cores]["gbit_per_s"].tolist()) for cores in ("1", "all")]
        rows.append((dtype, *columns, f"{published[dtype]:.1f}" if dtype in published else "-"))
    return table(("type", "1 core, Gbit/s", "all cores, Gbit/s", "paper, 32 cores, Gbit/s"), rows)


def _fidelity_table(loaded: Loaded) -> str:
    """Per contender and k: what the canary, the run queue and the links said, worst launch of all that were tried."""
    attempts = frame(loaded.attempts).assign(
        runqueue=[one.fidelity.runqueue_share for one in loaded.attempts],
        deviation=[
            traffic_deviation(one)
            if one.case.contender == "byteps" and one.verified and one.case.n > 1
            else float("nan")
            for one in loaded.attempts
        ],
    )
    rows = []
    for (contender, k), group in attempts.groupby(["contender", "k"], sort=False):
        verdicts = Counter(str(verdict) for verdict in group["verdict"])
        rows.append(
            (
                CONTENDERS[contender].label,
                str(k),
                ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())),
                f"{group['canary_p99_seconds'].max() * 1e3:.1f}",
                f"{group['runqueue'].max():.2f}",
                f"{group['idle_share'].min():.2f}",
                f"{group['least_link'].min():.3f}",
                "-" if group["deviation"].isna().all() else f"{group['deviation'].max():.2%}",
                f"{group['startup_seconds'].median():.1f}",
            )
        )
    return table(
        (
            "contender",
            "k",
            "verdicts",
            "canary p99, ms",
            "run-queue",
            "idle",
            "links",
            "traffic off plan",
            "start, s",
        ),
        rows,
    )


def _problems(loaded: Sequence[Loaded]) -> list[str]:
    lines = [f"- {bad}" for experiment in loaded for bad in experiment.bad]
    for one in itertools.chain.from_iterable(experiment.attempts for experiment in loaded):
        if not one.verified:
            lines.append(f"- {one.started_at} {one.case.title}: {outcome_text(one)} {one.fidelity.reason}".rstrip())
        elif "killed at the end" in one.facts:
            lines.append(f"- {one.started_at} {one.case.title}: had to be killed: {one.facts['killed at the end']}")
    return lines


def _setting(loaded: Sequence[Loaded]) -> str:
    rows = []
    for one in loaded:
        if one.source == "none":
            rows.append((one.experiment, "-", "no records", "-", "-", "-", "-"))
            continue
        first = one.records[0]
        rate = first.case.nic_bytes_per_s
        commits = sorted({record.git_commit[:12] + record.git_commit[40:] for record in one.records})
        rows.append(
            (
                one.experiment,
                one.tier,
                "committed reference run" if one.source == "reference" else "this machine's run",
                f"{sum(record.verified for record in one.records)} of {len(one.records)}",
                format_rate(rate) if rate else "-",
                first.congestion_control or "-",
                ", ".join(commits),
            )
        )
    return table(("experiment", "tier", "records", "cases verified", "NIC", "congestion control", "commit"), rows)


def _machine(loaded: Sequence[Loaded]) -> str:
    records = [one for experiment in loaded for one in experiment.records]
    seen = pd.unique(pd.Series([msgspec.json.encode((one.host, one.versions)).decode() for one in records]))
    lines = []
    for text in seen:
        host, versions = msgspec.json.decode(text)
        memory = format_nbytes(int(host["memory_bytes"]))
        names = ", ".join(f"{name} {version}" for name, version in versions.items())
        lines.append(f"- {host['cpu']}, {host['cores']} cores, {memory}, {host['system']}; {names}")
    return "\n".join(lines)


def compose(results: Path, *, sources: tuple[Source, ...] = SOURCES) -> tuple[str, list[Verdict]]:
    """The report's text and the verdicts in it."""
    loaded = [load(results, name, sources=sources) for name in EXPERIMENTS]
    verdicts = judge_all(load_claims(CLAIMS), loaded)
    fig12, fig9b = loaded
    parts = ["# Report", _setting(loaded), "## Claims", _claims_table(verdicts)]
    if fig12.records:
        parts += ["## Figure 12: fraction of the optimum t_opt", _fractions_table(fig12)]
        parts += ["![Figure 12](figures/fig12_goodput.png)"]
    if fig9b.records:
        parts += ["## Figure 9b: the CPU adder", _adder_table(fig9b), "![Figure 9b](figures/fig9b_adder.png)"]
    if fig12.records:
        parts += [
            "## Was the machine fast enough?",
            "Worst of all launches, repeated ones included.",
            _fidelity_table(fig12),
        ]
    parts += bench.report_parts(results, sources)
    problems = _problems(loaded)
    parts += ["## Launches that were not used, and other trouble", "\n".join(problems) if problems else "None."]
    parts += [
        "## What this is evidence for",
        SCOPE.strip(),
        "## Machine and versions",
        _machine(loaded) or "No records.",
    ]
    return "\n\n".join(parts) + "\n", verdicts


def write(results: Path) -> tuple[Path, list[Verdict]]:
    """Write REPORT.md."""
    text, verdicts = compose(results)
    path = results / "REPORT.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path, verdicts
