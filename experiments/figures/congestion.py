"""Congestion control and queues of the switch: the share of the optimum that each send discipline reaches.

A flow-level model knows neither; what it says (`experiments.figures.disciplines`) is drawn beside the launches.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from byteps.units import format_nbytes, format_rate, parse_nbytes
from experiments.analysis import NOT_RUN, Loaded, attempted, frame
from experiments.figures import disciplines
from experiments.figures.series import Gap, draw, gaps_text, mark_gaps, times
from experiments.figures.sheet import PAGE, Sheet, absent_entries, kind, launches_text, sheet, source_text, theory_line
from experiments.figures.simulated import SIMULATED, simulated_style
from experiments.lines import Line, line_of
from experiments.record import Case, Record
from experiments.statistics import launch_seconds

CONTROLS = ("cubic", "reno", "bbr")
QUEUES = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
ALL_AT_ONCE = "BytePS's shares, everything at once"
_APART = (0.93, 1.0, 1.075)  # of three lines


def look_of(case: Case) -> Line:
    """The contender's, without what has a panel and an axis: the network's settings."""
    line = line_of(case.contender, {})
    return replace(line, label=ALL_AT_ONCE) if case.contender == "schedule-servers" else line


def lost_per_iteration(one: Record) -> float:
    """Packets that queues dropped, of all hosts; a GSO packet is one."""
    lost = sum(nic.after.dropped_packets - nic.before.dropped_packets for nic in one.nics.values())
    return lost / one.case.iterations


def table_of(records: Sequence[Record]) -> pd.DataFrame:
    """One row per launch."""
    looks = [look_of(one.case) for one in records]
    return frame(list(records)).assign(
        look=looks,
        line=[look.label for look in looks],
        congestion=[one.case.settings.get("congestion", "") for one in records],
        queue_bytes=[parse_nbytes(one.case.settings.get("queue", "0")) for one in records],
        lost=[lost_per_iteration(one) for one in records],
    )


def congestion_queues(loaded: Loaded, folder: Path) -> list[Path]:
    """A panel for each congestion control: t_opt / t against the queue of a switch's port, and below it losses."""
    records = [one for one in attempted(loaded.records) if {"congestion", "queue"} <= set(one.case.settings)]
    table = table_of(records)
    queues = sorted(set(table["queue_bytes"])) or list(QUEUES)
    there = set(table["congestion"])
    controls = [*(name for name in CONTROLS if name in there), *sorted(there - set(CONTROLS))] or list(CONTROLS)
    gaps: list[Gap] = []
    with sheet("Congestion control and queues", rows=2, columns=len(controls), width=PAGE, height=3.3) as page:
        upper, lower = page.panels[: len(controls)], page.panels[len(controls) :]
        for above, below, control in zip(upper, lower, controls, strict=True):
            rows = table[table["congestion"] == control]
            edges = [queues[0] / 1.5, queues[-1] * 1.5]
            theory_line(page, above, "Optimum t_opt", edges, [1.0, 1.0])
            _simulated(page, above, rows, queues)
            for place, label in zip(_APART, dict.fromkeys(table["line"]), strict=False):
                some = rows[rows["line"] == label]
                if some.empty:
                    continue
                look = some["look"].iloc[0]
                for axes, y in ((above, "of_optimum"), (below, "lost")):
                    found = draw(
                        axes,
                        page.legend,
                        some,
                        look,
                        x="queue_bytes",
                        y=y,
                        place=times(place),
                        words=lambda queue, control=control: f"{control} {format_nbytes(int(queue))}",  # type: ignore[misc]
                    )
                    gaps += found if axes is above else []
            mark_gaps(above, [gap for gap in gaps if gap.at.startswith(control)])
            _finish(above, below, control, queues)
        top = float(table["lost"].max()) if len(table) else 1.0
        for below in lower:
            below.set(yscale="symlog")
            below.set_yticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1000"])
            below.set_ylim(-0.3, max(1.0, top) * 2)
        upper[0].set_ylabel("t_opt / t")
        lower[0].set_ylabel("packets lost per iteration")
        not_run = absent_entries(loaded, page.legend)
        caption = [*_captions(table, records, loaded), gaps_text(gaps), not_run, _not_there(loaded.records)]
        return page.save(folder, "congestion_queues", caption)


def _simulated(page: Sheet, axes: Axes, rows: pd.DataFrame, queues: Sequence[int]) -> None:
    """Where the case is the one that disciplines are simulated for; queues make no difference there."""
    ours = rows[rows["contender"] == "byteps"]
    same = ours[(ours["n"] == disciplines.N) & (ours["nbytes"] == disciplines.NBYTES)]
    for k in sorted(set(same["k"]) & set(disciplines.KS)):
        named = {"byteps": "one order, connections weighted", "schedule-servers": disciplines.FAIR_SHARE}
        for contender, discipline in named.items():
            value = 1.0 / disciplines.simulated(int(k), discipline, disciplines.DEFAULT_CREDIT)
            style = simulated_style(contender)
            axes.plot(queues, [value] * len(queues), **style)
            page.legend.add(SIMULATED, f"{discipline}, flows alone", **style)


def _finish(above: Axes, below: Axes, control: str, queues: Sequence[int]) -> None:
    for axes in (above, below):
        axes.set(xscale="log", xlim=(queues[0] / 1.5, queues[-1] * 1.5))
        axes.set_xticks(queues, [format_nbytes(queue) for queue in queues], rotation=30, ha="right", fontsize=7)
        axes.xaxis.set_minor_locator(NullLocator())
    above.set(ylim=(0, 1.06))
    above.set_title(control, fontsize=8)
    below.set(xlabel="queue of a switch's port")


def _captions(table: pd.DataFrame, records: Sequence[Record], loaded: Loaded) -> list[str]:
    if table.empty:
        return [f"{source_text(loaded)}."]
    ours = table[table["contender"] == "byteps"].iloc[0] if (table["contender"] == "byteps").any() else table.iloc[0]
    optimum = min(
        (
            launch_seconds(one.seconds) * float(share)
            for one, share in zip(records, table["of_optimum"], strict=True)
            if one.correct and one.case.contender == "byteps"
        ),
        default=float("nan"),
    )
    return [
        f"{kind(table)}: n = {ours['n']}, k = {ours['k']} (the ring uses no CPU machines, and its t_opt is that of "
        f"k = 0), {format_nbytes(int(ours['nbytes']))} per GPU machine, NICs of "
        f"{format_rate(float(ours['nic_bytes_per_s']))}, t_opt {optimum:.2f} s; {source_text(loaded)}. Points: median "
        f"over launches ({launches_text(table, ['line', 'congestion', 'queue_bytes'])}), bars: their range.",
        "Congestion control is the route's, the queue that of every port of the switch; contenders get nothing but the "
        "network. Lossless Ethernet (PFC) and DCQCN, which the paper's cluster has, cannot be emulated here: there a "
        "full queue stops senders instead of dropping, and stops those that are not to blame, too.",
    ]


def _not_there(records: Sequence[Record]) -> str:
    """Congestion controls that this kernel does not have."""
    reasons = {
        one.error.removeprefix(NOT_RUN): None
        for one in records
        if one.error.startswith(NOT_RUN) and "congestion" in one.error
    }
    return f"Not run: {'; '.join(reasons)}." if reasons else ""
