"""Figure 13: training against all-reduce as CPU machines are added, on machines with PCIe only and with NVLink."""

from pathlib import Path

from matplotlib.axes import Axes

from experiments import paper
from experiments.analysis import Loaded
from experiments.errors import Point
from experiments.figures.series import Gap, gaps_text, mark_gaps
from experiments.figures.sheet import PAGE, THEORY_COLOUR, Sheet, sheet
from experiments.figures.simulated import beside_the_paper, of_experiment, simulated_text

MACHINES = {"pcie-only": "PCIe only", "nvlink": "NVLink"}
SECOND = paper.TITLES["gpt2"]  # its marks are plus signs and half-filled diamonds


def fig13_speedup(loaded: Loaded, folder: Path) -> list[Path]:
    """BytePS's speed over all-reduce's against k, a panel for each kind of machine."""
    published = paper.fig13()
    points = of_experiment(loaded)
    gaps: list[Gap] = []
    with sheet("Figure 13 simulated: training on 8 machines of 8 GPUs", columns=2, width=PAGE, height=2.3) as page:
        for axes, (machine, title) in zip(page.panels, MACHINES.items(), strict=True):
            some = [point for point in points if point.number.wanted.machine == machine]
            gaps += _panel(page, axes, some)
            axes.set_title(title, fontsize=8)
            axes.set_xlabel("CPU machines k")
        highest = max(max(point.number.value, point.simulated or 0.0) for point in points)
        for axes in page.panels:
            axes.set(ylim=(0.95, highest + 0.08))
        page.panels[0].set_ylabel("speed of BytePS / speed of all-reduce")
        caption = [
            "BytePS's training throughput over that of all-reduce (Horovod, NCCL) on the same GPU machines, which "
            "makes no use of CPU machines.",
            simulated_text(loaded, "both on machines as in the paper's Figures 6 and 8 whose NICs carry 90 Gbit/s."),
            gaps_text(gaps),
            f"Crosses: {published.citation}, read from the published figure.",
        ]
        return page.save(folder, "fig13_speedup", caption)


def all_reduce_line(page: Sheet, axes: Axes) -> None:
    """What speed-ups are over."""
    axes.axhline(1.0, color=THEORY_COLOUR, linewidth=1.2)
    page.legend.add("Reference", "All-reduce on the same machines", color=THEORY_COLOUR, linewidth=1.2)


def _panel(page: Sheet, axes: Axes, points: list[Point]) -> list[Gap]:
    all_reduce_line(page, axes)
    gaps = beside_the_paper(page, axes, points, lambda one: float(one.wanted.k), second=lambda one: one.line == SECOND)
    mark_gaps(axes, gaps)
    axes.set_xticks(sorted({point.number.wanted.k for point in points}))
    axes.grid(axis="x", visible=False)
    return gaps
