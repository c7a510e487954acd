"""Queue disciplines: the time of one synchronisation against the bytes that a worker has in flight.

Simulated with every partition of every machine when the figure is drawn (see `byteps.lowering`), and emulated by
BytePS with the credits of the experiment `disciplines`.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from byteps import lowering, theory
from byteps.assign import paper_shares
from byteps.cluster import uniform_cluster
from byteps.lowering import Discipline
from byteps.units import format_rate, parse_nbytes
from experiments.analysis import Loaded, attempted, frame
from experiments.figures.series import Gap, draw, gaps_text, mark_gaps, times
from experiments.figures.sheet import PAGE, Sheet, absent_entries, kind, launches_text, sheet, source_text, theory_line
from experiments.figures.simulated import SIMULATED, simulated_style
from experiments.lines import LineStyle, line_of
from experiments.record import Record

N, KS = 8, (0, 2, 8)
NBYTES, PARTITION_NBYTES = 2**24, 2**16
DEFAULT_CREDIT = 28 * PARTITION_NBYTES  # what BytePS chooses for partitions of this size
CREDITS = (2**19, 2**20, DEFAULT_CREDIT, 2**22, NBYTES)
FAIR_SHARE = "everything at once, fair share"
WINDOWS: dict[str, Callable[[float], Discipline]] = {
    "credit divided among services": lowering.service_windows,
    "one order, connections alike": lowering.ordered,
    "one order, connections weighted": lowering.ordered_weighted,
}
# The size of the diamond, since many coincide, and the line.
_LOOKS: dict[str, tuple[float, LineStyle]] = {
    FAIR_SHARE: (5.5, "none"),
    "credit divided among services": (8.5, ":"),
    "one order, connections alike": (6.0, "--"),
    "one order, connections weighted": (3.5, "-."),
}


@cache
def simulated(k: int, discipline: str, credit: int = NBYTES) -> float:
    """Time over t_opt."""
    chosen = WINDOWS[discipline](credit) if discipline in WINDOWS else lowering.fair_share
    rate = 1.0  # neither latency nor other costs, so all times scale with it
    partitions = lowering.cut([lowering.Tensor(nbytes=NBYTES)], paper_shares(N, k).all, PARTITION_NBYTES)
    plan = lowering.lower(uniform_cluster(N, k, rate), partitions, chosen)
    return plan.simulate().seconds / theory.byteps_seconds(NBYTES, N, k, rate)


def disciplines_time(loaded: Loaded, folder: Path) -> list[Path]:
    """A panel for each k: time over t_opt against the credit."""
    table = _emulated(attempted(loaded.records))
    with sheet("What may be in flight: time of one synchronisation", columns=len(KS), width=PAGE, height=2.3) as page:
        gaps: list[Gap] = []
        for axes, k in zip(page.panels, KS, strict=True):
            theory_line(page, axes, "Optimum t_opt", [CREDITS[0] / 2, 2 * CREDITS[-1]], [1.0, 1.0])
            _simulated(page, axes, k)
            rows = table[table["k"] == k]
            look = line_of("byteps", {})
            found = draw(
                axes, page.legend, rows, look, x="credit_bytes", y="over_optimum", place=times(1.0), words=_in_words
            )
            mark_gaps(axes, found)
            gaps += found
            _finish(axes, k)
        page.panels[0].set_ylabel("time / t_opt")
        not_run = absent_entries(loaded, page.legend)
        caption = [
            f"{_mib(NBYTES)} from each of {N} GPU machines in {NBYTES // PARTITION_NBYTES} partitions, placed by "
            "weight, in one order on all. Simulated with every machine and partition; only NICs cost time. Fair share: "
            "each partition is a flow of its own; else those between two machines go one by one, as by TCP.",
            "Where a service has but one partition in flight, or all move at once, pulls begin when pushes end.",
            _setting(table, loaded),
            gaps_text(gaps),
            not_run,
        ]
        return page.save(folder, "disciplines_time", caption)


def credit_bytes(setting: str) -> int:
    """Of a setting of the experiment's file, for its size and rate."""
    return DEFAULT_CREDIT if setting == "auto" else parse_nbytes(setting)


def _emulated(records: Sequence[Record]) -> pd.DataFrame:
    """One row per launch of what is simulated."""
    chosen = [one for one in records if (one.case.contender, one.case.n, one.case.nbytes) == ("byteps", N, NBYTES)]
    table = frame(chosen)
    credits = [credit_bytes(one.case.settings.get("credit", "auto")) for one in chosen]
    return table.assign(credit_bytes=credits, over_optimum=1.0 / table["of_optimum"])


def _simulated(page: Sheet, axes: Axes, k: int) -> None:
    for discipline, (size, linestyle) in _LOOKS.items():
        credits = CREDITS if discipline in WINDOWS else (NBYTES,)
        style = simulated_style("byteps") | {"markersize": size, "linestyle": linestyle}
        axes.plot(credits, [simulated(k, discipline, credit) for credit in credits], **style)
        page.legend.add(SIMULATED, discipline, **style)


def _finish(axes: Axes, k: int) -> None:
    names = [_mib(credit) for credit in CREDITS]
    names[CREDITS.index(DEFAULT_CREDIT)] += " (default)"
    names[-1] += " (all)"
    axes.set(xscale="log", xlim=(CREDITS[0] / 1.4, CREDITS[-1] * 1.4), xlabel="in flight from each worker")
    axes.set(ylim=(0.9, 2.15))
    axes.set_xticks(CREDITS, names, rotation=45, ha="right", fontsize=7)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(f"k = {k}", fontsize=8)


def _in_words(credit: float) -> str:
    return f"{_mib(credit)} in flight"


def _mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:g} MiB"


def _setting(table: pd.DataFrame, loaded: Loaded) -> str:
    if table.empty:
        return f"{kind(table)}: {source_text(loaded)}."
    rate = format_rate(float(table["nic_bytes_per_s"].iloc[0]))
    return (
        f"{kind(table)}: BytePS, NICs of {rate}, {source_text(loaded)}. Points: median over launches "
        f"({launches_text(table, ['k', 'credit_bytes'])}), bars: their range."
    )
