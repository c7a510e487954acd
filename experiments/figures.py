"""The figures, drawn from records alone: one function per figure.

A colour means a contender, a mark means a provenance, and points of different provenance are never joined:

    theory     a line without points
    paper      a cross in the contender's colour, cited in the caption
    emulated   a filled mark, joined by a thin line; hollow for a contender that spins and was CPU-bound
    measured   a filled mark

A point is the median over launches, its bar their range from least to largest; a single launch has no bar and says n=1.
A point without any usable launch is a gap with its reason.  PNG for the screen, PDF with TrueType fonts for papers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from baselines.contenders import CONTENDERS
from baselines.launch import Contender
from byteps import theory
from byteps.units import format_nbytes, format_rate
from experiments import paper
from experiments.analysis import Loaded, frame, load

PAPER_MARK = "x"
THEORY_COLOUR = "0.35"
PS_COLOUR = "#CC79A7"  # of the parameter server, which has no contender of its own yet
DEFAULT_PARTITION = "4096000"


@contextmanager
def _sheet(title: str, caption: str) -> Iterator[tuple[Figure, Axes]]:
    with sns.axes_style("whitegrid"), plt.rc_context({"pdf.fonttype": 42, "ps.fonttype": 42, "font.size": 9}):
        figure, axes = plt.subplots(figsize=(6.4, 4.8), layout="constrained")
        axes.set_title(title, fontsize=10)
        figure.supxlabel(caption, fontsize=6.5, x=0.01, ha="left", linespacing=1.35)
        yield figure, axes
        plt.close(figure)


def _save(figure: Figure, folder: Path, name: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.pdf"]
    for path in paths:
        figure.savefig(path, dpi=160, metadata={"Software": None} if path.suffix == ".png" else {"CreationDate": None})
    return paths


def _source_text(loaded: Loaded) -> str:
    if loaded.source == "none":
        return "no records yet: run `python -m experiments run`"
    where = "committed reference run" if loaded.source == "reference" else "this machine's run"
    return f"{where}, tier {loaded.tier}"


def _launches_text(table: pd.DataFrame) -> str:
    used = table[table["verified"]]
    counts = used.groupby(["contender", "partition", "dtype", "cores", "k"]).size()
    if counts.empty:
        return "no usable launch"
    low, high = counts.min(), counts.max()
    return f"{low} per point" if low == high else f"{low} to {high} per point"


def _label(contender: Contender, partition: str) -> str:
    return f"{contender.label}, 4,096,000-byte partitions" if partition == DEFAULT_PARTITION else contender.label


def _series(axes: Axes, rows: pd.DataFrame, *, label: str, colour: str, marker: str, hollow: bool) -> None:
    """Medians, ranges, and n=1 where there is a single launch."""
    sns.lineplot(
        data=rows,
        x="k",
        y="goodput_fraction",
        estimator="median",
        errorbar=("pi", 100),
        err_style="bars",
        err_kws={"capsize": 2.5, "elinewidth": 0.8},
        linewidth=0.8,
        color=colour,
        marker=marker,
        markersize=5.5,
        markeredgecolor=colour,
        markeredgewidth=1.0,
        markerfacecolor="white" if hollow else colour,
        label=label or "_nolegend_",
        ax=axes,
    )
    for k, group in rows.groupby("k"):
        if len(group) == 1:
            where = (k, group["goodput_fraction"].iloc[0])
            axes.annotate("n=1", where, xytext=(4, -9), textcoords="offset points", fontsize=6, color=colour)


def fig12_goodput(loaded: Loaded, folder: Path) -> list[Path]:
    """Figure 12: goodput against k, as a fraction of the NIC's goodput."""
    published = paper.fig12()
    table = frame(loaded.records)
    if not table.empty:  # one size per figure: the one closest to the claims' 64 MiB
        size = min(table["nbytes"].unique(), key=lambda nbytes: abs(nbytes - 2**26))
        table = table[table["nbytes"] == size]
    n = int(table["n"].iloc[0]) if not table.empty else published.n
    caption = (
        "Goodput M/t over the NIC's goodput, so that both NIC rates compare: 90 Gbit/s of a 100 Gbit/s NIC with RDMA "
        "in the paper,\nrate x 1448/1514 with TCP here. "
        + (
            f"Emulated: {n} GPU machines, {format_nbytes(int(table['nbytes'].iloc[0]))} per worker, NICs of "
            f"{format_rate(float(table['nic_bytes_per_s'].iloc[0]))}, {_source_text(loaded)}."
            if not table.empty
            else f"Emulated: {_source_text(loaded)}."
        )
        + f"\nPoints: median over launches ({_launches_text(table)}), bars: their range. "
        + "The ring does not depend on k: it runs at k = 0 only."
        + f"\nCrosses: {published.citation}, read from the published figure."
    )
    with _sheet("Goodput against the number of CPU machines", caption) as (figure, axes):
        ks = list(range(n + 1))
        axes.plot(
            ks, [theory.goodput(n, k, 1.0) for k in ks], color=THEORY_COLOUR, linewidth=1.2, label="Optimum (theory)"
        )
        if n == published.n:
            for what, colour, values in (
                ("BytePS", CONTENDERS["byteps"].colour, published.byteps),
                ("All-reduce", CONTENDERS["gloo-ring"].colour, published.allreduce),
                ("MXNet parameter server", PS_COLOUR, published.ps),
            ):
                fractions = [value / published.nic_goodput_gbps for value in values]
                axes.plot(
                    published.k,
                    fractions,
                    linestyle="none",
                    marker=PAPER_MARK,
                    color=colour,
                    label=f"{what}, paper",
                )
        for (name, partition), rows in table.groupby(["contender", "partition"], sort=False):
            _contender_series(axes, CONTENDERS[name], str(partition), rows)
        axes.set(xlabel="CPU machines k", ylabel="goodput / NIC goodput", ylim=(0, 1.25), xticks=ks)
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(0.0, 1.0))
        return _save(figure, folder, "fig12_goodput")


