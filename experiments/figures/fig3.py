"""Figure 3: a production cluster over three months, and the NICs that nobody uses."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from experiments import paper
from experiments.figures.sheet import PAPER_MARK, THEORY_COLOUR, sheet
from experiments.lines import colour_of

# Nobody's contender: the idle NICs are what BytePS makes use of, the rest is grey.
_SERIES = (
    ("distributed", "GPU machines that run a distributed job", THEORY_COLOUR, "-"),
    ("cpu_utilisation", "CPU utilisation", THEORY_COLOUR, ":"),
    ("idle_nics", "GPU machines whose NIC is idle: all others", colour_of("byteps"), "-"),
)


def fig3_cluster(folder: Path) -> list[Path]:
    """The paper's two series day by day, and the idle NICs that they imply."""
    trace = paper.fig3()
    with sheet("A production cluster day by day: idle NICs and CPUs") as page:
        (axes,) = page.panels
        for key, what, colour, linestyle in _SERIES:
            style: dict[str, Any] = {"color": colour, "linestyle": linestyle, "linewidth": 0.8}
            style |= {"marker": PAPER_MARK, "markersize": 3.5}
            axes.plot(getattr(trace, key), **style)
            page.legend.add("Paper", what, **style)
        firsts = [index for index, day in enumerate(trace.days) if day.day == 1]
        axes.set_xticks(firsts, [f"{trace.days[index]:%d %b %Y}" for index in firsts])
        axes.set(ylabel="%", ylim=(0, 100), xlim=(-1, len(trace.days)))
        caption = [
            f"Of the GPU machines {_range(trace.distributed)} run a distributed job. The others leave their NIC idle: "
            f"{_range(trace.idle_nics)}. For n machines of distributed jobs that is k = "
            f"{mean(trace.idle_nics) / mean(trace.distributed):.2f} n, without a single CPU machine. CPU utilisation: "
            f"{_range(trace.cpu_utilisation)}.",
            f"Crosses: {trace.citation}, read from the published figure; the idle NICs follow from it.",
        ]
        return page.save(folder, "fig3_cluster", caption)


def _range(percent: Sequence[float]) -> str:
    return f"{mean(percent):.1f} % in the mean ({min(percent):.0f} to {max(percent):.0f} %)"
