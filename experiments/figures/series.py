"""Points and lines: one contender's launches against one quantity.

A point is the median over launches, its bar their range from least to largest; a single launch has no bar and is
marked n=1.  Hollow points are those of launches that were CPU-bound.  A line never bridges a point that
was tried and has no usable launch; that point is a gap with its reason.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes

from experiments.analysis import NOT_RUN
from experiments.figures.sheet import Legend, kind, mark_style
from experiments.lines import Line

EMULATED = "Emulated"
Place = Callable[[float], float]
"""Where on the axis a value is drawn: lines stand a little apart so that none hides another."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A point that was tried and has no usable launch."""

    label: str
    colour: str
    x: float  # as drawn
    at: str  # in words
    reason: str


def beside(apart: float) -> Place:
    """On a linear axis."""
    return lambda value: value + apart


def times(factor: float) -> Place:
    """On a logarithmic axis."""
    return lambda value: value * factor


def always_at(where: float) -> Place:
    return lambda _: where


def draw(
    axes: Axes,
    legend: Legend,
    rows: pd.DataFrame,
    look: Line,
    *,
    x: str,
    y: str,
    place: Place,
    words: Callable[[float], str] = str,
    joined: bool = True,
    note: str = "",
) -> list[Gap]:
    """All launches of one line, usable or not; returns its gaps.  `note` is added to its name in the legend.

    `place` says where a value of x is drawn, `words` what it is called; points that are no series are not `joined`.
    """
    rows = rows[~rows["error"].str.startswith(NOT_RUN)]
    usable = rows[rows["verified"] & rows[y].notna()]
    left = rows[~rows[x].isin(usable[x])]
    bound = left[left["correct"] & (left["verdict"] == "cpu-bound")]
    for some, hollow in ((usable, False), (bound, True)):
        if some.empty:
            continue
        once = bool((some.groupby(x).size() == 1).all())
        apart = hollow or not joined
        for part in [[value] for value in sorted(some[x].unique())] if apart else _unbroken(rows, some, x):
            _points(axes, some[some[x].isin(part)], look, x, y, place, hollow=hollow, say_once=not once)
        suffix = note + (", CPU-bound" if hollow else "") + (", n=1" if once else "")
        legend.line(kind(rows), look, note=suffix, hollow=hollow)
    return [
        Gap(label=look.label, colour=look.colour, x=place(float(value)), at=words(value), reason=reason(gap))
        for value, gap in left[~left[x].isin(bound[x])].groupby(x)
    ]


def reason(rows: pd.DataFrame) -> str:
    """Why none of these launches is usable."""
    if rows["correct"].any():
        return "not faithful"
    return "failed" if (rows["error"] != "").any() else "wrong sum"


def _points(
    axes: Axes, rows: pd.DataFrame, look: Line, x: str, y: str, place: Place, *, hollow: bool, say_once: bool
) -> None:
    groups = rows.groupby(x)[y]
    middle, low, high, count = groups.median(), groups.min(), groups.max(), groups.size()
    places = [place(float(value)) for value in middle.index]
    axes.plot(places, middle, **mark_style(look, hollow=hollow), linestyle="none" if hollow else look.linestyle)
    several = count > 1
    if several.any():
        axes.errorbar(
            [where for where, many in zip(places, several, strict=True) if many],
            middle[several],
            yerr=[(middle - low)[several], (high - middle)[several]],
            fmt="none",
            ecolor=look.colour,
            elinewidth=0.8,
            capsize=2.5,
        )
    for where, value, number in zip(places, middle, count, strict=True):
        if number == 1 and say_once:
            axes.annotate(
                "n=1", (where, value), xytext=(4, -9), textcoords="offset points", fontsize=7, color=look.colour
            )


def _unbroken(rows: pd.DataFrame, usable: pd.DataFrame, x: str) -> list[list[float]]:
    """The values of x with usable launches, parted where one that was tried has none."""
    present = set(usable[x])
    runs: list[list[float]] = [[]]
    for value in sorted(set(rows[x])):
        if value in present:
            runs[-1].append(value)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def mark_gaps(axes: Axes, gaps: Iterable[Gap]) -> None:
    """The reasons, side by side above the axis."""
    seen: dict[str, int] = {}
    for gap in gaps:
        index = seen[gap.at] = seen.get(gap.at, -1) + 1
        axes.annotate(
            gap.reason,
            (gap.x, 0.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(7 * index, 3),
            textcoords="offset points",
            rotation=90,
            fontsize=7,
            color=gap.colour,
            ha="center",
            va="bottom",
        )


def gaps_text(gaps: Iterable[Gap]) -> str:
    """For the caption."""
    by_line: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        by_line.setdefault((gap.label, gap.reason), []).append(gap.at)
    parts = [f"{label} at {', '.join(ats)} {reason}" for (label, reason), ats in by_line.items()]
    return f"Gaps: {'; '.join(parts)}." if parts else ""


def spread(index: int, count: int, step: float) -> float:
    """How far line number `index` of `count` stands from the middle."""
    return (index - (count - 1) / 2) * step
