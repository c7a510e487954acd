"""Where records come from, on what they were made, and what is missing: by experiment, by machine, by reason."""

import itertools
from collections import Counter
from collections.abc import Sequence

import msgspec

from byteps.units import format_nbytes, format_rate
from experiments import agenda, cluster
from experiments.analysis import Loaded, Source, absent, absent_text, attempted
from experiments.claims import Verdict
from experiments.document import Block, Items, Paragraph, Table
from experiments.progress import outcome_text
from experiments.record import Record, latest
from experiments.tables.markdown import table

WHERE: dict[Source, str] = {
    "raw": "this machine's run",
    "reference": "committed reference run",
    "cluster": "hosts of a cluster",
}


def summary(verdicts: Sequence[Verdict], loaded: Sequence[Loaded]) -> str:
    """One sentence on the claims, one on the records."""
    words = Counter(one.word for one in verdicts)
    told = ", ".join(f"{count} {word}" for word, count in words.items())
    records = Counter(
        record.provenance for one in loaded for record in (*attempted(one.records), *latest(one.simulated))
    )
    found = ", ".join(f"{count} {provenance}" for provenance, count in sorted(records.items())) or "none"
    return f"{len(verdicts)} claims: {told}. Records, one for each case: {found}."


def not_run(loaded: Sequence[Loaded], verdicts: Sequence[Verdict]) -> list[Block]:
    """Experiments without records, contenders that were left out, claims that nothing here can test."""
    lines = []
    for one in loaded:
        if not one.records and one.experiment in agenda.experiments():
            tier = next(iter(agenda.load(one.experiment).tier))
            command = "make sweep" if tier == "sweep" else "make reproduce"
            lines.append(f"Experiment {one.experiment}: no records; `{command}` runs it.")
        if not one.simulated and one.experiment in agenda.simulations():
            command = f"python -m experiments run {one.experiment} --on sim"
            lines.append(f"Experiment {one.experiment}: not simulated; `{command}` does it.")
        if one.records and (text := absent_text(absent(one))):
            lines.append(f"{one.experiment}: {text}")
    lines += [
        f"Claim not testable here: {one.claim.text} ({one.reason})."
        for one in verdicts
        if one.word == "not testable here"
    ]
    lines += cluster.remarks([record for one in loaded for record in one.records])
    return [Items(lines=tuple(lines))] if lines else [Paragraph(text="Everything was run.")]


def problems(loaded: Sequence[Loaded]) -> list[str]:
    """Lines that could not be read, records that do not count, launches that were not used."""
    lines = [f"{bad}" for experiment in loaded for bad in experiment.bad]
    for experiment in loaded:
        if experiment.earlier:
            lines.append(f"{experiment.experiment}: {experiment.earlier} records of earlier settings were left out")
        if text := absent_text(absent(experiment)) if experiment.records else "":
            lines.append(f"{experiment.experiment}: {text}")
    for one in itertools.chain.from_iterable(attempted(experiment.attempts) for experiment in loaded):
        if not one.verified:
            lines.append(f"{one.started_at} {one.case.title}: {outcome_text(one)} {one.fidelity.reason}".rstrip())
        elif "killed at the end" in one.facts:
            lines.append(f"{one.started_at} {one.case.title}: had to be killed: {one.facts['killed at the end']}")
    return lines


def setting(loaded: Sequence[Loaded]) -> Table:
    """The records of every experiment: which run, where, on which NICs, by which code."""
    rows = []
    for one in loaded:
        where = WHERE.get(one.source, "")
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


def machines(loaded: Sequence[Loaded]) -> Table:
    """Every machine that left records, with its software."""
    records = [one for experiment in loaded for one in experiment.records if one.host]
    seen = dict.fromkeys(msgspec.json.encode((one.host, one.versions)).decode() for one in records)
    rows = []
    for text in seen:
        host, versions = msgspec.json.decode(text)
        rows.append(
            (
                host["cpu"],
                host["cores"],
                format_nbytes(int(host["memory_bytes"])),
                host["system"],
                ", ".join(f"{name} {version}" for name, version in versions.items()),
            )
        )
    return table(("CPU", "cores", "memory", "system", "versions"), rows)
