"""Workers of one machine: their goodput in shared memory, and what the NIC and the clock see of how many they are."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

from matplotlib.axes import Axes

from byteps.units import format_nbytes
from experiments.analysis import Loaded
from experiments.figures.sheet import PAGE, THEORY_COLOUR, Sheet, sheet, source_text
from experiments.local import (
    HALF,
    NIC_SIZES,
    SIZES,
    faithful,
    here,
    nic_nbytes,
    of_copying,
    on_nics,
    seconds,
    sizes_of,
)
from experiments.record import Record

_LOOKS: Final = {2: ("#0072B2", "o"), 4: ("#D55E00", "s")}
_ON_NICS: Final[dict[str, Any]] = {"color": "#0072B2", "marker": "o", "markersize": 4.0, "linewidth": 0.8}


def local_reduction(loaded: Loaded, folder: Path) -> list[Path]:
    """Goodput over that of copies against the tensor's size; then bytes and time against workers per machine."""
    records = loaded.records
    with sheet("Workers of one machine, summed before the network", columns=3, width=PAGE, height=2.2) as page:
        _memory(page, page.panels[0], records)
        _nics(page, page.panels[1], records, nic_nbytes, 1e-6, "MB per iteration, a machine's NIC, both ways")
        _nics(page, page.panels[2], faithful(records), seconds, 1.0, "seconds per iteration")
        blocks = len({one.case.block for one in records})
        busy = sum(one.correct and not one.faithful for one in records)
        caption = [
            "Left, measured: bytes copied and added per second in shared memory, counted as copies ((5 L + 1) M / 2 "
            "for M bytes of each of L workers), over what L threads copy in the same launch; line: what was asked for.",
            "Middle and right, emulated: two machines and two servers; all cores are those of one computer.",
            f"{source_text(loaded)}; up to {blocks} launches per point: medians, bars: range.",
            f"{busy} emulated launches were not faithful: of them bytes are shown, not times." if busy else "",
        ]
        return page.save(folder, "local_reduction", caption)


def _memory(page: Sheet, axes: Axes, records: list[Record]) -> None:
    sizes = sizes_of(records)
    axes.axhline(HALF, color=THEORY_COLOUR, linewidth=0.8, linestyle="--")
    for workers in SIZES:
        colour, marker = _LOOKS[workers]
        style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4.0, "linestyle": "none"}
        values = {nbytes: [of_copying(one) for one in here(records, workers, nbytes)] for nbytes in sizes}
        if any(values.values()):
            apart = 0.12 * (SIZES.index(workers) - 0.5)
            _points(axes, {sizes.index(nbytes) + apart: some for nbytes, some in values.items()}, style)
            page.legend.add("Measured", f"{workers} workers", **style)
    axes.set(xlabel="tensor", ylabel="goodput / copies")
    axes.set_xticks(range(len(sizes)), [format_nbytes(nbytes) for nbytes in sizes], fontsize=7)
    _from_zero(axes)


def _nics(
    page: Sheet, axes: Axes, records: list[Record], quantity: Callable[[Record], float], scale: float, what: str
) -> None:
    places = {
        float(NIC_SIZES.index(size)): [scale * quantity(one) for one in on_nics(records, size).values()]
        for size in NIC_SIZES
    }
    if any(places.values()):
        _points(axes, places, _ON_NICS)
        page.legend.add("Emulated", "100 Mbit/s NICs", **_ON_NICS)
    axes.set_xticks(range(len(NIC_SIZES)), list(map(str, NIC_SIZES)))
    axes.set(xlabel="workers per machine", ylabel=what)
    _from_zero(axes)


def _from_zero(axes: Axes) -> None:
    axes.set_ylim(0, 1.1 * axes.dataLim.ymax if axes.has_data() else 1.0)


def _points(axes: Axes, places: dict[float, list[float]], style: dict[str, Any]) -> None:
    """Medians with the range over launches; a single launch says so."""
    there = {place: some for place, some in places.items() if some}
    middles = [median(some) for some in there.values()]
    below = [middle - min(some) for middle, some in zip(middles, there.values(), strict=True)]
    above = [max(some) - middle for middle, some in zip(middles, there.values(), strict=True)]
    axes.errorbar(list(there), middles, yerr=[below, above], capsize=2.0, elinewidth=0.8, **style)
    for (place, some), middle in zip(there.items(), middles, strict=True):
        if len(some) == 1:
            axes.annotate("n=1", (place, middle), xytext=(4, 3), textcoords="offset points", fontsize=7)
