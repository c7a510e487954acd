"""Figure 12: goodput against k, as a fraction of the NIC's goodput."""

from pathlib import Path

import pandas as pd

from byteps import theory
from byteps.units import format_nbytes, format_rate
from experiments import paper
from experiments.analysis import Loaded, attempted, frame
from experiments.cluster import optimum_goodput
from experiments.figures.against_k import ANY_K, finish_axis, lines_against_k, looks
from experiments.figures.series import gaps_text, mark_gaps
from experiments.figures.sheet import (
    Sheet,
    absent_entries,
    kind,
    launches_text,
    paper_points,
    sheet,
    source_text,
    theory_line,
)
from experiments.figures.simulated import beside_the_paper, of_experiment, simulated_text
from experiments.lines import Line

WANTED_NBYTES = 2**26  # the claims' size; a contender that did not run it is shown at its nearest one


def of_wanted_size(table: pd.DataFrame) -> pd.DataFrame:
    """One size per line: the wanted one, or the nearest that it ran."""
    parts = []
    for look in looks(table):
        rows = table[table["look"] == look]
        size = min(rows["nbytes"].unique(), key=lambda nbytes: (abs(nbytes - WANTED_NBYTES), nbytes))
        parts.append(rows[rows["nbytes"] == size])
    return pd.concat(parts) if parts else table


def _size_notes(table: pd.DataFrame) -> dict[Line, str]:
    """Names of lines whose size is not the largest one."""
    sizes = {look: int(table[table["look"] == look]["nbytes"].iloc[0]) for look in looks(table)}
    largest = max(sizes.values(), default=0)
    return {look: f", {format_nbytes(size)}" for look, size in sizes.items() if size != largest}


def _paper_marks(page: Sheet, published: paper.Figure12) -> None:
    (axes,) = page.panels
    for what, contender, ks, values in (
        ("BytePS", "byteps", published.k, published.byteps),
        ("All-reduce (Horovod, NCCL)", "horovod", [ANY_K], published.allreduce[:1]),
        ("Parameter server (MXNet)", "mxnet-sync", published.k, published.ps),
    ):
        paper_points(page, axes, what, contender, ks, [value / published.nic_goodput_gbps for value in values])


def fig12_goodput(loaded: Loaded, folder: Path) -> list[Path]:
    """Goodput of one synchronisation against the number of CPU machines."""
    published = paper.fig12()
    table = of_wanted_size(frame(attempted(loaded.records)))
    n = int(table["n"].max()) if not table.empty else published.n
    site = str(table["site"].iloc[0]) if not table.empty else ""
    with sheet("Goodput against the number of CPU machines") as page:
        (axes,), legend = page.panels, page.legend
        ks = list(range(n + 1))
        optimum = "Optimum; at any k: the ring's bound"
        theory_line(page, axes, optimum, ks, [optimum_goodput(site, n, k) for k in ks])
        theory_line(page, axes, optimum, [ANY_K - 0.5, ANY_K + 0.5], [optimum_goodput(site, n, 0)] * 2)
        if n == published.n:
            _paper_marks(page, published)
        notes = _size_notes(table)
        gaps = lines_against_k(axes, legend, table, "goodput_fraction", notes=notes)
        not_run = absent_entries(loaded, legend)
        axes.set(ylabel="goodput / NIC goodput", ylim=(0, 1.05))
        finish_axis(axes, ks)
        emulated = f"{kind(table)}: {source_text(loaded)}."
        if not table.empty:
            emulated = (
                f"{kind(table)}: {n} GPU machines, {format_nbytes(int(table['nbytes'].max()))} per worker"
                f"{' (less where the legend says so)' if notes else ''}, NICs of "
                f"{format_rate(float(table['nic_bytes_per_s'].iloc[0]))}, {source_text(loaded)}."
            )
        caption = [
            "Goodput M/t over the NIC's goodput, so that NIC rates and sizes compare: 90 Gbit/s of a 100 Gbit/s NIC "
            "with RDMA in the paper, rate x 1448/1514 with TCP here. What makes no use of CPU machines is at 'any k'.",
            f"{emulated} Points: median over launches ({launches_text(table, ['line', 'k'])}), bars: their range.",
            gaps_text(gaps),
            not_run,
            f"Crosses: {published.citation}, read from the published figure.",
        ]
        return page.save(folder, "fig12_goodput", caption)


def fig12_simulated(loaded: Loaded, folder: Path) -> list[Path]:
    """The same on the paper's cluster: simulated beside the paper and the optimum."""
    published = paper.fig12()
    points = of_experiment(loaded)
    with sheet("Figure 12 simulated: goodput of 8 one-GPU machines") as page:
        (axes,) = page.panels
        gbps, ks = published.nic_goodput_gbps, published.k
        optimum = "Optimum; at any k: the ring's bound"
        theory_line(page, axes, optimum, ks, [theory.goodput(published.n, k, gbps) for k in ks])
        theory_line(page, axes, optimum, [ANY_K - 0.5, ANY_K + 0.5], [theory.goodput(published.n, 0, gbps)] * 2)
        gaps = beside_the_paper(page, axes, points, lambda one: ANY_K if one.where == "any k" else float(one.wanted.k))
        mark_gaps(axes, gaps)
        axes.set(ylabel="goodput, Gbit/s", ylim=(0, 1.05 * gbps))
        finish_axis(axes, ks)
        caption = [
            "Goodput M/t of one synchronisation. What makes no use of CPU machines stands at 'any k'.",
            simulated_text(loaded, f"on machines whose NICs carry {gbps:g} Gbit/s.") + " These points were fitted.",
            gaps_text(gaps),
            f"Crosses: {published.citation}, read from the published figure.",
        ]
        return page.save(folder, "fig12_simulated", caption)
