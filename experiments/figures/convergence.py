"""Loss of every synchronisation mode against epochs and against time, and the time to a target loss."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes

from byteps.units import format_rate, parse_rate
from experiments import curves
from experiments.analysis import Loaded
from experiments.convergence import (
    MODES,
    NIC,
    PACE_SECONDS,
    SERVERS,
    STRAGGLERS,
    TARGETS,
    TASKS,
    WORKERS,
    median_seconds,
    middle,
    of,
    seconds_to_target,
    tasks_of,
)
from experiments.figures.sheet import PAGE, SMALL, THEORY_COLOUR, Legend, sheet, source_text
from experiments.record import Record

_COLOURS: Final = {"bsp": "#0072B2", "ssp:1": "#009E73", "ssp:3": "#E69F00", "async": "#D55E00"}
_LOOKS: Final[dict[str, dict[str, Any]]] = {
    "1": {"linestyle": "-", "marker": "o"},
    "3": {"linestyle": (0, (3, 1.5)), "marker": "s"},
}
_NAMES: Final = {"digits": "digits", "char": "characters"}


def convergence_loss(loaded: Loaded, folder: Path) -> list[Path]:
    """A row for each task."""
    tasks = tasks_of(loaded.records) or list(TASKS)
    with sheet(
        "Convergence of synchronisation modes", rows=len(tasks), columns=3, width=PAGE, height=2 * len(tasks)
    ) as (page):
        for row, task in enumerate(tasks):
            by_epochs, by_time, to_target = page.panels[3 * row : 3 * row + 3]
            for mode, label in MODES.items():
                for straggler, slow in STRAGGLERS.items():
                    line = of(loaded.records, task, mode, straggler)
                    style = {"color": _COLOURS[mode], "linewidth": 1.0, **_LOOKS[straggler]}
                    _curve(by_epochs, by_time, line, style)
                    if line:
                        page.legend.add(f"Emulated, {slow}", label, markersize=3.0, **style)
            _times(to_target, page.legend, loaded.records, task)
            for axes, what in ((by_epochs, "epochs of all workers"), (by_time, "seconds")):
                axes.axhline(TARGETS[task], color=THEORY_COLOUR, linewidth=0.6, linestyle=":")
                axes.set(xlabel=what, ylabel=f"loss, {_NAMES[task]}")
            to_target.set(ylabel=f"seconds until loss {TARGETS[task]:g}", ylim=(0, 1.15 * to_target.get_ylim()[1]))
        return page.save(folder, "convergence_loss", _caption(loaded))


def _curve(by_epochs: Axes, by_time: Axes, line: Sequence[Record], style: dict[str, Any]) -> None:
    one = middle(line)
    if one is None:
        return
    curve = curves.points(one)
    losses = [point.loss for point in curve]
    plain = {**style, "marker": "none"}
    by_epochs.plot([point.epochs for point in curve], losses, **plain)
    by_time.plot([point.seconds for point in curve], losses, **plain)


def _times(axes: Axes, legend: Legend, records: Sequence[Record], task: str) -> None:
    """A point for each line: the median over launches that reached the target, and their range."""
    for index, mode in enumerate(MODES):
        for straggler, apart in (("1", -0.14), ("3", 0.14)):
            line = of(records, task, mode, straggler)
            when = median_seconds(line)
            if not line:
                continue
            if when is None:
                legend.add(
                    "Not reached", "in the time given", marker="x", color="black", linestyle="none", markersize=4.5
                )
                axes.plot(
                    [index + apart],
                    [0.97],
                    "x",
                    color=_COLOURS[mode],
                    transform=axes.get_xaxis_transform(),
                    markersize=4.5,
                )
                continue
            times = [time for one in line if (time := seconds_to_target(one)) is not None]
            axes.errorbar(
                [index + apart],
                [when],
                yerr=[[when - min(times)], [max(times) - when]] if len(times) > 1 else None,
                color=_COLOURS[mode],
                marker=_LOOKS[straggler]["marker"],
                markersize=4.0,
                linestyle="none",
                elinewidth=0.8,
                capsize=2.5,
            )
    axes.set_xticks(
        range(len(MODES)), [label.replace(", ", "\n").replace("asyn", "asyn-\n") for label in MODES.values()]
    )
    axes.tick_params(axis="x", labelsize=SMALL)
    axes.grid(axis="x", visible=False)


def range_text(counts: Iterable[int]) -> str:
    """A number, or from least to largest."""
    ordered = sorted(set(counts)) or [0]
    return " to ".join(str(count) for count in sorted({ordered[0], ordered[-1]}))


def busy_text(records: Sequence[Record]) -> str:
    """How many of the launches shown do not pass as those of a network alone."""
    shown = [one for one in records if one.correct]
    busy = sum(not one.faithful for one in shown)
    return (
        f"{busy} of {len(shown)} launches were not faithful: a busy machine, or links off their rate." if busy else ""
    )


def _caption(loaded: Loaded) -> list[str]:
    lines = ((task, mode, straggler) for task in tasks_of(loaded.records) for mode in MODES for straggler in STRAGGLERS)
    launches = range_text(len(of(loaded.records, *line)) for line in lines)
    return [
        f"{WORKERS} workers, {SERVERS} servers, emulated NICs of {format_rate(parse_rate(NIC))}; a step computes "
        f"for {PACE_SECONDS} s, emulated by waiting, and three times as long on the straggler, the last worker. "
        "All lines train for the same time.",
        "Loss on data that nobody trains on, of rank 0's weights, which is never the straggler; epochs count all "
        "workers' samples. SSP and asynchronous training divide the learning rate by the number of workers.",
        f"{source_text(loaded)}; {launches} launches per line: the curve is that of the median last loss, points are "
        "medians, bars ranges; dotted: the target.",
        busy_text(loaded.records),
    ]
