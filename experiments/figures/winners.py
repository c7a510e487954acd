"""Who wins where: maps over the NIC's rate and a model's bytes per FLOP, in time and per price.

Theory alone.  A hue is that of the contender that works like that, paler so that lines can be read on it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from numpy.typing import NDArray

from experiments import limits, paper, workloads
from experiments.figures.sheet import PAGE, Sheet, sheet
from experiments.limits import AWS, GBIT, NBYTES, SCHEMES, Prices, Setting
from experiments.lines import colour_of

N, RACKS = 32, 4
OVERSUBSCRIPTIONS = (1.0, 2.0, 4.0)
RATES = np.geomspace(10, 800, 61)  # Gbit/s
DEMANDS = np.geomspace(10, 10_000, 95)  # bytes per 10^6 FLOP
GAINS = (0.5, 0.8, 1.2, 1.5, 1.8)
SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)  # k/n that money may be spent on


@dataclass(frozen=True, kw_only=True)
class Look:
    """Of an area."""

    hue: str
    much: float  # of the hue, the rest is white
    hatch: str = ""
    words: str  # in the area
    label: str  # in the legend

    def entry(self, page: Sheet, section: str) -> None:
        mark: dict[str, Any] = {"marker": "s", "markersize": 7, "linestyle": "none", "markeredgecolor": "0.5"}
        page.legend.add(section, self.label, **mark, color=_tint(self))


LOOKS = {
    "": Look(hue="white", much=1.0, words="hidden", label="Computation hides the ring"),
    "ring": Look(hue=colour_of("gloo-ring"), much=0.4, words="ring", label=SCHEMES["ring"].label),
    "hierarchical": Look(
        hue=colour_of("horovod"), much=0.7, hatch="//", words="hierarchical", label=SCHEMES["hierarchical"].label
    ),
    "flat": Look(hue=colour_of("byteps"), much=0.75, words="BytePS", label=SCHEMES["flat"].label),
    "mixed": Look(
        hue=colour_of("byteps"), much=0.35, hatch="..", words="BytePS, both ways", label=SCHEMES["mixed"].label
    ),
}
NO_CPU_MACHINES = Look(hue="white", much=1.0, words="none", label="None: they do not pay")


def _tint(look: Look) -> tuple[float, float, float]:
    red, green, blue = (1 - look.much * (1 - part) for part in to_rgb(look.hue))
    return red, green, blue


def _grid(column: Callable[[Setting], Any], base: Setting) -> NDArray[Any]:
    """By demand and rate, from a column of demands for each rate."""
    return np.stack([column(replace(base, nic_bytes_per_s=rate * GBIT)) for rate in RATES], axis=1)


def _areas(axes: Axes, found: NDArray[np.float64], looks: Sequence[Look]) -> None:
    """Fill where `found` is the index of each look, and name what is large enough."""
    colours = ListedColormap([_tint(look) for look in looks])
    axes.pcolormesh(RATES, DEMANDS, found, cmap=colours, vmin=-0.5, vmax=len(looks) - 0.5, rasterized=True)
    for index, look in enumerate(looks):
        mask = found == index
        if look.hatch and mask.any():
            axes.contourf(RATES, DEMANDS, mask.astype(float), levels=[0.5, 1.5], colors="none", hatches=[look.hatch])
        if mask.mean() > 0.04:
            row, column = _inside(mask)
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.0}
            axes.text(RATES[column], DEMANDS[row], look.words, bbox=box, fontsize=7, ha="center", va="center")


def _inside(mask: NDArray[np.bool_]) -> tuple[int, int]:
    """The cell furthest from what is outside of the area."""
    distance = np.zeros(mask.shape)
    left = np.pad(mask, 1)
    while left.any():
        distance += left[1:-1, 1:-1]
        left[1:-1, 1:-1] &= left[:-2, 1:-1] & left[2:, 1:-1] & left[1:-1, :-2] & left[1:-1, 2:]
    row, column = np.unravel_index(int(distance.argmax()), distance.shape)
    return int(row), int(column)


def _levels(axes: Axes, values: NDArray[np.float64], levels: Iterable[float]) -> None:
    drawn = axes.contour(RATES, DEMANDS, values, levels=list(levels), colors="black", linewidths=0.8)
    axes.clabel(drawn, fmt="%gx", fontsize=7)


def _finish(page: Sheet, titles: Iterable[str], columns: int) -> None:
    rows = len(page.panels) // columns
    for index, (axes, title) in enumerate(zip(page.panels, titles, strict=True)):
        axes.set(xscale="log", yscale="log", xlim=(RATES[0], RATES[-1]), ylim=(DEMANDS[0], DEMANDS[-1]))
        axes.set_xticks([10, 25, 100, 400], ["10", "25", "100", "400"])
        axes.set_yticks([10, 100, 1000, 10_000], ["10", "100", "1000", "10000"])
        axes.minorticks_off()
        axes.grid(visible=False)
        axes.set_title(title, fontsize=8)
        if index // columns == rows - 1:
            axes.set_xlabel("NIC, Gbit/s")
        if index % columns == 0:
            axes.set_ylabel("gradient bytes per 10^6 FLOP")
        if index % columns == columns - 1:
            for demand, names in _models():
                where = (RATES[-1], demand)
                axes.annotate(
                    f"\u2013 {names}", where, xytext=(1, 0), textcoords="offset points", fontsize=7, va="center"
                )


def _models() -> list[tuple[float, str]]:
    """Demands and names of the paper's models; those that would overlap share a place."""
    found: list[tuple[float, str]] = []
    of_models = {
        title: limits.demand(workloads.with_times(workloads.read(name))) for name, title in paper.TITLES.items()
    }
    for title, demand in sorted(of_models.items(), key=lambda item: item[1]):
        if found and demand * 1e6 < 1.35 * found[-1][0]:
            found[-1] = (found[-1][0], f"{found[-1][1]},\n  {title}")
        else:
            found.append((demand * 1e6, title))
    return found


