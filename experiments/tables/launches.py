"""Who ran, how faithfully, at what cost, and how far the emulated cluster is from a real one."""

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from byteps.units import format_rate
from experiments.analysis import Loaded, absent, attempted, frame
from experiments.document import Table
from experiments.figures.against_k import looks
from experiments.groups import groups
from experiments.lines import label_of, line_of
from experiments.record import Record
from experiments.tables.markdown import NOTHING, interval, number, table
from experiments.traffic import has_plan, payload_of_formula, traffic_deviation

_NO_KNOBS = ("knobs", "strategy", "machine", "local", "dtype", "cores")  # they say what was run, not how
PER_K = ("fig12",)  # experiments whose launches are shown for every k; others are taken together


def contenders(loaded: Sequence[Loaded]) -> Table:
    """Every contender: its version, the knobs it ran with at its best, its launches, or why it has none."""
    rows = []
    names = dict.fromkeys(
        name for one in loaded for name in (*one.expected, *(record.case.contender for record in one.records))
    )
    for name in names:
        belongs = [one for one in loaded if name in one.expected or any(r.case.contender == name for r in one.records)]
        records = [record for one in belongs for record in one.records if record.case.contender == name]
        tried = attempted(records)
        missing: dict[str, list[str]] = {}
        for one in belongs:
            if one.records and name in (reasons := absent(one)):
                missing.setdefault(reasons[name], []).append(one.experiment)
        versions = ", ".join(sorted({record.contender_version for record in tried})) or NOTHING
        knobs = "; ".join(
            sorted({_knobs(record) for record in tried if line_of(name, record.case.settings).main} - {""})
        )
        used = f"{sum(record.verified for record in tried)} of {len(tried)}"
        notes = "; ".join(f"not run in {', '.join(where)}: {why}" for why, where in missing.items())
        rows.append((label_of(name), versions, knobs or NOTHING, used, notes or NOTHING))
    return table(("contender", "version", "knobs", "cases verified", "not run"), rows)


def _knobs(record: Record) -> str:
    chosen = {key: value for key, value in record.case.settings.items() if key not in _NO_KNOBS}
    return ", ".join(f"{key} {value}" for key, value in sorted(chosen.items()))


def calibration(loaded: Sequence[Loaded]) -> Table:
    """What all links carried at once, before and after each launch, over what they should: least and greatest."""
    rows = []
    for one in loaded:
        by_rate: dict[float, list[Record]] = {}
        for record in attempted(one.attempts):
            if record.calibration_before or record.calibration_after:
                by_rate.setdefault(record.case.nic_bytes_per_s, []).append(record)
        for rate, records in sorted(by_rate.items()):
            seen = [
                found for record in records for found in (record.calibration_before, record.calibration_after) if found
            ]
            rows.append(
                (
                    one.experiment,
                    ", ".join(sorted({record.provenance for record in records})),
                    format_rate(rate),
                    str(len(records)),
                    f"{min(found.least_fraction for found in seen):.3f}",
                    f"{max(found.greatest_fraction for found in seen):.3f}",
                    f"{sum(not found.passed for found in seen)} of {len(seen)}",
                )
            )
    return table(("experiment", "where", "NIC", "launches", "least / expected", "greatest / expected", "failed"), rows)


def _by_line(records: list[Record], per_k: bool) -> list[tuple[str, str, pd.DataFrame]]:
    """(label, k, launches with their records), in the order of lines."""
    rows = frame(records).assign(record=pd.Series(records, dtype=object))
    result = []
    for look in looks(rows):
        of_line = rows[rows["look"] == look]
        ks = sorted(set(of_line["k"]))
        if per_k:
            result += [(look.label, str(k), of_line[of_line["k"] == k]) for k in ks]
        else:
            result.append((look.label, ", ".join(map(str, ks)), of_line))
    return result


def fidelity(loaded: Sequence[Loaded]) -> Table:
    """What canary, run queue and links said, worst launch of all that were tried; start and first use, medians."""
    rows = []
    for one in loaded:
        for label, k, group in _by_line(attempted(one.attempts), one.experiment in PER_K):
            records: list[Record] = list(group["record"])
            verdicts = Counter(record.fidelity.verdict for record in records)
            off_plan = [traffic_deviation(record) for record in records if has_plan(record)]
            of_formula = pd.Series([payload_of_formula(record) for record in records if record.verified]).dropna()
            rows.append(
                (
                    one.experiment,
                    label,
                    k,
                    ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())),
                    f"{group['canary_p99_seconds'].max() * 1e3:.1f}",
                    f"{max(record.fidelity.runqueue_share for record in records):.2f}",
                    f"{group['idle_share'].min():.2f}",
                    number(float(group["least_link"].min()), ".3f"),
                    f"{max(off_plan):.2%}" if off_plan else NOTHING,
                    _range(of_formula),
                    f"{group['startup_seconds'].median():.1f}",
                    number(float(group["first_use_seconds"].median()), ".2f"),
                )
            )
    header = ("experiment", "contender", "k", "verdicts", "canary p99, ms", "run-queue", "idle", "links")
    return table((*header, "traffic off plan", "NIC bytes / formula", "start, s", "first use, s"), rows)


def _range(values: "pd.Series[float]") -> str:
    known = values.dropna()
    if known.empty:
        return NOTHING
    low, high = f"{known.min():.3g}", f"{known.max():.3g}"
    return low if low == high else f"{low} to {high}"


def cost(loaded: Loaded) -> Table:
    """Core-seconds per GiB of everything on a GPU machine."""
    used = frame(loaded.records)
    used = used[used["verified"] & used["core_seconds_per_gib"].notna()]
    rows = []
    for look in looks(used):
        for (nbytes, k), group in used[used["look"] == look].groupby(["nbytes", "k"]):
            rows.append((look.label, f"{nbytes >> 20} MiB", str(k), interval(group["core_seconds_per_gib"])))
    return table(("contender", "M", "k", "core-seconds per GiB on a GPU machine"), rows)


def dimensionless(loaded: Sequence[Loaded]) -> Table:
    """Ranges over the verified launches of each line."""
    rows = []
    for one in loaded:
        verified = [record for record in one.records if record.verified and record.provenance == "emulated"]
        for label, k, group in _by_line(verified, per_k=False):
            seen = [groups(record) for record in group["record"] if record.case.n > 1]
            if seen:
                columns = (
                    list(group["dilation"]),
                    [value.latency_share for value in seen],
                    [value.cores_at_rate for value in seen],
                    [value.burst_share for value in seen],
                    [value.partitions_per_service for value in seen],
                )
                rows.append((one.experiment, label, k, *(_range(pd.Series(values)) for values in columns)))
    header = ("experiment", "contender", "k", "dilation", "latency x steps / t", "cores at the NIC's rate")
    return table((*header, "token bucket / M", "partitions per service"), rows)
