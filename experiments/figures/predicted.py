"""Figure 12 on the emulated cluster beside its simulation, and how far apart they are."""

from pathlib import Path

from matplotlib.axes import Axes

from byteps.units import format_nbytes, format_rate
from experiments.analysis import Loaded
from experiments.figures.against_k import ANY_K, finish_axis
from experiments.figures.fig12 import WANTED_NBYTES
from experiments.figures.series import EMULATED, spread
from experiments.figures.sheet import PAGE, THEORY_COLOUR, Sheet, mark_style, sheet, source_text
from experiments.figures.simulated import SIMULATED, simulated_points
from experiments.lines import Line, order_of
from experiments.predictions import Comparison, compare

CLAIMED = 0.05  # how close a prediction is said to be (see claims.toml)
_STEP = 0.16
_NARROW = 0.1


def fig12_predicted(loaded: Loaded, folder: Path) -> list[Path]:
    """Goodput against k, emulated and simulated; nothing where no case has both."""
    compared = of_wanted_size(compare(loaded.records, loaded.simulated))
    if not compared:
        return []
    n = max(one.case.n for one in compared)
    rate = compared[0].case.nic_bytes_per_s
    looks = sorted({one.line for one in compared}, key=order_of)
    with sheet("Figure 12: emulated against simulated", columns=2, width=PAGE, height=2.4) as page:
        left, right = page.panels
        for look in looks:
            some = sorted((one for one in compared if one.line == look), key=lambda one: one.case.k)
            _line(page, some, look, looks)
        left.set(ylabel="goodput / NIC goodput", ylim=(0, 1.05))
        right.set(ylabel="simulated speed / emulated speed - 1, %")
        right.axhspan(-100 * CLAIMED, 100 * CLAIMED, color="0.92", zorder=0)
        right.axhline(0.0, color=THEORY_COLOUR, linewidth=0.8)
        low, high = right.get_ylim()
        right.set_ylim(min(low, -150 * CLAIMED), max(high, 150 * CLAIMED))
        for axes in page.panels:
            finish_axis(axes, list(range(n + 1)))
        sizes = sorted({one.case.nbytes for one in compared})
        caption = [
            f"{n} GPU machines, {' or '.join(map(format_nbytes, sizes))} per worker, NICs of {format_rate(rate)}; "
            f"emulated: {source_text(loaded)}. Points: median over launches, bars: their range. Grey: "
            f"{CLAIMED:.0%} and less apart. What makes no use of CPU machines stands at 'any k'.",
            _predicted_text(compared),
        ]
        return page.save(folder, "fig12_predicted", caption)


def of_wanted_size(compared: list[Comparison]) -> list[Comparison]:
    """Of every line the size that Figure 12 shows, on the most machines."""
    n = max((one.case.n for one in compared), default=0)
    kept: dict[tuple[Line, int], Comparison] = {}
    for one in sorted(compared, key=lambda one: (abs(one.case.nbytes - WANTED_NBYTES), one.case.nbytes)):
        if one.case.n == n:
            kept.setdefault((one.line, one.case.k), one)
    return list(kept.values())


def _line(page: Sheet, compared: list[Comparison], look: Line, looks: list[Line]) -> None:
    same_axis = [other for other in looks if other.uses_k == look.uses_k]
    apart = spread(same_axis.index(look), len(same_axis), _NARROW if look.uses_k else _STEP)
    places = [one.case.k + apart if look.uses_k else ANY_K + apart for one in compared]
    left, right = page.panels
    style = mark_style(look) | {"linestyle": look.linestyle}
    goodput = [[one.goodput(seconds) for seconds in one.launch_seconds] for one in compared]
    middle = [one.goodput(one.emulated_seconds) for one in compared]
    left.plot(places, middle, **style)
    _bars(left, look, places, middle, goodput)
    page.legend.add(EMULATED, look.label, **style)
    simulated = [one.goodput(one.simulated_seconds) for one in compared]
    simulated_points(left, page.legend, look.label, look.contender, places, simulated, second=not look.main)
    errors = [100 * one.error for one in compared]
    right.plot(places, errors, **{**mark_style(look), "linestyle": "none"})
    _bars(right, look, places, errors, [[100 * error for error in one.errors] for one in compared])


def _bars(axes: Axes, look: Line, places: list[float], middle: list[float], values: list[list[float]]) -> None:
    """Least to greatest, where there are several."""
    several = [index for index, some in enumerate(values) if len(some) > 1]
    if several:
        below = [middle[index] - min(values[index]) for index in several]
        above = [max(values[index]) - middle[index] for index in several]
        axes.errorbar(
            [places[index] for index in several],
            [middle[index] for index in several],
            yerr=[below, above],
            fmt="none",
            ecolor=look.colour,
            elinewidth=0.8,
            capsize=2.5,
        )


def _predicted_text(compared: list[Comparison]) -> str:
    """Whether the simulation was there first."""
    late = [one for one in compared if not one.predicted]
    if not late:
        return f"{SIMULATED} before every launch that it is compared with: all points are predictions."
    if len(late) == len(compared):
        return f"{SIMULATED} after the launches that it is compared with: nothing here is a prediction."
    names = ", ".join(f"{one.line.label} k = {one.case.k}" for one in late)
    return f"{SIMULATED} after the launches, and so no predictions: {names}."
