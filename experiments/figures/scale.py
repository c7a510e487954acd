"""Figures 15 and 16: training six models on 8 to 256 GPUs, simulated beside the paper."""

from pathlib import Path

from matplotlib.axes import Axes

from experiments import paper
from experiments.analysis import Loaded
from experiments.errors import FITTED_GPUS
from experiments.figures.series import Gap, gaps_text, mark_gaps
from experiments.figures.sheet import PAGE, THEORY_COLOUR, linear_scaling, sheet
from experiments.figures.simulated import beside_the_paper, of_experiment, simulated_text


def scale_models(loaded: Loaded, folder: Path) -> list[Path]:
    """Throughput over linear scaling against the number of GPUs, a panel for each model."""
    published = paper.fig15_16()
    points = of_experiment(loaded)
    gaps: list[Gap] = []
    with sheet("Figures 15 and 16 simulated", rows=2, columns=3, width=PAGE, height=3.7) as page:
        for axes, (model, title) in zip(page.panels, paper.TITLES.items(), strict=True):
            linear_scaling(page, axes)
            some = [point for point in points if point.number.wanted.model == model]
            of_model = beside_the_paper(
                page,
                axes,
                some,
                lambda one: float(one.wanted.n * published.gpus_per_machine),
                second=lambda one: one.line == "BytePS, k = 0",
            )
            mark_gaps(axes, of_model)
            _mark_fitted(axes)
            gaps += of_model
            axes.set_title(f"{title} ({published.model[model].framework})", fontsize=8)
            axes.set_xscale("log", base=2)
            axes.set(ylim=(0, 1.08), xlim=(published.gpus[0] / 1.3, published.gpus[-1] * 1.3))
            axes.set_xticks(published.gpus, map(str, published.gpus))
            axes.minorticks_off()
            axes.grid(axis="x", visible=False)
        for axes in page.panels[3:]:
            axes.set_xlabel("GPUs, 8 a machine")
        for axes in page.panels[::3]:
            axes.set_ylabel("throughput / linear scaling")
        caption = [
            "Throughput over linear scaling. All-reduce: Horovod with NCCL. PS: the framework's own, with as many CPU "
            "machines as GPU machines; the paper has none for PyTorch.",
            simulated_text(loaded, "on machines with NVLink whose NICs carry 90 Gbit/s.")
            + " 8 GPUs are one machine and say nothing about the network.",
            gaps_text(gaps),
            f"Crosses: {published.citation}, read from the published figures.",
        ]
        return page.save(folder, "scale_models", caption)


def _mark_fitted(axes: Axes) -> None:
    axes.axvspan(FITTED_GPUS / 1.25, FITTED_GPUS * 1.25, color="0.92", zorder=0)
    axes.annotate(
        "fitted",
        (FITTED_GPUS, 0.01),
        xycoords=axes.get_xaxis_transform(),
        fontsize=7,
        color=THEORY_COLOUR,
        ha="center",
    )
