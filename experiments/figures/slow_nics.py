"""The same models on slower NICs: share of linear scaling, side by side."""

from pathlib import Path

import numpy as np

from experiments import paper
from experiments.analysis import Loaded, attempted, frame
from experiments.figures.fig15_16 import without_and_with
from experiments.figures.series import Gap, beside, draw, gaps_text, mark_gaps, spread
from experiments.figures.sheet import (
    PAGE,
    THEORY_COLOUR,
    absent_entries,
    kind,
    launches_text,
    linear_scaling,
    replay_text,
    sheet,
    source_text,
)

_APART = 0.11


def slow_nics(loaded: Loaded, folder: Path) -> list[Path]:
    """Throughput over linear scaling, a place for each model; models are no series, so nothing is joined."""
    table = frame(attempted(loaded.records))
    names = list(dict.fromkeys(table["workload"]))
    table = table.assign(place=table["workload"].map(names.index))
    titles = [paper.TITLES.get(name, name) for name in names]
    n = int(table["n"].max()) if len(table) else 0
    with sheet(f"Training on {n} machines with slower NICs", width=PAGE, height=2.4) as page:
        (axes,), legend = page.panels, page.legend
        linear_scaling(page, axes)
        gaps: list[Gap] = []
        found = list(without_and_with(table))
        for index, (look, rows) in enumerate(found):
            gaps += draw(
                axes,
                legend,
                rows,
                look,
                x="place",
                y="efficiency",
                place=beside(spread(index, len(found), _APART)),
                words=lambda place: titles[int(place)],
                joined=False,
            )
        mark_gaps(axes, gaps)
        not_run = absent_entries(loaded, legend)
        axes.set(ylabel="throughput / linear scaling", ylim=(0, 1.08), xlim=(-0.5, max(len(names), 1) - 0.5))
        axes.set_xticks(range(len(names)), titles, fontsize=8)
        axes.grid(axis="x", visible=False)
        for edge in np.arange(0.5, len(names) - 1):
            axes.axvline(edge, color=THEORY_COLOUR, linewidth=0.3)
        caption = [
            "Throughput over linear scaling: computation (backward and forward pass) / time of an iteration.",
            f"{kind(table)}: {replay_text(table)}; {source_text(loaded)}. Points: median over launches "
            f"({launches_text(table, ['workload', 'line', 'n', 'k'])}), bars: their range.",
            gaps_text(gaps),
            not_run,
        ]
        return page.save(folder, "slow_nics", caption)
