"""Tables as text."""

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from experiments.document import Table
from experiments.figures.series import reason
from experiments.statistics import interval_over_blocks

NOTHING = "-"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """False without rows; as text it is Markdown."""
    return Table(header=tuple(header), rows=tuple(map(tuple, rows)))


def interval(values: Iterable[float]) -> str:
    """The median over blocks and its interval; a dash without values."""
    known = [float(value) for value in values if not math.isnan(value)]
    return str(interval_over_blocks(known, seed=0)) if known else NOTHING


def cell(rows: pd.DataFrame, column: str) -> str:
    """The interval over the verified launches among these, or why there is none."""
    used = rows[rows["verified"] & rows[column].notna()]
    if len(used):
        return interval(used[column])
    if rows.empty:
        return NOTHING
    bound = rows[rows["correct"] & (rows["verdict"] == "cpu-bound")]
    if len(bound):
        return f"CPU-bound: {bound[column].median():.3f}"
    return reason(rows)


def number(value: float, digits: str = ".3g") -> str:
    return NOTHING if math.isnan(value) else f"{value:{digits}}"
