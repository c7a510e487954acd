"""Schemes on an emulated Fat-Tree whose flows are hashed, beside simulations of it."""

from pathlib import Path

from experiments.analysis import Loaded
from experiments.fat_tree import SEEDS, lines
from experiments.figures.schemes import DIAMOND
from experiments.figures.schemes_emulated import FILLED, TICK
from experiments.figures.sheet import COLUMN, sheet, source_text
from experiments.lines import colour_of


def schemes_fat_tree(loaded: Loaded, folder: Path) -> list[Path]:
    """Time over W/B for every scheme: a mark per launch, and above it one per seed of the simulation."""
    found = lines(loaded.records)
    with sheet("Schemes on an emulated Fat-Tree", width=COLUMN, height=2.3) as page:
        (axes,) = page.panels
        for row, line in enumerate(found.values()):
            colour = colour_of(line.contender)
            axes.plot([line.formula], [row], **TICK)
            axes.plot(
                line.simulated, [row - 0.2] * len(line.simulated), color=colour, markeredgecolor=colour, **DIAMOND
            )
            axes.plot(line.times, [row + 0.2] * len(line.times), color=colour, **FILLED)
        axes.set_yticks(range(len(found)), [name.replace(", ", "\n") for name in found], fontsize=7)
        axes.invert_yaxis()
        axes.set(xlabel="time / (W/B)", xlim=(0, None))
        page.legend.add("Theory", "what the busiest NIC carries", **TICK)
        page.legend.add("Simulated", f"one mark per seed of ECMP, {len(SEEDS)}", color="0.2", **DIAMOND)
        page.legend.add("Emulated", "a launch", color="0.2", **FILLED)
        caption = [
            "W bytes per host (how many of them stands behind the scheme), links of B each way with headers taken off. "
            "Switches are routers with multipath routes; "
            "a flow's path is the kernel's hash of its addresses and ports, which are new in every launch, so launches "
            "and seeds are two samples of collisions and not pairs. "
            f"Our executor runs all but gloo's ring. {source_text(loaded)}.",
        ]
        return page.save(folder, "schemes_fat_tree", caption)
