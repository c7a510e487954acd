"""Benchmarks with a bound: one row per quantity, the bound it was given before it was measured, and whether it is met.

A ratio is taken within a block (ours and the yardstick run after each other) and judged by its median over blocks; the
range over blocks is printed beside it.
Pure: values in, text out.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.document import Table


@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity."""

    what: str
    values: tuple[float, ...]  # one per block
    unit: str = ""
    bound: float | None = None  # None: for information
    direction: Literal["at least", "at most"] = "at least"
    note: str = ""  # why there is no verdict, or what the value means

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """met, not met, no data, or nothing where nothing was claimed."""
        if self.bound is None:
            return ""
        if not self.values:
            return "no data"
        holds = self.median >= self.bound if self.direction == "at least" else self.median <= self.bound
        return "met" if holds else "not met"


HEADER = ("quantity", "median", "range over blocks", "bound", "verdict")


def cells(row: Row) -> tuple[str, str, str, str, str]:
    """A row as text, in the order of HEADER."""
    unit = f" {row.unit}" if row.unit else ""
    median = f"{row.median:.4g}{unit}" if row.values else "-"
    several = len(row.values) > 1
    spread = f"{min(row.values):.4g} to {max(row.values):.4g} (n={len(row.values)})" if several else "n=1"
    bound = "" if row.bound is None else f"{row.direction} {row.bound:g}{unit}"
    verdict = f"{row.verdict} ({row.note})" if row.verdict and row.note else row.verdict or row.note
    return row.what, median, spread if row.values else "", bound, verdict


def table(rows: Sequence[Row]) -> str:
    """Plain text, columns aligned."""
    lines = [HEADER, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def block(rows: Sequence[Row]) -> Table:
    """For the report."""
    return Table(header=HEADER, rows=tuple(cells(row) for row in rows))
