"""Figure 14 emulated: ways to sum inside a machine with every link shaped, beside the simulation and the paper."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from experiments import paper
from experiments.analysis import Loaded
from experiments.figures.sheet import PAGE, PAPER_MARK, PAPER_SECOND_MARK, Sheet, sheet, source_text
from experiments.inside_results import IN_THE_PAPER, RING, TITLES, Way, ways
from experiments.lines import colour_of

MODELS = {"gpt2": ("GPT-2", PAPER_MARK), "ugatit": ("UGATIT", PAPER_SECOND_MARK)}
_OURS = colour_of("schedule-servers")
_FILLED: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 4.4, "color": _OURS}
_DIAMOND: dict[str, Any] = {
    "linestyle": "none",
    "marker": "D",
    "markersize": 4.0,
    "color": _OURS,
    "markerfacecolor": "white",
    "markeredgecolor": _OURS,
}
_TICK: dict[str, Any] = {"linestyle": "none", "marker": "_", "markersize": 13, "color": "0.35"}
_APART = 0.22


def fig14_emulated(loaded: Loaded, folder: Path) -> list[Path]:
    """Time of the ring over that of each way, by machine."""
    found = ways(loaded.records)
    machines = [name for name in TITLES if any(one.machine == name for one in found)]
    with sheet("Figure 14 emulated: ways to sum inside a machine", columns=2, width=PAGE, height=2.4) as page:
        for axes, name in zip(page.panels, TITLES, strict=True):
            some = [one for one in found if one.machine == name and one.name != RING]
            _panel(page, axes, name, some)
        page.panels[0].set_ylabel("speed / speed of a ring over all GPUs")
        worst = max((one.worst_share for one in found), default=0.0)
        sizes = ", ".join(
            f"{TITLES[name]}: {one.gpus} GPUs each, links {one.slower:g} times slower"
            for name in machines
            for one in [next(one for one in found if one.machine == name)]
        )
        published = paper.fig14()
        caption = [
            f"Two machines as in the paper's Figures 6 and 8, every PCIe, CPU, NVLink and NIC link emulated. {sizes}. "
            f"Bytes on every link are within {worst:.2%} of a gradient of what the formulas say. "
            f"{source_text(loaded)}.",
            "Copies between GPUs across PCIe switches cost no more than their bytes here (on the paper's machine 80 "
            "instead of 105 Gbit/s), which is kind to the ring and to the strawman.",
            f"Crosses: {published.citation}: training on 8 machines of 8 GPUs over all-reduce's, so that computation "
            "damps what summing gains; they are to be compared by their order.",
        ]
        return page.save(folder, "fig14_emulated", caption)


def _panel(page: Sheet, axes: Axes, machine: str, some: list[Way]) -> None:
    axes.axhline(1.0, color="0.35", linewidth=1.2)
    published = paper.fig14().speedup[machine]
    for place, one in enumerate(some):
        axes.plot([place], [one.by_bandwidth], **_TICK)
        axes.plot([place] * len(one.speeds), one.speeds, **_FILLED)
        axes.plot([place + _APART / 2], [one.simulated], **_DIAMOND)
        for (model, (title, mark)), side in zip(MODELS.items(), (-2, -1), strict=True):
            value = published[model].get(IN_THE_PAPER.get(one.name, one.name))
            if value is not None:
                style: dict[str, Any] = {"linestyle": "none", "marker": mark, "markersize": 4.5, "color": "0.2"}
                axes.plot([place + side * _APART / 2], [value], **style)
                page.legend.add("Paper", f"{title}, training", **style)
    page.legend.add("Emulated", "a launch, over the ring of its block", **_FILLED)
    page.legend.add("Simulated", "the same schedules on the same links", **_DIAMOND)
    page.legend.add("Theory", "if only the busiest link counted", **_TICK)
    axes.set_xticks(range(len(some)), [one.name for one in some], fontsize=8)
    axes.set_xlim(-0.6, max(len(some), 1) - 0.4)
    axes.set_ylim(bottom=0)
    axes.set_title(TITLES[machine], fontsize=8)
    axes.grid(axis="x", visible=False)
