"""Where the gain comes from: three ways to sum, three ways to order the transfers, at k = 0, where theory sees no gain.

    ways to sum      ring (Horovod), PS (MXNet's servers beside the workers), split (BytePS: everybody serves a share)
    ways to order    one by one; fused in buckets; partitioned, by priority, with bounded bytes in flight

BytePS does the last by itself, so its line without a strategy stands there; for the others that is a scheduler of this
project around their own calls.  What the other two do without any strategy (Horovod's own fusion, MXNet's own order)
has a column of its own, "as it is".
Pure: no I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from experiments.analysis import linear_seconds
from experiments.lines import line_of
from experiments.record import Case, Record
from experiments.statistics import launch_seconds, paired_ratios

SUMS: Mapping[str, str] = {"ring": "horovod", "PS": "mxnet-sync", "split": "byteps"}
ONE_BY_ONE, FUSED, SCHEDULED, AS_IT_IS = "one by one", "fused", "scheduled", "as it is"
ORDERS = (ONE_BY_ONE, FUSED, SCHEDULED, AS_IT_IS)
_STRATEGIES = {"one-by-one": ONE_BY_ONE, "fused": FUSED, "scheduled": SCHEDULED}

Cell = tuple[str, str]  # way to sum, way to order


@dataclass(kw_only=True)
class Decomposition:
    """One model: seconds of an iteration per block for each cell that ran, and why others have none."""

    model: str
    linear: float
    seconds: dict[Cell, dict[int, float]] = field(default_factory=dict)
    reasons: dict[Cell, str] = field(default_factory=dict)

    def share_of_linear(self, cell: Cell) -> float | None:
        times = self.seconds.get(cell)
        return self.linear / median(times.values()) if times else None

    def ratios(self, slow: Cell, fast: Cell) -> list[float]:
        """How many times faster, block by block."""
        return list(paired_ratios(self.seconds.get(slow, {}), self.seconds.get(fast, {})).values())


def cell_of(case: Case) -> Cell | None:
    """Nothing for what is no part of the comparison."""
    ways = [way for way, contender in SUMS.items() if contender == case.contender]
    if not ways or case.k:
        return None
    strategy = line_of(case.contender, case.settings).strategy
    if strategy == "plain":
        return ways[0], SCHEDULED if case.contender == "byteps" else AS_IT_IS
    if ways[0] == "split" and strategy == "scheduled":
        return None  # twice the same: BytePS schedules by itself
    return (ways[0], _STRATEGIES[strategy]) if strategy in _STRATEGIES else None


def decompose(records: list[Record]) -> list[Decomposition]:
    """One per model, in the order of the records."""
    models: dict[str, Decomposition] = {}
    for one in records:
        cell = cell_of(one.case)
        if cell is None:
            continue
        model = models.setdefault(
            one.case.workload, Decomposition(model=one.case.workload, linear=linear_seconds(one.case))
        )
        if one.verified:
            model.seconds.setdefault(cell, {})[one.case.block] = launch_seconds(one.seconds)
        else:
            model.reasons[cell] = _reason(one)
    for model in models.values():
        model.reasons = {cell: why for cell, why in model.reasons.items() if cell not in model.seconds}
    return list(models.values())


def _reason(one: Record) -> str:
    if one.error.startswith("not run: "):
        return "not run"
    if one.error:
        return "failed"
    return "not faithful" if one.correct else "wrong sum"
