"""Figure 14: what knowing the inside of a machine brings, for each way to sum in it."""

from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes

from experiments import paper
from experiments.analysis import Loaded
from experiments.errors import Number, Point, Simulation
from experiments.figures.fig13 import MACHINES, SECOND, all_reduce_line
from experiments.figures.series import Gap, gaps_text, mark_gaps
from experiments.figures.sheet import PAGE, Sheet, sheet
from experiments.figures.simulated import beside_the_paper, of_experiment, simulated_points, simulated_text

PLANNED = "planned"
NAMES = {"optimal": "CPU-assisted", PLANNED: "planned\nby BytePS"}
_APART = 0.13


def fig14_topology(loaded: Loaded, folder: Path) -> list[Path]:
    """BytePS's speed over all-reduce's for each way to sum inside a machine; ways are no series: nothing is joined."""
    published = paper.fig14()
    points = of_experiment(loaded)
    planned = _planned(loaded, points)
    gaps: list[Gap] = []
    with sheet("Figure 14 simulated: ways to sum inside a machine", columns=2, width=PAGE, height=2.4) as page:
        for axes, (machine, title) in zip(page.panels, MACHINES.items(), strict=True):
            of_machine = [
                [point for point in some if point.number.wanted.machine == machine] for some in (points, planned)
            ]
            gaps += _panel(page, axes, *of_machine)
            axes.set_title(title, fontsize=8)
        highest = max(max(point.number.value, point.simulated or 0.0) for point in [*points, *planned])
        for axes in page.panels:
            axes.set(ylim=(0.95, highest + 0.08))
        page.panels[0].set_ylabel("speed of BytePS / speed of all-reduce")
        caption = [
            "BytePS's training throughput on 8 machines of 8 GPUs, without CPU machines, over that of all-reduce "
            "(Horovod, NCCL). root=...: the GPUs that collect a machine's sum and hand it to the CPU; GPUs 0 and 1 "
            f"share the NIC's PCIe switch.{' What BytePS plans itself has no cross.' if planned else ''}",
            simulated_text(loaded, "both on machines as in the paper's Figures 6 and 8 whose NICs carry 90 Gbit/s."),
            gaps_text(gaps),
            f"Crosses: {published.citation}, read from the published figure.",
        ]
        return page.save(folder, "fig14_topology", caption)


def _planned(loaded: Loaded, points: list[Point]) -> list[Point]:
    """What the planner's choice brings, where it was simulated."""
    simulation = Simulation.of(loaded.simulated)
    numbers = {
        point.number.wanted: replace(point.number, where=PLANNED, ways=(PLANNED,), value=1.0) for point in points
    }
    found = [Point(number=number, simulated=simulation.value(number)) for number in numbers.values()]
    return [point for point in found if point.simulated is not None]


def _panel(page: Sheet, axes: Axes, points: list[Point], planned: list[Point]) -> list[Gap]:
    all_reduce_line(page, axes)
    ways = list(dict.fromkeys(point.number.where for point in [*points, *planned]))

    def place(number: Number) -> float:
        return ways.index(number.where) + (_APART if number.line == SECOND else -_APART)

    gaps = beside_the_paper(page, axes, points, place, second=lambda one: one.line == SECOND, joined=False)
    for point in planned:
        number, is_second = point.number, point.number.line == SECOND
        simulated_points(
            axes,
            page.legend,
            number.line,
            "byteps",
            [place(number)],
            [point.simulated or 0.0],
            second=is_second,
            joined=False,
        )
    mark_gaps(axes, gaps)
    axes.set_xticks(range(len(ways)), [NAMES.get(way, way) for way in ways], fontsize=8)
    axes.set_xlim(-0.5, len(ways) - 0.5)
    axes.grid(axis="x", visible=False)
    return gaps
