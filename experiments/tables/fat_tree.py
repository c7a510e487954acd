"""Schemes on emulated Fat-Trees in numbers: launches beside simulations with hashed paths, and bytes as counted."""

from statistics import median

from experiments.analysis import Loaded
from experiments.document import Table
from experiments.fat_tree import lines
from experiments.tables.markdown import interval, table


def emulated(loaded: Loaded) -> Table:
    """Times are multiples of W/B; the last columns say what a launch's own collisions explain."""
    rows = []
    for name, line in lines(loaded.records).items():
        explained = [busiest / seen for busiest, seen in zip(line.busiest, line.times, strict=True)]
        rows.append(
            (
                name,
                f"{line.formula:.3f}",
                f"{median(line.simulated):.3f} ({min(line.simulated):.3f} to {max(line.simulated):.3f})",
                interval(line.times),
                interval(line.busiest),
                interval(explained),
            )
        )
    header = (
        "scheme",
        "busiest NIC, W",
        "simulated, by seed",
        "emulated",
        "busiest link, W",
        "busiest link / emulated",
    )
    return table(header, rows)
