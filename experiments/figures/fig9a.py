"""Figure 9a: optimisers on the CPU that sums, relative to the sum alone."""

from pathlib import Path
from statistics import median
from typing import Any

from experiments import paper
from experiments.analysis import Loaded
from experiments.figures.sheet import PAPER_MARK, THEORY_COLOUR, sheet, source_text
from experiments.optimiser import CONTENDER, LABELS, relative
from experiments.optimisers import UPDATES


def fig9a_optimisers(loaded: Loaded, folder: Path) -> list[Path]:
    """Throughput with each optimiser over that without, beside the paper's bars."""
    published = paper.fig9a()
    names = list(UPDATES)
    with sheet("Optimisers on the CPU that sums") as page:
        (axes,), legend = page.panels, page.legend
        axes.axhline(1.0, color=THEORY_COLOUR, linewidth=0.7, linestyle="--")
        blocks = 0
        for index, name in enumerate(names):
            values = list(relative(loaded.records, name).values())
            blocks = max(blocks, len(values))
            if not values:
                axes.annotate("no usable launch", (index, 0.04), rotation=90, fontsize=7, ha="center")
                continue
            middle = median(values)
            bars = [[middle - min(values)], [max(values) - middle]] if len(values) > 1 else None
            style: dict[str, Any] = {"marker": "o", "color": CONTENDER.colour, "markersize": 4.5, "linestyle": "none"}
            axes.errorbar([index], [middle], yerr=bars, capsize=3, elinewidth=1.0, **style)
            legend.add("Measured", "numpy, 1 core", **style)
            if len(values) == 1:
                axes.annotate("n=1", (index, middle), xytext=(5, -3), textcoords="offset points", fontsize=7)
        for bars_of, label, colour, apart in (
            (published.cpu, "CPU", "black", 0.13),
            (published.mkl, "MKL", "0.5", 0.26),
        ):
            paper_style: dict[str, Any] = {
                "linestyle": "none",
                "marker": PAPER_MARK,
                "color": colour,
                "markersize": 4.5,
            }
            axes.plot([names.index(name) + apart for name in bars_of], list(bars_of.values()), **paper_style)
            legend.add("Paper", f"{label}, {published.cores} cores", **paper_style)
        axes.set(ylabel="relative to the sum alone", ylim=(0, 1.15), xlim=(-0.5, len(names) - 0.3))
        axes.set_xticks(range(len(names)), [LABELS[name] for name in names])
        axes.grid(axis="x", visible=False)
        caption = [
            "Measured: rounds per second of a summation service that also updates the weights, over those of one that "
            "only sums; 64 MiB of float32 from one worker over a socket pair, without a network.",
            f"{source_text(loaded)}; medians over {blocks} blocks, bars: range.",
            f"Crosses: {published.citation}, another quantity: the training speed of VGG-16 at "
            f"{published.nic_gbps:.0f} Gbit/s, which hides a part of the optimiser's time. It has no bar for Adam.",
        ]
        return page.save(folder, "fig9a_optimisers", caption)
