"""Tables as text."""

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from experiments.figures.series import reason
from experiments.statistics import interval_over_blocks

NOTHING = "-"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


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
