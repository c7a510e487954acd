"""The schemes of the literature on emulated hosts, against what their busiest NIC carries."""

from pathlib import Path
from typing import Any

from experiments.analysis import Loaded
from experiments.emulated_schemes import iterations, lines, share_of_star
from experiments.figures.sheet import COLUMN, sheet, source_text
from experiments.lines import colour_of

FILLED: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 4.4}
TICK: dict[str, Any] = {"linestyle": "none", "marker": "|", "markersize": 11, "color": "0.35"}


def schemes_emulated(loaded: Loaded, folder: Path) -> list[Path]:
    """Time over W/B for every scheme and network, a mark per launch."""
    found = lines(loaded.records)
    with sheet("Schemes on nine emulated hosts", width=COLUMN, height=2.3) as page:
        (axes,) = page.panels
        for row, (formula, contender, values) in enumerate(found.values()):
            axes.plot([formula], [row], **TICK)
            axes.plot(values, [row] * len(values), color=colour_of(contender), **FILLED)
        axes.set_yticks(range(len(found)), list(found), fontsize=7)
        axes.invert_yaxis()
        axes.set(xlabel="time / (W/B)", xlim=(0, None))
        page.legend.add("Theory", "what the busiest NIC carries", **TICK)
        page.legend.add("Emulated", "a launch", color="0.2", **FILLED)
        caption = [
            "W bytes per host, NICs of B each way with headers taken off; hosts of BCube(3,2) have two NICs. "
            f"Our executor runs all but gloo's ring. {source_text(loaded)}.",
        ]
        return page.save(folder, "schemes_emulated", caption)


def schemes_bml(loaded: Loaded, folder: Path) -> list[Path]:
    """Iterations on BCube over those on one NIC, by model and batch."""
    found = iterations(loaded.records)
    with sheet("BML: BCube(3,2) against one NIC per server", width=COLUMN, height=1.6) as page:
        (axes,) = page.panels
        for row, both in enumerate(found.values()):
            values = share_of_star(both)
            axes.plot(values, [row] * len(values), color=colour_of("schedule"), **FILLED)
        axes.axvline(0.5, color="0.35", linewidth=1.2)
        axes.set_yticks(range(len(found)), [title.replace("@bml", ", batch ") for title in found], fontsize=7)
        axes.set(xlabel="iteration / that of a mesh on one NIC", xlim=(0, 1.05))
        page.legend.add("Theory", "twice the NICs", color="0.35", linewidth=1.2)
        page.legend.add("Emulated", "a launch", color=colour_of("schedule"), **FILLED)
        caption = [
            "Published: up to 52.1 % less for VGG-19, 18.7 to 56.4 % for LeNet-5. "
            f"Computation is replayed at the rate of two K40c. {source_text(loaded)}."
        ]
        return page.save(folder, f"schemes_{loaded.experiment}", caption)
