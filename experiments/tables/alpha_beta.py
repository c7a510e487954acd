"""Start-up and time per byte of emulated all-reduces in numbers, and what the merge rule makes of them."""

from experiments.alpha_beta import fits, merging
from experiments.analysis import Loaded
from experiments.document import Table
from experiments.lines import label_of
from experiments.tables.markdown import table


def costs(loaded: Loaded) -> Table:
    """Fitted, beside 2(n-1) latencies and 2(n-1)/n bytes at the rate that TCP leaves."""
    rows = [
        (
            label_of(one.contender),
            str(one.n),
            f"{one.cost.startup_seconds * 1e3:.2f}",
            f"{one.startup_per_message * 1e6:.0f}",
            f"{one.formula.startup_seconds * 1e3:.2f}",
            f"{one.cost.seconds_per_byte * 1e9:.1f}",
            f"{one.formula.seconds_per_byte * 1e9:.1f}",
            f"{one.cost.seconds_per_byte / one.formula.seconds_per_byte:.3f}",
            f"{one.worst:.0%} of {len(one.fitted)}",
        )
        for one in fits(loaded.records)
    ]
    header = (
        "all-reduce",
        "n",
        "a, ms",
        "per message, us",
        "latencies, ms",
        "b, ns",
        "formula",
        "ratio",
        "worst miss",
    )
    return table(header, rows)


def plans(loaded: Loaded) -> Table:
    """ResNet-50 in images per second of the cluster that the lab stands for."""
    rows = []
    for one in fits(loaded.records):
        found = merging(one)
        rates = (f"{rate:.0f}" for rate in (found.layerwise, found.merged, found.single))
        rows.append((label_of(one.contender), str(one.n), *rates, str(found.groups)))
    return table(("all-reduce", "n", "layer by layer", "MG-WFBP", "all at once", "messages"), rows)
