"""Simulated points beside the paper's: an open diamond around a cross is a hit.

Simulated points of a line are joined by a thin broken line; half a diamond is filled where one contender has two lines.
Crosses have four arms for BytePS and three for others, dashes differ too: colours are not all that tells them apart.
A number of the paper without a simulated record is a gap; where nothing was simulated, the caption names the command.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes

from experiments import errors
from experiments.analysis import Loaded
from experiments.errors import Number, Point
from experiments.figures.series import Gap
from experiments.figures.sheet import PAPER_MARK, PAPER_SECOND_MARK, Legend, Sheet, paper_points
from experiments.lines import LineStyle, colour_of

SIMULATED = "Simulated"
NOT_SIMULATED = "not simulated"
DIAMOND = "D"
_THREE_ARMS, _THREE_MORE = ("1", "2"), ("3", "4")  # so that grey prints tell contenders apart
_CROSSES = {"horovod": _THREE_ARMS, "mxnet-sync": _THREE_MORE, "tensorflow-ps": _THREE_MORE}
_DASHES: dict[str, LineStyle] = {
    "byteps": (0, (6, 2)),
    "horovod": (0, (1, 1.5)),
    "mxnet-sync": (0, (5, 1.5, 1, 1.5)),
    "tensorflow-ps": (0, (5, 1.5, 1, 1.5, 1, 1.5)),
}
CONSTANTS = (
    "Constants of every system: experiments/systems.toml, fitted on Figure 12 and on 16 GPUs in Figures 15 and 16; "
    "all else is predicted."
)


def simulated_style(contender: str, *, second: bool = False) -> dict[str, Any]:
    """How a simulated point of this contender looks; `second`: of its second line."""
    colour = colour_of(contender)
    return {
        "color": colour,
        "marker": DIAMOND,
        "markersize": 4.8,
        "markeredgewidth": 0.8,
        "markeredgecolor": colour,
        "markerfacecolor": colour if second else "none",
        "markerfacecoloralt": "none",
        "fillstyle": "bottom" if second else "full",
        "linewidth": 0.9,
        "linestyle": _DASHES.get(contender, (0, (6, 2))),
    }


def simulated_points(
    axes: Axes,
    legend: Legend,
    what: str,
    contender: str,
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    second: bool = False,
    joined: bool = True,
) -> None:
    """Points of one line, in order; nothing without any."""
    if not xs:
        return
    style = simulated_style(contender, second=second)
    if not joined:
        style["linestyle"] = "none"
    axes.plot(xs, ys, **style)
    legend.add(SIMULATED, what, **style)


def beside_the_paper(
    page: Sheet,
    axes: Axes,
    points: Iterable[Point],
    place: Callable[[Number], float],
    *,
    second: Callable[[Number], bool] = lambda _: False,
    joined: bool = True,
) -> list[Gap]:
    """Crosses of the paper and diamonds of the simulation, line by line; over linear scaling where there is one.

    Returns what was not simulated, nothing if nothing was.
    """
    points = list(points)
    by_line: dict[str, list[Point]] = {}
    for point in points:
        by_line.setdefault(point.number.line, []).append(point)
    gaps: list[Gap] = []
    for what, some in by_line.items():
        first = some[0].number
        contender, is_second = first.wanted.contender, second(first)
        units = [point.number.linear or 1.0 for point in some]
        places = [place(point.number) for point in some]
        published = [point.number.value / unit for point, unit in zip(some, units, strict=True)]
        mark = _CROSSES.get(contender, (PAPER_MARK, PAPER_SECOND_MARK))[is_second]
        paper_points(page, axes, what, contender, places, published, mark=mark)
        known = [
            (where, point.simulated / unit)
            for where, unit, point in zip(places, units, some, strict=True)
            if point.simulated is not None
        ]
        xs, ys = [x for x, _ in known], [y for _, y in known]
        simulated_points(axes, page.legend, what, contender, xs, ys, second=is_second, joined=joined)
        gaps += [
            Gap(label=what, colour=colour_of(contender), x=where, at=point.number.where, reason=NOT_SIMULATED)
            for where, point in zip(places, some, strict=True)
            if point.simulated is None
        ]
    return [] if all(point.simulated is None for point in points) else gaps


def of_experiment(loaded: Loaded) -> list[Point]:
    """The paper's numbers that this experiment answers to, with its simulation."""
    return [point for point in errors.points(loaded.simulated) if point.number.wanted.experiment == loaded.experiment]


def command(experiment: str) -> str:
    return f"python -m experiments run {experiment} --on sim"


def simulated_text(loaded: Loaded, what: str) -> str:
    """Where the diamonds come from, for the caption: `what` says which machines."""
    if not loaded.simulated:
        return f"Not simulated yet: run `{command(loaded.experiment)}`."
    newest = max(one.started_at for one in loaded.simulated)[:10]
    return f"Diamonds: simulated {newest}, {what} {CONSTANTS}"
