"""Figures whose axis is k, the number of CPU machines: what makes no use of them has a place of its own, "any k"."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from experiments.figures.series import Gap, always_at, beside, draw, mark_gaps, spread
from experiments.figures.sheet import Legend
from experiments.lines import Line, order_of

ANY_K = -1.2  # where k-independent contenders stand
_STEP = 0.16  # between them
_NARROW = 0.05  # between lines at one k


def looks(table: pd.DataFrame) -> list[Line]:
    """The lines of a table, in order."""
    return sorted(set(table["look"]), key=order_of)


def _k_in_words(k: float) -> str:
    return f"k = {k:g}"


def _any_k(_: float) -> str:
    return "any k"


def lines_against_k(
    axes: Axes, legend: Legend, table: pd.DataFrame, y: str, *, notes: dict[Line, str] | None = None
) -> list[Gap]:
    """Every line of the table; `notes` are added to their names."""
    present = looks(table)
    gaps: list[Gap] = []
    for uses_k in (True, False):
        group = [look for look in present if look.uses_k == uses_k]
        for index, look in enumerate(group):
            apart = spread(index, len(group), _NARROW if uses_k else _STEP)
            gaps += draw(
                axes,
                legend,
                table[table["look"] == look],
                look,
                x="k",
                y=y,
                place=beside(apart) if uses_k else always_at(ANY_K + apart),
                words=_k_in_words if uses_k else _any_k,
                note=(notes or {}).get(look, ""),
            )
    mark_gaps(axes, gaps)
    return gaps


def finish_axis(axes: Axes, ks: Sequence[int]) -> None:
    axes.axvline(-0.5, color="0.7", linewidth=0.8)
    axes.set_xlim(ANY_K - 0.7, max(ks) + 0.4)
    axes.set_xticks([ANY_K, *ks], ["any k", *map(str, ks)])
    axes.set_xlabel("CPU machines k")
    axes.grid(axis="x", visible=False)