def _unbroken(rows: pd.DataFrame, usable: pd.DataFrame) -> list[pd.DataFrame]:
    """The usable launches, parted where a k that was tried has none: a line must not bridge a gap."""
    present = set(usable["k"])
    runs: list[list[int]] = [[]]
    for k in sorted(set(rows["k"])):
        if k in present:
            runs[-1].append(k)
        elif runs[-1]:
            runs.append([])
    return [usable[usable["k"].isin(run)] for run in runs if run]


def _contender_series(axes: Axes, contender: Contender, partition: str, rows: pd.DataFrame) -> None:
    usable = rows[rows["verified"]]
    second = partition == DEFAULT_PARTITION
    marker = "v" if second else contender.marker
    colour = sns.light_palette(contender.colour, 4)[2] if second else contender.colour
    label = f"{_label(contender, partition)}, emulated"
    for index, part in enumerate(_unbroken(rows, usable)):
        _series(axes, part, label="" if index else label, colour=colour, marker=marker, hollow=False)
        if not contender.uses_k:
            axes.axhline(usable["goodput_fraction"].median(), color=colour, linewidth=0.6, linestyle=":")
    left = rows[~rows["k"].isin(usable["k"])]
    bound = left[left["correct"] & (left["verdict"] == "cpu-bound")] if contender.spins else left.iloc[0:0]
    if not bound.empty:
        _series(axes, bound, label=f"{label}, CPU-bound", colour=colour, marker=marker, hollow=True)
    for k, gap in left[~left["k"].isin(bound["k"])].groupby("k"):
        reason = "failed" if not gap["correct"].any() else "not faithful"
        axes.annotate(
            f"{contender.label}: {reason}",
            (float(k), 0.02),
            rotation=90,
            fontsize=6,
            color=colour,
            ha="right" if second else "left",
        )


def fig9b_adder(loaded: Loaded, folder: Path) -> list[Path]:
    """Figure 9b: how fast CPUs add gradients, against NICs."""
    published = paper.fig9b()
    table = frame(loaded.records)
    usable = table[table["verified"]].copy()
    host = loaded.records[0].host if loaded.records else {}
    machine = f"{host['cores']} cores, {host['cpu']}" if host else "no records"
    caption = (
        "Gradient bytes summed per second by the summation service's kernel; fp16 and bf16 accumulate in fp32.\n"
        f"Measured: {machine}; {_source_text(loaded)}; medians over launches ({_launches_text(table)}), bars: range.\n"
        f"Crosses: {published.citation}, a {published.cores}-core machine, read from the published figure."
    )
    with _sheet("Throughput of the CPU adder", caption) as (figure, axes):
        order = ["fp32", "fp16", "bf16"]
        palette = {"1": "#56B4E9", "all": CONTENDERS["cpu-adder"].colour}
        if not usable.empty:
            sns.pointplot(
                data=usable,
                x="dtype",
                y="gbit_per_s",
                hue="cores",
                order=order,
                hue_order=["1", "all"],
                palette=palette,
                estimator="median",
                errorbar=("pi", 100),
                linestyle="none",
                markers=["o", "D"],
                markersize=5,
                capsize=0.06,
                err_kws={"linewidth": 1.0},
                dodge=0.2,
                ax=axes,
            )
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
                handle.set_label("1 core, measured" if name == "1" else f"all {host['cores']} cores, measured")
        crosses = axes.plot(
            [0, 1], [published.fp32, published.fp16], linestyle="none", marker=PAPER_MARK, color="black"
        )
        crosses[0].set_label(f"{published.cores} cores, paper")
        for rate in (10, 25, 100):
            axes.axhline(rate, color=THEORY_COLOUR, linewidth=0.7, linestyle="--")
            axes.text(2.48, rate, f"{rate} Gbit/s NIC", fontsize=6.5, ha="right", va="bottom", color=THEORY_COLOUR)
        for index, dtype in enumerate(order):
            for cores, rows in usable[usable["dtype"] == dtype].groupby("cores"):
                if len(rows) == 1:
                    where = (index + (-0.1 if cores == "1" else 0.1), rows["gbit_per_s"].iloc[0])
                    axes.annotate("n=1", where, xytext=(5, -3), textcoords="offset points", fontsize=6)
            if not (usable["dtype"] == dtype).any():
                axes.annotate(f"{dtype}: no usable launch", (index, 1.2), rotation=90, fontsize=6, ha="center")
        axes.set(xlabel="", ylabel="Gbit/s of gradients", yscale="log", ylim=(1, 500), xlim=(-0.5, 2.5))
        axes.set_xticks(range(3), order)
        axes.legend(fontsize=7, loc="lower left")
        return _save(figure, folder, "fig9b_adder")


def draw_all(results: Path) -> list[Path]:
    """Every figure, into results/figures."""
    folder = results / "figures"
    return [
        *fig12_goodput(load(results, "fig12"), folder),
        *fig9b_adder(load(results, "fig9b"), folder),
    ]
