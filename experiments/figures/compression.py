"""Bytes, time and loss of every codec against the NIC's rate."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

from byteps.units import parse_rate
from experiments import curves
from experiments.analysis import Loaded
from experiments.compression import CODECS, RATES, SERVERS, WORKERS, final_loss, of, rates_of, step_nbytes, step_seconds
from experiments.figures.convergence import busy_text, range_text
from experiments.figures.sheet import PAGE, log_axis, sheet, source_text
from experiments.record import Record

_LOOKS: Final = {
    "none": ("black", "o"),
    "fp16": ("#0072B2", "s"),
    "onebit": ("#D55E00", "^"),
    "topk:0.01": ("#009E73", "v"),
    "randomk:0.01": ("#CC79A7", "D"),
}
_PANELS: Final[tuple[tuple[str, Callable[[Record], float], float], ...]] = (
    ("MB per step, a worker's NIC, both ways", step_nbytes, 1e-6),
    ("seconds per step", step_seconds, 1.0),
    ("loss at the end", final_loss, 1.0),
)


def compression_cost(loaded: Loaded, folder: Path) -> list[Path]:
    """Three panels, a line for each codec."""
    rates = rates_of(loaded.records) or [parse_rate(rate) for rate in RATES]
    with sheet("Compression at three NIC rates", columns=3, width=PAGE, height=2.2) as page:
        counts = set()
        for index, (codec, label) in enumerate(CODECS.items()):
            colour, marker = _LOOKS[codec]
            launches = {rate: list(of(loaded.records, codec, rate).values()) for rate in rates}
            there = [rate for rate in rates if launches[rate]]
            counts |= {len(launches[rate]) for rate in there}
            apart = 1.03 ** (index - len(CODECS) // 2)
            style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 3.6, "linewidth": 0.8}
            for axes, (_, measure, scale) in zip(page.panels, _PANELS, strict=True):
                values = [[scale * measure(one) for one in launches[rate]] for rate in there]
                middles = [median(some) for some in values]
                below = [middle - min(some) for middle, some in zip(middles, values, strict=True)]
                above = [max(some) - middle for middle, some in zip(middles, values, strict=True)]
                places = [rate * 8e-6 * apart for rate in there]
                axes.errorbar(places, middles, yerr=[below, above], capsize=2.0, elinewidth=0.8, **style)
            if there:
                page.legend.add("Emulated", label, **style)
        for axes, (what, _, _) in zip(page.panels, _PANELS, strict=True):
            axes.set(xscale="log", xlabel="NIC rate [Mbit/s]", ylabel=what)
            axes.set_xticks([rate * 8e-6 for rate in rates], [f"{rate * 8e-6:g}" for rate in rates])
            axes.minorticks_off()
        for axes in page.panels[:2]:
            axes.set_yscale("log")
            log_axis(axes.yaxis)
        page.panels[2].set_xlim(page.panels[0].get_xlim())
        steps = range_text(curves.steps(one)[0] for one in loaded.records if one.correct)
        caption = [
            f"A small language model, {steps} synchronous steps of {WORKERS} workers, {SERVERS} servers. "
            "Partitions of up to 16 KiB travel as they are, which bounds what codecs save of a small model.",
            "Loss on text that nobody trains on, after the same number of steps: what codecs keep back arrives late.",
            f"{source_text(loaded)}; {range_text(counts)} launches per point: medians, bars: range.",
            busy_text(loaded.records),
        ]
        return page.save(folder, "compression_cost", caption)
