"""Transports between two processes: what each carries, what it costs, and what others published about copies."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from byteps.units import format_nbytes
from experiments.analysis import Loaded
from experiments.figures.sheet import PAGE, PAPER_MARK, Sheet, log_axis, sheet, source_text
from experiments.record import Record
from experiments.transports import (
    CARRIERS,
    LARGE,
    PUBLISHED,
    SMALL,
    TABLE_2,
    Carrier,
    contender,
    core_seconds,
    goodput,
    per_block,
    ratios,
)

MEASURED = "Measured"
_SIZES: dict[int, dict[str, Any]] = {
    LARGE: {"marker": "o", "color": "0.2", "linestyle": "none", "markersize": 4.4},
    SMALL: {"marker": "s", "color": "0.2", "linestyle": "none", "markersize": 4.4, "markerfacecolor": "white"},
}
_PAPER: dict[str, Any] = {"marker": PAPER_MARK, "color": "black", "linestyle": "none", "markersize": 4.5}


def transports_cost(loaded: Loaded, folder: Path) -> list[Path]:
    """Goodput against core-seconds for each message size; then ratios beside published ones."""
    records = [one for one in loaded.records if one.verified]
    with sheet("The same tensor over each transport, on one machine", columns=3, width=PAGE, height=2.3) as page:
        for axes, message in zip(page.panels, (LARGE, SMALL), strict=False):
            for name, carrier in CARRIERS.items():
                rates = list(per_block(records, name, message, goodput).values())
                costs = list(per_block(records, name, message, core_seconds).values())
                if rates:
                    _point(page, axes, carrier, costs, [rate / 1e9 for rate in rates])
            axes.set(xscale="log", yscale="log", xlabel="core-seconds per GiB", ylabel="goodput, GB/s")
            axes.set_title(f"messages of {format_nbytes(message)}", fontsize=8)
            for axis in (axes.xaxis, axes.yaxis):
                log_axis(axis)
                axis.set_minor_locator(LogLocator(subs=(3,)))
        _published(page, page.panels[2], records)
        blocks = len({one.case.block for one in records})
        sizes = sorted({format_nbytes(one.case.nbytes) for one in records})
        return page.save(
            folder,
            "transports_cost",
            [
                f"{', '.join(sizes)} from one process into the other's tensor, every byte checked. Marks: medians over "
                f"{blocks} launches, bars: their range. In brackets: how often a transport copies the payload itself, "
                f"the kernel's copies apart; core-seconds of both processes. {source_text(loaded)}.",
                "Right: crosses are published for GPUs and RDMA: a zero-copy transport over gRPC and over copying RDMA "
                "(Yi et al., SIGCOMM 2017, abstract), and Table 2 of the OSDI paper, each step over the first. Ours is "
                "shared memory on one machine: the effect of copies, not that of a network.",
                _absent(records),
            ],
        )


def _point(page: Sheet, axes: Axes, carrier: Carrier, costs: Sequence[float], rates: Sequence[float]) -> None:
    style: dict[str, Any] = {"color": carrier.colour, "marker": carrier.marker, "linestyle": "none", "markersize": 4.8}
    x, y = median(costs), median(rates)
    axes.plot([x], [y], **style)
    if len(rates) > 1:
        axes.errorbar(
            [x],
            [y],
            xerr=[[x - min(costs)], [max(costs) - x]],
            yerr=[[y - min(rates)], [max(rates) - y]],
            fmt="none",
            ecolor=carrier.colour,
            elinewidth=0.8,
            capsize=2,
        )
    once = ", n=1" if len(rates) == 1 else ""
    page.legend.add(MEASURED, f"{carrier.label} ({carrier.copies}){once}", **style)


def _published(page: Sheet, axes: Axes, records: Sequence[Record]) -> None:
    names = ["in place / gRPC", "in place / slots", *(f"Table 2, {step}" for step in list(TABLE_2)[1:])]
    for row, (_, carrier, other, published) in enumerate(PUBLISHED):
        axes.plot([published], [row], **_PAPER)
        for message, style in _SIZES.items():
            if values := ratios(records, carrier, other, message):
                axes.plot([median(values)], [row], **style)
                page.legend.add(MEASURED, f"ratio, messages of {format_nbytes(message)}", **style)
    first, *steps = TABLE_2.values()
    axes.plot([step / first for step in steps], range(len(PUBLISHED), len(names)), **_PAPER)
    page.legend.add("Paper", "on GPUs and RDMA", **_PAPER)
    axes.axvline(1.0, color="0.35", linewidth=0.8)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="goodput, ratio")
    log_axis(axes.xaxis)


def _absent(records: Sequence[Record]) -> str:
    """Why carriers are not drawn."""
    there = {one.case.contender for one in records}
    gone: dict[str, list[str]] = {}
    for name, carrier in CARRIERS.items():
        if name not in there:
            gone.setdefault(contender(name).missing() or "no record", []).append(carrier.label)
    return " ".join(f"Not run: {', '.join(labels)} ({reason})." for reason, labels in gone.items())
