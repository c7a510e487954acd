"""All-reduces of the lab by size, beside the a + b s that is fitted to them."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.alpha_beta import Fit, fits
from experiments.analysis import Loaded
from experiments.figures.schemes import DASHES
from experiments.figures.sheet import COLUMN, sheet, source_text
from experiments.lines import colour_of, label_of

MARKS = "os^Dv"


def schemes_alpha_beta(loaded: Loaded, folder: Path) -> list[Path]:
    """Time by bytes, a line per contender and number of machines; hollow: left out of the fit."""
    found = fits(loaded.records)
    ns = sorted({one.n for one in found})
    with sheet("All-reduces as a + b s", width=COLUMN, height=2.4) as page:
        (axes,) = page.panels
        for one in found:
            colour, index = colour_of(one.contender), ns.index(one.n)
            style: dict[str, Any] = {"color": colour, "linestyle": DASHES[index % len(DASHES)], "linewidth": 1.0}
            sizes = _sizes(one)
            axes.plot(sizes, [one.cost.seconds(nbytes) for nbytes in sizes], **style)
            for points, filling in ((one.fitted, colour), (one.left_out, "white")):
                mark: dict[str, Any] = {
                    "marker": MARKS[index % len(MARKS)],
                    "linestyle": "none",
                    "markersize": 3.4,
                    "color": colour,
                    "markerfacecolor": filling,
                }
                axes.plot([nbytes for nbytes, _ in points], [seconds for _, seconds in points], **mark)
                if filling == colour:
                    page.legend.add("Emulated", f"{label_of(one.contender)}, n = {one.n}", **{**mark, **style})
        axes.set(xlabel="bytes", ylabel="seconds")
        if found:
            axes.set(xscale="log", yscale="log")
        caption = [
            "A mark is a launch, with the time of the token bucket's burst added, a line the fit of a + b s. Hollow "
            "marks are left out of it: between one burst and many the bucket makes up for start-ups, as no real link "
            "does. "
            f"{source_text(loaded)}.",
        ]
        return page.save(folder, "schemes_alpha_beta", caption)


def _sizes(one: Fit) -> list[float]:
    every = [nbytes for nbytes, _ in one.fitted]
    found: list[float] = np.geomspace(min(every), max(every), 40).tolist()
    return found
