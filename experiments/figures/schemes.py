"""The schemes of the literature: topologies, levels, merged gradients, switches and boxes, and the choice among all.

Theory as lines, simulations as open diamonds, published measurements as crosses.
"""

from pathlib import Path
from typing import Any

import numpy as np

from experiments import schemes
from experiments.figures.sheet import COLUMN, PAGE, PAPER_MARK, sheet, theory_line
from experiments.lines import LineStyle, colour_of

BYTEPS, RING, SERVER, TORUS = (colour_of(name) for name in ("byteps", "gloo-ring", "mxnet-sync", "horovod"))
COLOURS = {
    "mesh": SERVER,
    "ring in order": RING,
    "ring at random": RING,
    "one ring": RING,
    "2 rings": RING,
    "HiPS": BYTEPS,
    "HiPS, BML": BYTEPS,
}
SIZES: list[float] = np.geomspace(1e3, 1e9, 61).tolist()
DASHES: tuple[LineStyle, ...] = ("-", (0, (4, 2)), "-.", ":", (0, (8, 1.5, 1, 1.5)))
DIAMOND: dict[str, Any] = {"linestyle": "none", "marker": "D", "markersize": 4.0, "markerfacecolor": "white"}
TICK: dict[str, Any] = {"linestyle": "none", "marker": "|", "markersize": 10}
MODELS = {"googlenet": "GoogLeNet", "resnet50": "ResNet-50"}
WORKERS = (4, 8, 16, 32, 64)


def schemes_topologies(folder: Path) -> list[Path]:
    """Mesh, ring and HiPS on one NIC (Fat-Tree, star) and on BCube."""
    with sheet("Schemes and topologies", columns=3, width=PAGE, height=2.5) as page:
        for axes, servers in zip(page.panels, (9, 256, 1024), strict=True):
            points = schemes.topologies(servers)
            for row, point in enumerate(points):
                colour = COLOURS[point.scheme]
                axes.plot([point.formula], [row], color="0.35", **TICK)
                axes.plot(point.times, [row] * len(point.times), color=colour, markeredgecolor=colour, **DIAMOND)
            axes.set_yticks(range(len(points)), [f"{point.scheme}\n{point.topology}" for point in points], fontsize=7)
            axes.invert_yaxis()
            axes.set(xscale="log", xlim=(0.7, 15), xlabel="time / (W/B)")
            axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
            axes.minorticks_off()
            counts = dict.fromkeys((points[0].servers, points[-1].servers))
            axes.set_title(f"{' and '.join(map(str, counts))} servers", fontsize=8)
        page.legend.add(
            "Theory", "what the busiest NIC carries", marker="|", markersize=9, color="0.35", linestyle="none"
        )
        page.legend.add("Simulated", "round by round, one mark per seed of ECMP", color="0.2", **DIAMOND)
        caption = [
            "W bytes per server, NICs of B. One NIC per server on the left of each pair of topologies: a star for 9, a "
            "Fat-Tree whose flows are spread by a hash (ECMP) for more; BCube has two NICs per server. "
            "A ring at random is laid through the servers in any order.",
            "Published (Wang et al., INFOCOM 2019): BCube 53 to 70 % below Fat-Tree at about 250 servers; by bandwidth "
            "alone it is 50 %, the rest is what collides on the Fat-Tree. Congestion control and PFC are left out.",
        ]
        return page.save(folder, "schemes_topologies", caption)


def schemes_levels(folder: Path) -> list[Path]:
    """HiPS of 1, 2, 4 and 8 levels, and a ring, over sizes."""
    with sheet("Levels: from start-ups to bandwidth", width=COLUMN, height=2.3) as page:
        (axes,) = page.panels
        for style, count in zip(DASHES, schemes.LEVELS, strict=False):
            what = f"HiPS, {count} level{'s' if count > 1 else ''}, {count} NIC{'s' if count > 1 else ''}"
            seconds = [schemes.level_seconds(count, size) * 1e3 for size in SIZES]
            theory_line(page, axes, what, SIZES, seconds, linestyle=style, colour=BYTEPS, width=0.8 + 0.25 * count)
        ring = [schemes.ring_seconds(size) * 1e3 for size in SIZES]
        theory_line(page, axes, "Ring, 1 NIC", SIZES, ring, linestyle=DASHES[-1], colour=RING)
        axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="ms")
        caption = [
            f"256 servers on BCube, one NIC of 40 Gbit/s per level; a step costs {schemes.STARTUP_SECONDS * 1e6:g} us. "
            "More levels take more steps and share the bytes among more NICs."
        ]
        return page.save(folder, "schemes_levels", caption)


