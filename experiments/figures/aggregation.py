"""A switch that sums against a ring and a parameter server, by workers, with datagrams lost on the way."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes

from byteps.theory import TCP_PAYLOAD_FRACTION
from byteps.units import format_nbytes, format_rate
from experiments.analysis import Loaded, attempted, frame
from experiments.figures.series import Gap, draw, gaps_text, mark_gaps, spread, times
from experiments.figures.sheet import PAGE, Sheet, absent_entries, kind, launches_text, sheet, source_text, theory_line
from experiments.lines import Line, LineStyle, colour_of, line_of

WORKERS: Final = (4, 8, 16)
SWITCH, RING, SERVER = "switch-sum", "schedule", "schedule-servers"
_APART: Final = 0.03  # of a value of the axis, which is logarithmic
_LOSSES: Mapping[str, tuple[str, LineStyle, str]] = {
    "0": ("nothing lost", "-", "full"),
    "0.001": ("0.1 % lost", (0, (5, 2)), "top"),
    "0.01": ("1 % lost", (0, (1, 1.5)), "bottom"),
}
_NAMES = {RING: "Ring, our executor", SERVER: "One parameter server, our executor"}


def aggregation_time(loaded: Loaded, folder: Path) -> list[Path]:
    """A panel for each rate of NICs: time over W/B against the number of workers."""
    records = attempted(loaded.records)
    table = frame(records)
    table = table.assign(
        over=table["seconds"].astype(float) * table["nic_bytes_per_s"] * TCP_PAYLOAD_FRACTION / table["nbytes"],
        line=[_look(one.case.contender, one.case.settings).label for one in records],
        look=[_look(one.case.contender, one.case.settings) for one in records],
    )
    rates = sorted(set(table["nic_bytes_per_s"])) or [0.0]
    with sheet("A switch that sums", columns=len(rates), width=PAGE, height=2.4) as page:
        gaps: list[Gap] = []
        for axes, rate in zip(page.panels, rates, strict=True):
            _theory(page, axes)
            rows = table[table["nic_bytes_per_s"] == rate]
            looks = list(dict.fromkeys(rows["look"]))
            for index, look in enumerate(looks):
                place = times(1 + spread(index, len(looks), _APART))
                of_line = rows[rows["line"] == look.label]
                gaps += draw(axes, page.legend, of_line, look, x="n", y="over", place=place, words=_in_words)
            mark_gaps(axes, [gap for gap in gaps if gap.label in set(rows["line"])])
            axes.set_title(f"NICs of {format_rate(rate)}" if rate else "", fontsize=8)
            _finish(axes)
        page.panels[0].set_ylabel("time / (W/B)")
        not_run = absent_entries(loaded, page.legend)
        sizes = " and ".join(format_nbytes(int(size)) for size in sorted(set(table["nbytes"])))
        caption = [
            "W bytes per worker, NICs of B each way after the headers of TCP; the switch's datagrams have fewer and go "
            "in fewer frames, so it may be a little below 1. Lost: of the datagrams that arrive, at the switch and at "
            "the workers, and sent again after a time-out.",
            "The server sums in 16 pieces, whose pushes and pulls overlap: n (1 + 1/16). "
            "A process in Python plays the switch and is bound by its core beyond 50 Mbit/s; a switch in hardware does "
            "this at 100 Gbit/s, so these are times of an algorithm and say nothing of a device.",
            f"{kind(table)}: {sizes or 'nothing yet'}; {source_text(loaded)}. Points: median over launches "
            f"({launches_text(table, ['nic_bytes_per_s', 'line', 'n'])}), bars: their range.",
            gaps_text(gaps),
            not_run,
        ]
        return page.save(folder, "aggregation_time", caption)


def _look(contender: str, settings: Mapping[str, str]) -> Line:
    look = line_of(contender, settings)
    if contender != SWITCH:
        return replace(look, label=_NAMES.get(contender, look.label), notes=())
    words, linestyle, fillstyle = _LOSSES.get(settings.get("loss", "0"), (f"loss {settings.get('loss')}", ":", "full"))
    return replace(look, label=f"A switch that sums, {words}", notes=(), linestyle=linestyle, fillstyle=fillstyle)


def _theory(page: Sheet, axes: Axes) -> None:
    lines = (
        ("a switch that sums: 1", SWITCH, [1.0 for _ in WORKERS]),
        ("ring: 2(n-1)/n", RING, [2 * (n - 1) / n for n in WORKERS]),
        ("one server: n", SERVER, [float(n) for n in WORKERS]),
    )
    for what, contender, ys in lines:
        theory_line(page, axes, what, WORKERS, ys, colour=colour_of(contender), width=0.8)


def _finish(axes: Axes) -> None:
    axes.set(xscale="log", yscale="log", xlim=(3.3, 19), ylim=(0.8, 24), xlabel="workers n")
    axes.set_xticks(WORKERS, [str(n) for n in WORKERS])
    axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.minorticks_off()


def _in_words(n: float) -> str:
    return f"n = {n:g}"
