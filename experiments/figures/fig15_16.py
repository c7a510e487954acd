"""Figures 15 and 16 at small scale: training six models on 1 to 8 machines."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from experiments import paper
from experiments.analysis import Loaded, attempted, frame
from experiments.figures.against_k import looks
from experiments.figures.series import Gap, draw, gaps_text, mark_gaps, spread, times
from experiments.figures.sheet import (
    PAGE,
    PAPER_MARK,
    PAPER_SECOND_MARK,
    Legend,
    Sheet,
    absent_entries,
    kind,
    launches_text,
    linear_scaling,
    paper_points,
    replay_text,
    sheet,
    source_text,
)
from experiments.lines import AS_MANY_CPU_MACHINES, WITHOUT_CPU_MACHINES, Line

NS = (1, 2, 4, 8)
_APART = 1.025  # factor between lines at one n


def without_and_with(table: pd.DataFrame) -> Iterator[tuple[Line, pd.DataFrame]]:
    """Lines without CPU machines and with as many as GPU machines; a single machine belongs to both."""
    for look in looks(table):
        rows = table[table["look"] == look]
        if not look.uses_k:
            yield look, rows
            continue
        for k_text, chosen in (
            (WITHOUT_CPU_MACHINES, rows["k"] == 0),
            (AS_MANY_CPU_MACHINES, rows["k"] == rows["n"]),
        ):
            if (chosen & (rows["n"] > 1)).any():
                yield look.at(k_text), rows[chosen | (rows["n"] == 1)]


def fig15_16_models(loaded: Loaded, folder: Path) -> list[Path]:
    """Throughput over linear scaling against the number of machines, a panel for each model."""
    published = paper.fig15_16()
    table = frame(attempted(loaded.records))
    gaps: list[Gap] = []
    with sheet("Training on 1 to 8 machines", rows=2, columns=3, width=PAGE, height=3.6) as page:
        legend = page.legend
        for axes, (model, title) in zip(page.panels, paper.TITLES.items(), strict=True):
            linear_scaling(page, axes)
            _paper_marks(page, axes, published, model)
            rows = table[table["workload"].str.partition("@")[0] == model] if len(table) else table
            gaps += _panel(axes, legend, rows, title)
            axes.set_title(title, fontsize=8)
            axes.set_xscale("log", base=2)
            axes.set(ylim=(0, 1.08), xlim=(0.85, 9.5))
            axes.set_xticks(NS, map(str, NS))
            axes.minorticks_off()
            axes.grid(axis="x", visible=False)
        for axes in page.panels[3:]:
            axes.set_xlabel("GPU machines n")
        for axes in page.panels[::3]:
            axes.set_ylabel("throughput / linear scaling")
        not_run = absent_entries(loaded, legend)
        caption = [
            "Throughput over linear scaling: computation (backward and forward pass) / time of an iteration.",
            f"{kind(table)}: {replay_text(table)}; {source_text(loaded)}. Points: median over launches "
            f"({launches_text(table, ['workload', 'line', 'n', 'k'])}), bars: their range.",
            gaps_text(gaps),
            not_run,
            f"Crosses: {published.citation}, read from the published figures, at {published.gpus_per_machine} V100 "
            "GPUs a machine and 100 Gbit/s RDMA; its loss at n = 1 is inside the machine, which is not emulated.",
        ]
        return page.save(folder, "fig15_16_models", caption)


def _panel(axes: Axes, legend: Legend, rows: pd.DataFrame, title: str) -> list[Gap]:
    found = list(without_and_with(rows))
    gaps: list[Gap] = []
    for index, (look, chosen) in enumerate(found):
        factor = _APART ** spread(index, len(found), 1.0)
        gaps += draw(
            axes,
            legend,
            chosen,
            look,
            x="n",
            y="efficiency",
            place=times(factor),
            words=(title + ", n = {:g}").format,
        )
    mark_gaps(axes, gaps)
    return gaps


def _paper_marks(page: Sheet, axes: Axes, published: paper.Figures15And16, model: str) -> None:
    data = published.model[model]
    shown = [index for index, machines in enumerate(published.machines) if machines <= NS[-1]]
    for what, contender, values, mark in (
        ("BytePS, k = n", "byteps", data.byteps_kn, PAPER_MARK),
        ("BytePS, k = 0", "byteps", data.byteps_k0, PAPER_SECOND_MARK),
        ("All-reduce (Horovod, NCCL)", "horovod", data.allreduce, PAPER_MARK),
        ("Framework's PS, k = n", "mxnet-sync", data.ps, PAPER_MARK),
    ):
        if values:
            machines = [published.machines[index] for index in shown]
            fractions = [values[index] / data.linear[index] for index in shown]
            paper_points(page, axes, what, contender, machines, fractions, mark=mark)
