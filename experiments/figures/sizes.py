"""Sizes: where small tensors hurt, and what fusion brings.

One figure against the size of a single tensor, one against the number of tensors that a given number of bytes is cut
into.
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from byteps import theory
from byteps.units import format_nbytes, format_rate
from experiments.analysis import Loaded, attempted, frame
from experiments.cluster import optimum_goodput
from experiments.figures.against_k import looks
from experiments.figures.series import Gap, draw, gaps_text, mark_gaps, spread, times
from experiments.figures.sheet import (
    COLUMN,
    PAGE,
    THEORY_COLOUR,
    Sheet,
    absent_entries,
    kind,
    launches_text,
    log_axis,
    sheet,
    source_text,
    theory_line,
)
from experiments.groups import MIN_BURSTS, least_shaped_nbytes
from experiments.lines import AS_MANY_CPU_MACHINES, Line

_APART = 1.03


def by_k(table: pd.DataFrame) -> Iterator[tuple[Line, pd.DataFrame]]:
    """Lines, one for each k; named after it where there is more than one."""
    several = table["k"].nunique() > 1
    for look in looks(table):
        rows = table[table["look"] == look]
        for k in sorted(set(rows["k"])):
            text = AS_MANY_CPU_MACHINES if k == rows["n"].max() else f"k = {k}"
            yield (look.at(text) if several else look), rows[rows["k"] == k]


def sizes_time(loaded: Loaded, folder: Path) -> list[Path]:
    """Time against the size of one tensor, and the share of each contender's own bound."""
    table = frame(attempted(loaded.records))
    table = table[table["workload"] == "tensor"]
    with sheet("One tensor: time against size", columns=2, width=PAGE, height=2.6) as page:
        left, right = page.panels
        gaps: list[Gap] = []
        if not table.empty:
            gaps = _time_and_share(page, table)
        left.set_title("time of one synchronisation", fontsize=8)
        right.set_title("share of the contender's own bound", fontsize=8)
        left.set(ylabel="seconds", yscale="log")
        log_axis(left.yaxis)
        right.set(ylabel="bound / time", ylim=(0, 1.08))
        not_run = absent_entries(loaded, page.legend)
        caption = [
            _setting(table, loaded),
            f"Grey: fewer than {MIN_BURSTS} token buckets of the emulated NIC, which lets them pass unshaped: what is "
            "seen there is the cost of software, not of the network. Bound: the bytes that the contender's algorithm "
            "moves through the busiest NIC, over its rate x 1448/1514; MPI's own choice of algorithm has none.",
            gaps_text(gaps),
            not_run,
        ]
        return page.save(folder, "sizes_time", caption)


def _time_and_share(page: Sheet, table: pd.DataFrame) -> list[Gap]:
    left, right = page.panels
    rate, n = float(table["nic_bytes_per_s"].iloc[0]), int(table["n"].max())
    site = str(table["site"].iloc[0])
    limit = least_shaped_nbytes(rate)
    sizes = sorted(set(table["nbytes"]))
    for k in sorted(set(table["k"])):
        goodput = optimum_goodput(site, n, k) * rate * theory.TCP_PAYLOAD_FRACTION
        bound = [size / goodput for size in sizes]
        what = f"Optimum, k = {'n' if k == n else k}"
        theory_line(page, left, what, sizes, bound, linestyle="-" if k else "--")
    found = list(by_k(table))
    gaps: list[Gap] = []
    for index, (look, rows) in enumerate(found):
        factor = _APART ** spread(index, len(found), 1.0)
        place = times(factor)
        gaps += draw(left, page.legend, rows, look, x="nbytes", y="seconds", place=place, words=format_nbytes)
        shaped = rows[(rows["nbytes"] >= limit) & (rows["of_bound"].notna() | ~rows["verified"])]
        draw(right, page.legend, shaped, look, x="nbytes", y="of_bound", place=place)
    mark_gaps(left, gaps)
    for axes in page.panels:
        _size_axis(axes, sizes, limit)
    return gaps


def _size_axis(axes: Axes, sizes: list[int], limit: int) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [format_nbytes(size) for size in sizes], rotation=45, ha="right", fontsize=7)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("bytes per machine")
    axes.set_xlim(sizes[0] / 1.5, sizes[-1] * 1.5)
    if sizes[0] < limit:
        axes.axvspan(sizes[0] / 1.5, limit, color="0.9", zorder=0)
        axes.text(
            sizes[0] / 1.4,
            0.98,
            "software\noverhead",
            transform=axes.get_xaxis_transform(),
            fontsize=7,
            va="top",
            color=THEORY_COLOUR,
        )


def sizes_counts(loaded: Loaded, folder: Path) -> list[Path]:
    """Time against the number of tensors, a panel for each number of bytes."""
    table = frame(attempted(loaded.records))
    kinds = table["workload"].str.extract(r"^(tensor|tensors):?(\d*)$") if len(table) else pd.DataFrame({0: [], 1: []})
    table = table.assign(count=pd.to_numeric(kinds[1]).fillna(1.0))[kinds[0].notna().to_numpy()]
    sizes = sorted(size for size in set(table["nbytes"]) if (table[table["nbytes"] == size]["count"] > 1).any())
    with sheet(
        "The same bytes in many tensors",
        columns=max(1, len(sizes)),
        width=PAGE if len(sizes) > 1 else COLUMN,
        height=2.5,
    ) as page:
        gaps: list[Gap] = []
        for axes, nbytes in zip(page.panels, sizes, strict=False):
            found = list(by_k(table[table["nbytes"] == nbytes]))
            some: list[Gap] = []
            for index, (look, rows) in enumerate(found):
                factor = 1.05 ** spread(index, len(found), 1.0)
                some += draw(
                    axes,
                    page.legend,
                    rows,
                    look,
                    x="count",
                    y="seconds",
                    place=times(factor),
                    words=(format_nbytes(nbytes) + " in {:g} tensors").format,
                )
            mark_gaps(axes, some)
            gaps += some
            axes.set(xscale="log", yscale="log", xlabel="tensors")
            counts = sorted(set(table[table["nbytes"] == nbytes]["count"]))
            axes.set_xticks(counts, [f"{count:g}" for count in counts])
            axes.xaxis.set_minor_locator(NullLocator())
            log_axis(axes.yaxis)
            axes.set_title(format_nbytes(nbytes), fontsize=8)
        page.panels[0].set_ylabel("seconds")
        not_run = absent_entries(loaded, page.legend)
        caption = [
            "Equal tensors, all handed over at once, in total as many bytes per machine as the panel says.",
            _setting(table, loaded),
            gaps_text(gaps),
            not_run,
        ]
        return page.save(folder, "sizes_counts", caption)


def _setting(table: pd.DataFrame, loaded: Loaded) -> str:
    if table.empty:
        return f"{kind(table)}: {source_text(loaded)}."
    rate, n = float(table["nic_bytes_per_s"].iloc[0]), int(table["n"].max())
    ks = sorted(set(table["k"]))
    launches = launches_text(table, ["workload", "line", "k", "nbytes"])
    return (
        f"{kind(table)}: {n} GPU machines, k = {', '.join(map(str, ks))}, NICs of {format_rate(rate)}; "
        f"{source_text(loaded)}. Points: median over launches ({launches}), bars: their range."
    )
