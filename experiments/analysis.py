"""From records to tables: everything derived is derived here, from records alone.

A launch is the median of its iterations.  With B' = B * 1448/1514, what TCP leaves of a NIC's rate,

    goodput            M / t
    goodput_fraction   M / (t B')           comparable between NICs of any rate, and with the paper's 90 of 100 Gbit/s
    of_optimum         t_opt(n, k, B') / t  the share of the optimum that was reached
    of_ring_bound      2(n-1)M / (n B') / t

Launches that failed, summed wrongly or were not faithful stay in the table with `verified` false and without times, so
that gaps can be shown; nothing averages over them.

Records of a full run are read from `raw/`; where an experiment has none there, from `reference/` (a committed full
run), and the figures and the report say so.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from byteps import assign, partition, theory
from byteps.units import parse_nbytes
from experiments import record
from experiments.record import BadLine, Record
from experiments.spec import TIERS
from experiments.statistics import launch_seconds


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The records of one experiment and where they came from."""

    experiment: str
    tier: str  # "" without records
    source: "Source"
    records: list[Record]  # the newest per case, of one tier
    attempts: list[Record]  # all of that tier: repetitions and failures too
    bad: list[BadLine]


Source = Literal["raw", "reference", "none"]
SOURCES: tuple[Source, ...] = ("raw", "reference")


def load(results: Path, experiment: str, *, sources: tuple[Source, ...] = SOURCES) -> Loaded:
    """The largest tier that has records, from `raw` or else from `reference`."""
    bad: list[BadLine] = []
    for source in sources:
        found, skipped = record.read(results / source / f"{experiment}.jsonl")
        bad += skipped
        for tier in reversed(TIERS):
            attempts = [one for one in found if one.case.tier == tier]
            if attempts:
                return Loaded(
                    experiment=experiment,
                    tier=tier,
                    source=source,
                    records=record.latest(attempts),
                    attempts=attempts,
                    bad=bad,
                )
    return Loaded(experiment=experiment, tier="", source="none", records=[], attempts=[], bad=bad)


def frame(records: list[Record]) -> pd.DataFrame:
    """One row per launch."""
    table = pd.DataFrame([_row(one) for one in records], columns=list(_COLUMNS))
    return table.astype({"verified": bool, "correct": bool})  # an empty table must be indexable by them too


_COLUMNS = (
    *("experiment", "tier", "contender", "n", "k", "nic_bytes_per_s", "nbytes", "block", "provenance"),
    *("partition", "dtype", "cores", "verified", "correct", "verdict", "error"),
    *("seconds", "goodput", "goodput_fraction", "of_optimum", "of_ring_bound", "gbit_per_s"),
    *("startup_seconds", "idle_share", "cpu_seconds", "canary_p99_seconds", "least_link", "max_error"),
)


def _row(one: Record) -> dict[str, object]:
    case = one.case
    row: dict[str, object] = {
        "experiment": case.experiment,
        "tier": case.tier,
        "contender": case.contender,
        "n": case.n,
        "k": case.k,
        "nic_bytes_per_s": case.nic_bytes_per_s,
        "nbytes": case.nbytes,
        "block": case.block,
        "provenance": one.provenance,
        "partition": case.settings.get("partition", ""),
        "dtype": case.settings.get("dtype", ""),
        "cores": case.settings.get("cores", ""),
        "verified": one.verified,
        "correct": one.correct,
        "verdict": one.fidelity.verdict,
        "error": one.error,
        "startup_seconds": one.startup_seconds,
        "idle_share": one.idle_share,
        "cpu_seconds": one.cpu_seconds,
        "canary_p99_seconds": one.fidelity.canary_p99_seconds,
        "least_link": min(
            (seen.least_fraction for seen in (one.calibration_before, one.calibration_after) if seen),
            default=float("nan"),
        ),
        "max_error": one.oracle.max_error if one.oracle else float("nan"),
    }
    if one.correct:
        seconds = launch_seconds(one.seconds)
        row |= {"seconds": seconds, "goodput": case.nbytes / seconds, "gbit_per_s": case.nbytes * 8e-9 / seconds}
        payload_rate = case.nic_bytes_per_s * theory.TCP_PAYLOAD_FRACTION
        if payload_rate and case.n > 1:
            row |= {
                "goodput_fraction": case.nbytes / seconds / payload_rate,
                "of_optimum": theory.byteps_seconds(case.nbytes, case.n, case.k, payload_rate) / seconds,
                "of_ring_bound": theory.ring_seconds(case.nbytes, case.n, payload_rate) / seconds,
            }
    return row


def planned_payload(one: Record) -> dict[str, int]:
    """Host -> bytes that BytePS's plan makes it send, and as many receive, in one iteration."""
    case = one.case
    setting = case.settings["partition"]
    size = (
        partition.auto_partition_bytes(case.nbytes, case.nic_bytes_per_s)
        if setting == "auto"
        else parse_nbytes(setting)
    )
    parts = [nbytes for _, nbytes in partition.split(case.nbytes, 4, size)]
    shares = assign.paper_shares(case.n, case.k).all
    owned = [0] * len(shares)
    for nbytes, owner in zip(parts, assign.place(parts, shares), strict=True):
        owned[owner] += nbytes
    hosts = [f"gpu{i}" for i in range(case.n)] + [f"cpu{i}" for i in range(case.k)]
    return dict(zip(hosts, theory.traffic_of_placement(owned, case.n, case.k), strict=True))


def traffic_deviation(one: Record) -> float:
    """Largest |measured / planned - 1| over the machines and both directions; packet headers do not count."""
    worst = 0.0
    for host, planned in planned_payload(one).items():
        for moved in (one.nics[host].payload_sent, one.nics[host].payload_received):
            worst = max(worst, abs(moved / one.case.iterations / planned - 1))
    return worst
