"""Figure 4: training VGG-16 on four machines, with k CPU machines beside them."""

from pathlib import Path

import pandas as pd

from experiments import paper
from experiments.analysis import Loaded, attempted, frame
from experiments.errors import Number
from experiments.figures.against_k import ANY_K, finish_axis, lines_against_k
from experiments.figures.series import gaps_text, mark_gaps
from experiments.figures.sheet import (
    PAPER_MARK,
    PAPER_SECOND_MARK,
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
from experiments.figures.simulated import beside_the_paper, of_experiment, simulated_text


def fig4_vgg16(loaded: Loaded, folder: Path) -> list[Path]:
    """Images per second of a machine over those without any waiting, against k."""
    published = paper.fig4()
    table = frame(attempted(loaded.records))
    n = int(table["n"].max()) if not table.empty else published.n
    with sheet("Training VGG-16 on 4 machines" if n == 4 else f"Training VGG-16 on {n} machines") as page:
        (axes,), legend = page.panels, page.legend
        linear_scaling(page, axes)
        if n == published.n:
            _paper_marks(page, published)
        gaps = lines_against_k(axes, legend, table, "efficiency")
        not_run = absent_entries(loaded, legend)
        axes.set(ylabel="images/s over linear scaling", ylim=(0, 1.08))
        finish_axis(axes, list(range(n + 1)))
        crosses = (
            f"Crosses: {published.citation}, read from the published figure: {published.n} machines of 8 V100 GPUs, "
            f"100 Gbit/s RDMA, linear scaling {published.linear:.0f} images/s; plus signs: with ByteScheduler."
        )
        caption = [
            "Images per second over what the machines would do if they never waited: computation (backward and forward "
            "pass) / time of an iteration. What makes no use of CPU machines stands at 'any k'.",
            f"{kind(table)}: {replay_text(table)}; {source_text(loaded)}. Points: median over launches "
            f"({launches_text(table, ['line', 'k'])}), bars: their range.",
            gaps_text(gaps),
            not_run,
            crosses if n == published.n else "",
        ]
        return page.save(folder, "fig4_vgg16", caption)


def _paper_marks(page: Sheet, published: paper.Figure4) -> None:
    (axes,) = page.panels
    for what, contender, ks, values, mark in (
        ("BytePS", "byteps", published.k, published.byteps, PAPER_MARK),
        ("All-reduce (Horovod, NCCL)", "horovod", [ANY_K], published.allreduce[:1], PAPER_MARK),
        ("All-reduce + ByteScheduler", "horovod", [ANY_K], published.allreduce_bytescheduler[:1], PAPER_SECOND_MARK),
        ("Parameter server (MXNet)", "mxnet-sync", published.k, published.ps, PAPER_MARK),
        ("PS + ByteScheduler", "mxnet-sync", published.k, published.ps_bytescheduler, PAPER_SECOND_MARK),
    ):
        paper_points(page, axes, what, contender, ks, [value / published.linear for value in values], mark=mark)


def fig4_simulated(loaded: Loaded, folder: Path) -> list[Path]:
    """The same on the paper's cluster: simulated beside the paper, and the same systems emulated."""
    published = paper.fig4()
    points = of_experiment(loaded)
    simulated = {(point.number.wanted.contender, point.number.wanted.strategy) for point in points}
    table = frame([one for one in attempted(loaded.records) if one.case.n == published.n])
    same = [(look.contender, look.strategy) in simulated and not look.notes for look in table["look"]]
    table = table[pd.Series(same, index=table.index, dtype=bool)]
    with sheet("Figure 4 simulated: training VGG-16 on 4 machines of 8 GPUs") as page:
        (axes,) = page.panels
        linear_scaling(page, axes)
        gaps = beside_the_paper(page, axes, points, _place, second=lambda one: one.wanted.strategy == "scheduled")
        mark_gaps(axes, gaps)
        gaps += lines_against_k(axes, page.legend, table, "efficiency")
        axes.set(ylabel="images/s over linear scaling", ylim=(0, 1.08))
        finish_axis(axes, published.k)
        caption = [
            "Images per second over what the GPUs would do if they never waited. What makes no use of CPU machines "
            "stands at 'any k'.",
            simulated_text(loaded, "on machines with NVLink whose NICs carry 90 Gbit/s."),
            "" if table.empty else f"{kind(table)}: {replay_text(table)}; {source_text(loaded)}.",
            gaps_text(gaps),
            f"Crosses: {published.citation}, read from the published figure.",
        ]
        return page.save(folder, "fig4_simulated", caption)


def _place(number: Number) -> float:
    scheduled = number.wanted.strategy == "scheduled"
    return float(number.wanted.k) if number.wanted.contender != "horovod" else ANY_K + (0.2 if scheduled else -0.2)