_ASSUMED = (
    f"{N} GPU machines in {RACKS} racks, CPU machines in the same racks, all with the paper's adder and memory; "
    f"{NBYTES / 1e6:g} MB of gradients, {limits.STEP_SECONDS * 1e6:g} us for each step of a scheme. "
    "An iteration takes max(computation, synchronisation).",
    "Bytes per FLOP: of gradients, per operation of an iteration on one GPU, which does "
    f"{limits.GPU_FLOP_PER_S / 1e12:g} TFLOP/s. Models are at the paper's rates on a V100; on a GPU that is x times as "
    "fast they are x times as high.",
)


def limits_map(folder: Path) -> list[Path]:
    """Which scheme wins, and by how much, for k/n and oversubscription."""
    host = limits.paper_host()
    places = [(k, over) for k in (0, N // 2, N) for over in OVERSUBSCRIPTIONS]
    with sheet("Which is the fastest?", rows=3, columns=3, width=PAGE, height=6.2) as page:
        for axes, (k, over) in zip(page.panels, places, strict=True):
            base = Setting(n=N, k=k, nic_bytes_per_s=1.0, racks=RACKS, oversubscription=over, host=host)

            names = _grid(lambda setting: limits.winners(NBYTES, setting, DEMANDS * 1e-6), base)
            _areas(axes, np.vectorize(list(LOOKS).index)(names), list(LOOKS.values()))
            _levels(axes, _grid(lambda setting: limits.gains(NBYTES, setting, DEMANDS * 1e-6), base), GAINS)
        for look in LOOKS.values():
            look.entry(page, "Theory: the fastest")
        page.legend.add(
            "Lines", "gain of BytePS over all-reduce, in time of an iteration", color="black", linewidth=0.8
        )
        _finish(page, [f"k = {k}, uplinks {over:g} : 1" for k, over in places], 3)
        caption = [
            "The fastest, the simplest of those within one percent (ring, hierarchical, BytePS, both ways).",
            *_ASSUMED,
        ]
        return page.save(folder, "limits_map", caption)


def _worth(base: Setting, share: float, prices: Prices) -> NDArray[np.float64]:
    """Gain per price with that share of n as CPU machines."""
    with_machines = replace(base, k=int(share * base.n))
    return _grid(lambda setting: limits.gains_per_price(NBYTES, setting, DEMANDS * 1e-6, prices), with_machines)


def limits_price(folder: Path, prices: Prices = AWS) -> list[Path]:
    """How many CPU machines give the most speed for the money."""
    host = limits.paper_host()
    looks = [NO_CPU_MACHINES]
    for share in SHARES:
        words = f"k = {share:g} n" if share < 1 else "k = n"
        looks.append(Look(hue=colour_of("byteps"), much=0.1 + 0.8 * share, words=words, label=words))
    with sheet("How many CPU machines are worth their price?", columns=3, width=PAGE, height=2.4) as page:
        for axes, over in zip(page.panels, OVERSUBSCRIPTIONS, strict=True):
            base = Setting(n=N, k=0, nic_bytes_per_s=1.0, racks=RACKS, oversubscription=over, host=host)

            values = np.stack([np.ones((len(DEMANDS), len(RATES))), *(_worth(base, s, prices) for s in SHARES)], axis=2)
            most = values.max(axis=2)
            _areas(axes, (values >= most[:, :, None] / limits.TIE).argmax(axis=2), looks)
            _levels(axes, most, (1.1, 1.3, 1.5, 1.7))
        for look in looks:
            look.entry(page, "Theory: best number")
        page.legend.add(
            "Lines", "speed per price over that of all-reduce without CPU machines", color="black", linewidth=0.8
        )
        _finish(page, [f"uplinks {over:g} : 1" for over in OVERSUBSCRIPTIONS], 3)
        caption = [
            f"The k with the most iterations per price, the fewest within one percent. A GPU machine costs "
            f"{prices.gpu_machine:g}, a CPU machine {prices.cpu_machine:g} per hour ({prices.source}).",
            *_ASSUMED,
        ]
        return page.save(folder, "limits_price", caption)
