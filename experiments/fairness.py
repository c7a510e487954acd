"""Is the comparison fair, and does it carry over?  What tuning, our interventions, the NIC's rate and scaling change.

    tuning         every contender's best trial (see `experiments.tune`); its speed with default knobs beside it
    interventions  what we do around a peer against the peer left alone: polling, tensors handed over as several keys
    transfer       the headline ratios at several NIC rates; one that drifts by more than `DRIFT` does not transfer
    scaling        a model whose tensors were divided against the whole one, as shares of linear scaling

A contender that was CPU-bound is shown with its time and enters no ratio.
Pure: no I/O.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from byteps.units import format_rate
from experiments import lines, spec
from experiments.analysis import linear_seconds
from experiments.opponents import Contest, PerBlock, best_of, contests, seconds_of, workload_in_words
from experiments.record import Case, Record
from experiments.statistics import launch_seconds, paired_ratios

DRIFT = 0.05
# What a setting that is left out, or has another value, does for a peer; the words are those of the table.
INTERVENTIONS: Mapping[tuple[str, str], str] = {
    ("wait", "spin"): "a rank that waits sleeps between two looks instead of spinning",
    ("call", "push+pull"): "one call and message for push and pull, as in MXNet 1.9, instead of two as in 1.5",
    ("keys", "1"): "a large tensor is handed over as several keys instead of one",
}


@dataclass(kw_only=True)
class Comparison:
    """A contender as the suite runs it against the same contender otherwise, in one situation."""

    label: str
    what: str  # is different
    situation: str
    usual: PerBlock = field(default_factory=dict)  # block -> seconds, verified or not
    otherwise: PerBlock = field(default_factory=dict)
    unverified: str = ""  # why some of those times may enter no ratio

    @property
    def ratios(self) -> list[float]:
        """How many times longer it takes otherwise."""
        return [] if self.unverified else list(paired_ratios(self.otherwise, self.usual).values())


def situation_of(case: Case) -> str:
    return f"{workload_in_words(case)}, n = {case.n}, k = {case.k}, {format_rate(case.nic_bytes_per_s)}"


def _compare(
    records: Iterable[Record], pairs: Callable[[Case], Iterable[tuple[str, bool, Mapping[str, str]]]]
) -> list[Comparison]:
    """`pairs` says what a case takes part in: what is different, whether it is the usual side, and the settings that
    both sides share."""
    found: dict[tuple[object, ...], Comparison] = {}
    for one in records:
        case = one.case
        if not one.correct:
            continue
        for what, usual, shared in pairs(case):
            key = (what, case.contender, situation_of(case), case.scale, tuple(sorted(shared.items())))
            comparison = found.setdefault(
                key,
                Comparison(label=lines.line_of(case.contender, shared).label, what=what, situation=situation_of(case)),
            )
            side = comparison.usual if usual else comparison.otherwise
            side[case.block] = launch_seconds(one.seconds)
            if not one.verified:
                comparison.unverified = one.fidelity.verdict
    return [comparison for comparison in found.values() if comparison.usual and comparison.otherwise]


def interventions(records: Iterable[Record]) -> list[Comparison]:
    """Every contender that ran with and without one of our interventions, all else equal."""

    def pairs(case: Case) -> list[tuple[str, bool, Mapping[str, str]]]:
        return [
            (what, case.settings.get(key) != value, {k: v for k, v in case.settings.items() if k != key})
            for (key, value), what in INTERVENTIONS.items()
        ]

    return _compare(records, pairs)


def defaults(records: Iterable[Record]) -> list[Comparison]:
    """Every contender that ran with default and with tuned knobs."""

    def pairs(case: Case) -> list[tuple[str, bool, Mapping[str, str]]]:
        strategy = {key: value for key, value in case.settings.items() if key == "strategy"}
        tuned = case.settings.get("knobs") == "tuned"
        return [("knobs", tuned, strategy)] if tuned or set(case.settings) <= {"strategy", "knobs"} else []

    return _compare(records, pairs)


@dataclass(kw_only=True)
class Drift:
    """One number seen under several conditions that should not change it."""

    what: str
    values: dict[float, list[float]] = field(default_factory=dict)  # condition -> one value per block

    @property
    def drift(self) -> float | None:
        """Largest over least median, less 1; nothing where only one condition was seen."""
        middle = [median(values) for values in self.values.values() if values]
        return max(middle) / min(middle) - 1 if len(middle) > 1 else None

    @property
    def verdict(self) -> str:
        if self.drift is None:
            return "seen once"
        return "transfers" if self.drift <= DRIFT else "does not transfer"


def transfer(records: list[Record]) -> list[Drift]:
    """BytePS over each opponent, at every NIC rate that the same replay ran at."""
    found: dict[str, Drift] = {}
    for contest in contests(records, seconds_of):
        case = contest.case
        for line, k, ratios in _ratios(contest):
            words = f"{case.workload}, n = {case.n}: BytePS with k = {k} over {line}"
            if ratios:
                found.setdefault(words, Drift(what=words)).values[case.nic_bytes_per_s] = ratios
    return list(found.values())


def _ratios(contest: Contest) -> list[tuple[str, int, list[float]]]:
    result = []
    for k, ours in sorted(contest.byteps.items()):
        for line in sorted({line for line, _ in contest.others}, key=lines.order_of):
            theirs = best_of(contest.opponents(k, lambda other, line=line: other == line))  # type: ignore[misc]
            result.append((line.label, k, list(paired_ratios(theirs, ours).values())))
    return result


def scaling(records: Iterable[Record]) -> list[Drift]:
    """Every line's share of linear scaling at every scale of a model."""
    records = list(records)
    name = lines.naming(one.case for one in records)
    found: dict[str, Drift] = {}
    for one in records:
        case = one.case
        if one.verified and spec.is_model(case.workload):
            words = f"{name(case).label}: {case.workload}, n = {case.n}, k = {case.k}"
            values = found.setdefault(words, Drift(what=words)).values
            values.setdefault(case.scale, []).append(linear_seconds(case) / launch_seconds(one.seconds))
    return list(found.values())