def schemes_merging(folder: Path) -> list[Path]:
    """MG-WFBP, layer by layer, and all at once, on up to 64 nodes."""
    with sheet("Merging gradients: MG-WFBP", columns=2, width=PAGE, height=2.2) as page:
        for axes, (model, title) in zip(
            page.panels, (("googlenet", "GoogLeNet"), ("resnet50", "ResNet-50")), strict=True
        ):
            found = [schemes.merging(model, n, schemes.mgwfbp_cost(n)) for n in WORKERS]
            lines = (
                ("layer by layer", [one.layerwise / one.n for one in found], RING, DASHES[1]),
                ("MG-WFBP", [one.merged / one.n for one in found], BYTEPS, DASHES[0]),
                ("all at once", [one.single / one.n for one in found], SERVER, DASHES[2]),
            )
            for index, (what, ys, colour, style) in enumerate(lines):
                theory_line(page, axes, what, WORKERS, ys, linestyle=style, colour=colour)
                mark: dict[str, Any] = {"marker": PAPER_MARK, "color": colour, "linestyle": "none", "markersize": 4.5}
                axes.plot([8], [schemes.MGWFBP_MEASURED[model][index] / 8], **mark)
                page.legend.add("Paper", f"{what}, 8 nodes measured", **mark)
            axes.set(xscale="log", xlabel="nodes", ylabel="images/s per node", ylim=(0, None))
            axes.set_xticks(WORKERS, [str(n) for n in WORKERS])
            axes.minorticks_off()
            axes.set_title(title, fontsize=8)
        caption = [
            "The rule and an all-reduce of a + b s seconds with the constants of the authors' simulator (10 GbE), "
            "computation at a K80's published rate; crosses: their measurements (Shi et al., TPDS 2021, plot script)."
        ]
        return page.save(folder, "schemes_merging", caption)


def schemes_switch(folder: Path) -> list[Path]:
    """A switch that sums, and PHub's box, by workers and interfaces."""
    with sheet("Switches that sum, and a box with many NICs", columns=2, width=PAGE, height=2.1) as page:
        workers = (4, 8, 16)
        colours = {"ring": RING, "a switch that sums": BYTEPS}
        for style, what in zip(DASHES, schemes.aggregation(4), strict=False):
            ys = [schemes.aggregation(n)[what] for n in workers]
            theory_line(page, page.panels[0], what, workers, ys, linestyle=style, colour=colours.get(what, SERVER))
        page.panels[0].set(xlabel="workers", ylabel="busiest NIC / W", yscale="log", xticks=workers)
        page.panels[0].set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
        page.panels[0].minorticks_off()
        interfaces = range(1, 11)
        boxes = [schemes.box(8, count) for count in interfaces]
        page.panels[1].plot(interfaces, boxes, color=TORUS, markeredgecolor=TORUS, **DIAMOND)
        page.legend.add("Simulated", "PHub's box, 8 pieces that overlap", color=TORUS, markeredgecolor=TORUS, **DIAMOND)
        page.panels[1].axhline(1.75, color=RING, linestyle=DASHES[0], linewidth=1.2)
        page.panels[1].set(
            xlabel="NICs of the box, 8 workers", ylabel="time / (W/B)", xticks=list(interfaces), ylim=(0, None)
        )
        caption = [
            "Left: what the most loaded NIC carries. SwitchML's rates do not fall with the number of workers, as here "
            "(Sapio et al., NSDI 2021). Right: the box of Luo et al. (SoCC 2018) has 10 NICs; the line is a ring of 8."
        ]
        return page.save(folder, "schemes_switch", caption)


def schemes_choice(folder: Path) -> list[Path]:
    """What every fixed choice costs on networks that no scheme was made for."""
    table = schemes.choices()
    names = sorted(schemes.regrets(), key=lambda name: schemes.regrets()[name][0])
    with sheet("One scheme for all networks, against the fastest on each", width=COLUMN, height=2.2) as page:
        (axes,) = page.panels
        for row, name in enumerate(names):
            ratios = [one[name] / min(one.values()) for one in table.values()]
            axes.plot(ratios, [row] * len(ratios), color=BYTEPS, markeredgecolor=BYTEPS, alpha=0.8, **DIAMOND)
            axes.plot([schemes.regrets()[name][0]], [row], color="black", **TICK)
        axes.axvline(1.0, color=BYTEPS, linewidth=1.2)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.set(xscale="log", xlabel="time / that of the fastest scheme there")
        axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        axes.minorticks_off()
        page.legend.add("Simulated", "a network and size", color=BYTEPS, markeredgecolor=BYTEPS, **DIAMOND)
        page.legend.add("Simulated", "geometric mean", color="black", **TICK)
        caption = [
            f"16 hosts, NICs of 10 Gbit/s: {', '.join(schemes.irregular())}; 10 kB, 1 MB and 100 MB. The choice by "
            "simulation is at 1 everywhere by its construction; how far each fixed choice is from it is the figure."
        ]
        return page.save(folder, "schemes_choice", caption)
