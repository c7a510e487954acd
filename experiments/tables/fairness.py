"""Tuning, interventions, and what carries over to other rates and to whole models."""

from collections.abc import Callable, Sequence

from byteps.units import format_rate
from experiments import tune
from experiments.analysis import Loaded, attempted
from experiments.document import Table
from experiments.fairness import Comparison, Drift, defaults, interventions, scaling, transfer
from experiments.lines import STRATEGIES, label_of
from experiments.record import Record
from experiments.tables.markdown import NOTHING, interval, table


def tuning(loaded: Loaded) -> Table:
    """The best trial of every contender."""
    rows = []
    for winner in tune.winners(attempted(loaded.records)):
        contender, _, strategy = winner.name.partition(" ")
        suffix = STRATEGIES[strategy].suffix if strategy in STRATEGIES else ""
        rows.append(
            (
                label_of(contender) + suffix,
                f"{winner.trials}" + (f" ({winner.failed} failed)" if winner.failed else ""),
                ", ".join(f"{key} {value}" for key, value in sorted(winner.knobs.items())),
                f"{winner.seconds:.3f}",
                f"{winner.worst_seconds:.3f}",
                f"{winner.worst_seconds / winner.seconds:.2f}",
            )
        )
    header = ("contender", "trials", "best knobs", "best, s", "worst, s", "worst / best")
    return table(header, rows)


def _all_records(loaded: Sequence[Loaded]) -> list[Record]:
    return [record for one in loaded for record in attempted(one.records)]


def _comparisons(found: Sequence[Comparison], header: tuple[str, ...]) -> Table:
    rows = [
        (
            one.label,
            one.what,
            one.situation,
            interval(one.usual.values()),
            interval(one.otherwise.values()),
            interval(one.ratios) if not one.unverified else f"none: {one.unverified}",
        )
        for one in found
    ]
    return table(header, rows)


def intervention_table(loaded: Sequence[Loaded]) -> Table:
    """What the suite does around a peer, and the result without it."""
    header = ("contender", "intervention", "where", "with it, s", "without it, s", "times longer without")
    return _comparisons(interventions(_all_records(loaded)), header)


def defaults_table(loaded: Sequence[Loaded]) -> Table:
    header = ("contender", "what differs", "where", "tuned, s", "default, s", "times longer with defaults")
    return _comparisons(defaults(_all_records(loaded)), header)


def _drifts(found: Sequence[Drift], condition: Callable[[float], str], what: str) -> Table:
    conditions = sorted({key for one in found for key in one.values})
    rows = [
        (
            one.what,
            *(interval(one.values.get(key, [])) for key in conditions),
            NOTHING if one.drift is None else f"{one.drift:.1%}",
            one.verdict,
        )
        for one in found
    ]
    return table((what, *map(condition, conditions), "drift", "verdict"), rows)


def transfer_table(loaded: Loaded) -> Table:
    """The headline ratios at each NIC rate."""
    return _drifts(transfer(loaded.records), format_rate, "ratio")


def scaling_table(loaded: Loaded) -> Table:
    """Shares of linear scaling at each scale."""
    return _drifts(scaling(loaded.records), "tensors / {:g}".format, "share of linear scaling")
