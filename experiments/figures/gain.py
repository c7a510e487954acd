"""Where the gain comes from: how near to linear scaling each way to sum gets with each way to order the transfers."""

from pathlib import Path
from statistics import median

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes

from experiments import paper
from experiments.analysis import Loaded, absent, absent_text, attempted, frame
from experiments.figures.sheet import PAGE, kind, launches_text, replay_text, sheet, source_text
from experiments.gain import AS_IT_IS, ONE_BY_ONE, ORDERS, SCHEDULED, SUMS, Decomposition, decompose

_COLUMNS = 3


def gain_steps(loaded: Loaded, folder: Path) -> list[Path]:
    """A panel for each model: a row for each way to sum, a column for each way to order."""
    models = decompose(loaded.records)
    orders = [order for order in ORDERS if order != AS_IT_IS or any(_ran(model, order) for model in models)]
    rows = max(1, -(-len(models) // _COLUMNS))
    table = frame(attempted(loaded.records))
    with sheet(
        "Where the gain comes from: k = 0", rows=rows, columns=_COLUMNS, width=PAGE, height=0.1 + 1.7 * rows
    ) as page:
        for axes, model in zip(page.panels, models, strict=False):
            _panel(axes, model, orders)
        for axes in page.panels[len(models) :]:
            axes.set_axis_off()
        n = int(table["n"].max()) if len(table) else 0
        caption = [
            "Upper number and colour: share of linear scaling (computation / time of an iteration). Lower number: how "
            f"many times faster than the ring one by one. {n} GPU machines, no CPU machines. Ring: Horovod; PS: "
            "MXNet's servers beside the workers; split: BytePS.",
            "Fused: buckets; scheduled: partitions by priority, bounded bytes in flight: a scheduler of ours around "
            "the calls of ring and PS, BytePS's own for split. As it is: with its own fusion or order.",
            f"{kind(table)}: {replay_text(table)}; {source_text(loaded)}. Medians over launches "
            f"({launches_text(table, ['workload', 'line'])}).",
            absent_text(absent(loaded)),
        ]
        return page.save(folder, "gain_steps", caption)


def _ran(model: Decomposition, order: str) -> bool:
    return any(cell[1] == order for cell in (*model.seconds, *model.reasons))


def _panel(axes: Axes, model: Decomposition, orders: list[str]) -> None:
    base = ("ring", ONE_BY_ONE)
    values = np.full((len(SUMS), len(orders)), np.nan)
    texts = np.full(values.shape, "", dtype=object)
    for row, way in enumerate(SUMS):
        for column, order in enumerate(orders):
            share = model.share_of_linear((way, order))
            if share is None:
                continue
            values[row, column] = share
            ratios = model.ratios(base, (way, order))
            texts[row, column] = f"{share:.2f}" + (f"\n{median(ratios):.2f}x" if ratios else "")
    sns.heatmap(
        values,
        annot=texts,
        fmt="",
        vmin=0.0,
        vmax=1.15,  # so that white numbers stand on dark cells and dark ones on light cells
        cmap="Blues",
        cbar=False,
        linewidths=1.0,
        linecolor="white",
        annot_kws={"fontsize": 7},
        xticklabels=orders,
        yticklabels=list(SUMS),
        ax=axes,
    )
    axes.set_facecolor("0.93")
    axes.grid(visible=False)
    for row, way in enumerate(SUMS):
        for column, order in enumerate(orders):
            if np.isnan(values[row, column]):
                own = way == "split" and order == AS_IT_IS
                why = f"see\n{SCHEDULED}" if own else model.reasons.get((way, order), "no record").replace(" ", "\n")
                axes.text(column + 0.5, row + 0.5, why, fontsize=7, ha="center", va="center", color="0.35")
    axes.set_title(paper.TITLES.get(model.model, model.model), fontsize=8)
    axes.tick_params(labelsize=7, length=0)
    axes.set_yticklabels(axes.get_yticklabels(), rotation=0)
