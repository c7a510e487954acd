"""Exact plans against the paper's simple rules: unequal NICs, and whole partitions.

Theory alone: lines without points.
"""

from collections.abc import Callable
from pathlib import Path

from byteps.assign import cluster_shares
from byteps.cluster import Cluster
from byteps.partition import DEFAULT_PARTITION_BYTES
from byteps.table import Placement
from byteps.units import format_nbytes
from experiments import paper, placement
from experiments.figures.sheet import PAGE, THEORY_COLOUR, sheet, theory_line
from experiments.lines import LineStyle, colour_of

N = 8
SLOW, FAST = 25.0, 100.0  # Gbit/s
SIZES = (2**16, 2**18, 2**20, DEFAULT_PARTITION_BYTES, 2**24)
CLUSTER = (32, 16)

BYTEPS, RING, SERVER = (colour_of(name) for name in ("byteps", "gloo-ring", "mxnet-sync"))
RING_DASHES: LineStyle = (0, (8, 1.5, 1, 1.5, 1, 1.5))
PLACEMENTS: tuple[tuple[Placement, str, str, float], ...] = (
    ("exact", "exact weights", BYTEPS, 2.0),
    ("hash", "hash", THEORY_COLOUR, 0.8),
)


def unequal_nics(folder: Path) -> list[Path]:
    """Time where some GPU machines have slow NICs, without CPU machines and with some."""
    schemes: tuple[tuple[str, Callable[[Cluster], float], str, LineStyle], ...] = (
        ("Ring (k does not help it)", placement.ring_seconds, RING, RING_DASHES),
        ("Parameter server", placement.server_seconds, SERVER, (0, (6, 1.5, 1, 1.5))),
        ("BytePS, k scaled by bandwidth", _rule, BYTEPS, (0, (4, 2))),
        ("BytePS, linear programme", _programme, BYTEPS, "-"),
    )
    panels: tuple[tuple[str, list[float]], ...] = (
        ("no CPU machine", []),
        (f"2 CPU machines of {SLOW:g} Gbit/s", [SLOW] * 2),
        (f"4 CPU machines of {SLOW:g} Gbit/s", [SLOW] * 4),
    )
    slow = range(N + 1)
    with sheet("GPU machines with unequal NICs", columns=3, width=PAGE, height=2.1) as page:
        for axes, (title, cpu) in zip(page.panels, panels, strict=True):
            clusters = [placement.unequal_cluster([SLOW] * some + [FAST] * (N - some), cpu) for some in slow]
            for what, seconds, colour, linestyle in schemes:
                if cpu or what != "Parameter server":
                    ys = [seconds(one) * SLOW for one in clusters]
                    theory_line(page, axes, what, slow, ys, linestyle=linestyle, colour=colour)
            axes.set(xlabel=f"GPU machines of {SLOW:g} Gbit/s (of {N})", ylim=(0, 2.1), xticks=list(slow))
            axes.set_title(title, fontsize=8)
        page.panels[0].set_ylabel(f"time of one synchronisation / (M / {SLOW:g} Gbit/s)")
        caption = [
            f"{N} GPU machines, the others with NICs of {FAST:g} Gbit/s. Only NICs limit. To send M through "
            f"{SLOW:g} Gbit/s takes 1.",
            "k scaled by bandwidth: the paper's rule, its formula with k = the CPU machines' rates over that of a GPU "
            "machine, for which the slowest, the mean or the fastest is taken, whichever is best. Equal where all GPU "
            "machines are. Parameter server: CPU machines by their rates; with 2 it takes 4, which is not shown.",
        ]
        return page.save(folder, "unequal_nics", caption)


def _programme(cluster: Cluster) -> float:
    return placement.seconds_of(cluster, cluster_shares(cluster))


def _rule(cluster: Cluster) -> float:
    return placement.seconds_of(cluster, placement.scaled_k_shares(cluster))


def placement_balance(folder: Path) -> list[Path]:
    """Load and time of whole partitions, placed exactly and by hash, a panel for each model."""
    n, k = CLUSTER
    with sheet(
        "Whole partitions: exact weights against the paper's hash", rows=2, columns=3, width=PAGE, height=3.4
    ) as page:
        for axes, (model, title) in zip(page.panels, paper.TITLES.items(), strict=True):
            for kind, words, colour, line_width in PLACEMENTS:
                found = [placement.balance(model, n, k, size, kind) for size in SIZES]
                what, ys = f"time / optimum, {words}", [one.time for one in found]
                theory_line(page, axes, what, SIZES, ys, colour=colour, width=line_width)
                what, ys = f"largest load / share, {words}", [one.load for one in found]
                theory_line(page, axes, what, SIZES, ys, linestyle=(0, (4, 2)), colour=colour, width=line_width)
            axes.set(xscale="log", yscale="log", ylim=(0.93, 9.9))
            axes.set_xticks(SIZES, [format_nbytes(size) for size in SIZES], fontsize=7)
            axes.set_yticks([1, 1.5, 2, 3, 5, 8], ["1", "1.5", "2", "3", "5", "8"])
            axes.minorticks_off()
            axes.set_title(title, fontsize=8)
        for axes in page.panels[3:]:
            axes.set_xlabel("partition size")
        caption = [
            f"n = {n}, k = {k}. Every tensor is cut into partitions of at most that size, registered by name at once, "
            "and placed by the runtime's own table. Hash: of the partition's key into [0, D), where a CPU machine owns "
            "2(n - 1) and a GPU machine n - k slots; one draw for each model and size.",
            "Time: what the busiest NIC carries over its rate, NICs equal, one synchronisation of the whole model. "
            "Load: of the service that is furthest above its share.",
        ]
        return page.save(folder, "placement_balance", caption)
