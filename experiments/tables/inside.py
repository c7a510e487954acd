"""The inside of emulated machines in numbers: speeds over the ring's, and bytes on links against the formulas."""

from experiments import paper
from experiments.analysis import Loaded
from experiments.document import Table
from experiments.inside_results import IN_THE_PAPER, ways
from experiments.tables.markdown import NOTHING, interval, table


def speeds(loaded: Loaded) -> Table:
    """Every way to sum on every machine, beside Figure 14 (of training, and so damped by computation)."""
    published = paper.fig14().speedup
    rows = []
    for one in ways(loaded.records):
        models = published.get(one.machine, {})
        of_paper = [values.get(IN_THE_PAPER.get(one.name, one.name)) for values in models.values()]
        rows.append(
            (
                one.machine,
                str(one.gpus),
                one.name,
                interval(one.seconds),
                interval(one.speeds),
                f"{one.simulated:.3f}",
                f"{one.by_bandwidth:.3f}",
                ", ".join(f"{value:.2f}" for value in of_paper if value is not None) or NOTHING,
            )
        )
    header = ("machine", "GPUs", "way", "seconds", "over ring", "simulated", "busiest link", "training, paper")
    return table(header, rows)


def bytes_on_links(loaded: Loaded) -> Table:
    """The link, of each way, whose bytes differ most from what the formulas say."""
    rows = [
        (
            one.machine,
            one.name,
            one.worst.link,
            f"{one.worst.expected:.4f}",
            f"{one.worst.counted:.4f}",
            f"{one.worst_share:.2%}",
        )
        for one in ways(loaded.records)
    ]
    return table(("machine", "way", "worst link", "M by formula", "M counted", "differs by, of M"), rows)
