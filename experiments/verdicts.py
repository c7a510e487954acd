"""The verdict on every claim of `claims.toml`, from the records alone, and the table that shows them.

A claim about the emulated cluster is judged again by records that a real one left, where there are any: those verdicts
stand beside the first ones and are never joined with them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from baselines.launch import ROOT
from experiments import agenda
from experiments.analysis import NOT_RUN, Loaded, absent, attempted, of_this_code
from experiments.claims import NO_RECORD, Claim, Verdict, judge
from experiments.cluster import BEYOND_KNEE
from experiments.document import Table
from experiments.metrics import METRICS, OF_ATTEMPTS
from experiments.progress import outcome_text
from experiments.record import Record
from experiments.tables.markdown import NOTHING, table

CLAIMS = ROOT / "experiments" / "claims.toml"
NOT_SIMULATED = "not everything is simulated: `python -m experiments run all --on sim`"
NOT_PREDICTED = "no verified launch of a case that was simulated before"


def claim_records(claim: Claim, loaded: Iterable[Loaded]) -> list[Record]:
    """The records that a claim speaks of: the newest of each case, or every one of the same code for `OF_ATTEMPTS`.

    Of simulations it is every one: some claims ask which were there first.  Where NICs were faster than the software,
    nothing follows from a record.
    """
    return [
        one
        for experiment in loaded
        for one in (
            *(of_this_code(experiment) if claim.metric in OF_ATTEMPTS else experiment.records),
            *experiment.simulated,
        )
        if one.provenance in (claim.provenance, claim.against)
        and BEYOND_KNEE not in one.facts
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


def measured_again(claims: Iterable[Claim], loaded: Sequence[Loaded]) -> dict[str, Verdict]:
    """Claim -> the verdict of a real cluster's records on a claim about the emulated one; only where there are any."""
    again = [msgspec.structs.replace(one, provenance="measured") for one in claims if one.provenance == "emulated"]
    of_clusters = [
        replace(one, records=_of_clusters(one.records), attempts=_of_clusters(one.attempts)) for one in loaded
    ]
    return {one.id: judge_all([one], of_clusters)[0] for one in again if attempted(claim_records(one, of_clusters))}


def _of_clusters(records: Iterable[Record]) -> list[Record]:
    """Without what was measured on a single machine."""
    return [one for one in records if one.provenance == "measured" and one.case.nic_bytes_per_s]


def command(claim: Claim) -> str:
    """What runs everything that the claim speaks of."""
    if not claim.experiments:
        return "`make reproduce`"
    where = " --on sim" if claim.provenance == "simulated" and not claim.against else ""
    names = [name for name in claim.experiments if where or name in agenda.experiments()]
    return f"`python -m experiments run {' '.join(names)}{where}`"


def claims_table(verdicts: Sequence[Verdict], again: dict[str, Verdict]) -> Table:
    """Every claim beside the paper's value and what was found, by provenance."""
    rows = []
    for one in verdicts:
        seen = [one, *([again[one.claim.id]] if one.claim.id in again else [])]
        rows += [
            (
                one.claim.text if verdict is one else f"{one.claim.text} (on a real cluster)",
                one.claim.paper or NOTHING,
                f"{verdict.claim.provenance}: {verdict.reason}",
                f"**{verdict.word}**",
                command(one.claim),
            )
            for verdict in seen
        ]
    return table(("claim", "the paper's value", "ours", "verdict", "command"), rows)
