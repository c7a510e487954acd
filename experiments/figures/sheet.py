"""The paper that figures are drawn on: one sheet with panels and a legend in sections below them.

As wide as a column or a page of a paper, PNG for the screen and PDF with TrueType fonts for print; both are the same
for the same records.  Title and caption are not drawn: they travel in the files' metadata (see `experiments.captions`),
and the report sets them as text below the picture.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from byteps.theory import TCP_PAYLOAD_FRACTION
from byteps.units import format_nbytes, format_rate
from experiments.analysis import Loaded, absent, absent_text
from experiments.captions import Caption, metadata
from experiments.lines import Line, LineStyle, colour_of, label_of

PAPER_MARK = "x"
PAPER_SECOND_MARK = "+"  # of the paper's variants: ByteScheduler, or without CPU machines
THEORY_COLOUR = "0.35"
COLUMN, PAGE = 3.3, 7.0  # inches: the widths of a column and of a page of a paper
SMALL = 7  # points: nothing is smaller
_LEGEND_COLUMN_INCHES = 1.6  # at least
_CHARACTERS_PER_INCH = 19.0  # of the legend's font
_CHARACTERS_PER_PANEL_INCH = 13.0  # of its height, axis and title included
_HANDLE_INCHES = 0.4  # beside a label
_LINE_INCHES = 0.135  # of the legend


_Entry = tuple[Line2D, str, bool]  # mark, label, and whether it is the name of a section


@dataclass
class Legend:
    """What the marks mean, in sections: where points come from is said once, above them."""

    sections: dict[str, list[tuple[Line2D, str]]] = field(default_factory=dict)

    def add(self, section: str, label: str, **style: Any) -> None:
        """Once per label; `style` is that of the mark."""
        entries = self.sections.setdefault(section, [])
        if all(known != label for _, known in entries):
            entries.append((Line2D([], [], **style), label))

    def line(self, section: str, look: Line, *, note: str = "", hollow: bool = False) -> None:
        self.add(section, look.label + note, **mark_style(look, hollow=hollow), linestyle=look.linestyle)

    def draw(self, figure: Figure) -> float:
        """Below all panels, in as many columns as fit; returns its height in inches."""
        width = float(figure.get_size_inches()[0])
        num_columns = max(1, int(width / _LEGEND_COLUMN_INCHES))
        columns = self._columns(num_columns, int((width / num_columns - _HANDLE_INCHES) * _CHARACTERS_PER_INCH))
        entries = [entry for column in columns for entry in column]
        if not entries:
            return 0.0
        drawn = figure.legend(
            [handle for handle, _, _ in entries],
            [label for _, label, _ in entries],
            loc="outside lower center",
            ncols=len(columns),
            fontsize=SMALL,
            handlelength=2.6,
            columnspacing=1.0,
            labelspacing=0.25,
            frameon=False,
        )
        for text, (_, _, is_title) in zip(drawn.get_texts(), entries, strict=True):
            text.set_fontweight("bold" if is_title else "normal")
        lines = max(sum(1 + label.count("\n") for _, label, _ in column) for column in columns)
        return _LINE_INCHES * lines + 0.1

    def _columns(self, num_columns: int, characters: int) -> list[list[_Entry]]:
        """Equally many entries each, empty ones at the end; a section's name never stands alone at a column's foot."""
        nothing = (Line2D([], [], linestyle="none"), "", False)
        flat: list[_Entry] = []
        for section, entries in self.sections.items():
            flat.append((nothing[0], textwrap.fill(section, characters), True))
            flat += [(handle, textwrap.fill(label, characters), False) for handle, label in entries]
        for rows in range(math.ceil(len(flat) / num_columns), len(flat) + 1):
            columns: list[list[_Entry]] = [[]]
            for entry in flat:
                if len(columns[-1]) == rows or (entry[2] and len(columns[-1]) == rows - 1 and rows > 1):
                    columns.append([])
                columns[-1].append(entry)
            if len(columns) <= num_columns:
                return [column + [nothing] * (rows - len(column)) for column in columns]
        return [flat]


def mark_style(look: Line, *, hollow: bool = False) -> dict[str, Any]:
    """How a point of this line looks; hollow: it was CPU-bound."""
    small = bool(look.notes)
    return {
        "color": look.colour,
        "marker": look.marker,
        "markersize": 3.2 if small else 4.4,
        "markeredgewidth": 0.8,
        "markeredgecolor": look.colour,
        "markerfacecolor": "white" if hollow else look.colour,
        "markerfacecoloralt": "white",
        "fillstyle": "full" if hollow else look.fillstyle,
        "linewidth": 0.6 if small else 0.9,
    }


@dataclass(kw_only=True)
class Sheet:
    """A figure while it is drawn."""

    figure: Figure
    title: str
    panels: list[Axes]
    legend: Legend = field(default_factory=Legend)

    def save(self, folder: Path, name: str, caption: Sequence[str]) -> list[Path]:
        """As PNG and PDF, with title and caption inside; each group of sentences is a line of its own."""
        width, height = self.figure.get_size_inches()
        for axes in self.panels:  # a label that is longer than its panel is high takes two lines
            grid = axes.get_gridspec()
            rows = grid.nrows if grid else 1
            axes.set_ylabel(textwrap.fill(axes.get_ylabel(), int(_CHARACTERS_PER_PANEL_INCH * height / rows)))
        self.figure.set_size_inches(width, height + self.legend.draw(self.figure))
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{name}.png", folder / f"{name}.pdf"]
        said = Caption(title=self.title, lines=tuple(line for line in caption if line))
        for path in paths:
            self.figure.savefig(path, dpi=220, metadata=metadata(said, path.suffix))
        return paths


@contextmanager
def sheet(
    title: str, *, rows: int = 1, columns: int = 1, width: float = COLUMN, height: float = 2.3
) -> Iterator[Sheet]:
    """A sheet with panels, row by row; `height`, in inches, is that of all panels: the legend comes on top."""
    style: dict[Any, Any] = {
        "pdf.fonttype": 42,
        "ps.fonttype": 42,
        "font.size": 8,
        "axes.labelsize": 8,
        "axes.titlesize": 8,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "xtick.major.pad": 1.5,
        "ytick.major.pad": 1.5,
        "axes.linewidth": 0.6,
        "grid.linewidth": 0.5,
        "hatch.linewidth": 0.5,
    }
    with sns.axes_style("whitegrid"), plt.rc_context(style):
        figure, grid = plt.subplots(rows, columns, figsize=(width, height), layout="constrained", squeeze=False)
        try:
            yield Sheet(figure=figure, title=title, panels=list(grid.flat))
        finally:
            plt.close(figure)


def paper_points(
    page: Sheet,
    axes: Axes,
    what: str,
    contender: str,
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    mark: str = PAPER_MARK,
) -> None:
    """Numbers of the paper: crosses in the colour of the contender that answers to them, never joined."""
    size = (
        {"markersize": 4.5} if mark in (PAPER_MARK, PAPER_SECOND_MARK) else {"markersize": 6.5, "markeredgewidth": 1.1}
    )
    style: dict[str, Any] = {"linestyle": "none", "marker": mark, "color": colour_of(contender), **size}
    axes.plot(xs, ys, **style)
    page.legend.add("Paper", what, **style)


def theory_line(
    page: Sheet,
    axes: Axes,
    what: str,
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    linestyle: LineStyle = "-",
    colour: str = THEORY_COLOUR,
    width: float = 1.2,
) -> None:
    style: dict[str, Any] = {"color": colour, "linewidth": width, "linestyle": linestyle}
    axes.plot(xs, ys, **style)
    page.legend.add("Theory", what, **style)


def linear_scaling(page: Sheet, axes: Axes) -> None:
    style: dict[str, Any] = {"color": THEORY_COLOUR, "linewidth": 1.2}
    axes.axhline(1.0, **style)
    page.legend.add("Theory", "Linear scaling", **style)


def plain_number(value: float, _position: int) -> str:
    """Ticks of a logarithmic axis in full, but not every one."""
    return f"{value:g}" if f"{value:e}"[:3] in ("1.0", "2.0", "3.0", "5.0", "7.0") else ""


def log_axis(axis: Axis) -> None:
    axis.set_major_formatter(FuncFormatter(plain_number))
    axis.set_minor_formatter(FuncFormatter(plain_number))


def source_text(loaded: Loaded) -> str:
    if loaded.source == "none":
        return "no records yet: run `python -m experiments run`"
    if loaded.source == "cluster":
        return f"on hosts of a cluster ({loaded.records[-1].case.site}), tier {loaded.tier}"
    where = "committed reference run" if loaded.source == "reference" else "this machine's run"
    return f"{where}, tier {loaded.tier}"


def kind(table: pd.DataFrame) -> str:
    """What launches are evidence from: an emulated cluster, or a real one; never both in one figure."""
    return "Measured" if len(table) and (table["provenance"] == "measured").all() else "Emulated"


def launches_text(table: pd.DataFrame, by: Sequence[str]) -> str:
    """How many launches a point has."""
    counts = table[table["verified"]].groupby(list(by)).size()
    if counts.empty:
        return "no usable launch"
    low, high = counts.min(), counts.max()
    text = f"{low} per point" if low == high else f"{low} to {high} per point"
    return text + ("; n=1: a single one" if low == 1 else "")


def absent_entries(loaded: Loaded, legend: Legend) -> str:
    """Contenders without a launch: into the legend; why and what to do: for the caption."""
    reasons = absent(loaded)
    for name in reasons:
        legend.add("Not run (see below)", label_of(name), color=colour_of(name), marker="_", linestyle="none")
    return absent_text(reasons)


def replay_text(table: pd.DataFrame) -> str:
    """What was replayed: bytes and dilation, of one model or from least to largest."""
    if table.empty:
        return "nothing yet"
    rates = " and ".join(format_rate(float(rate)) for rate in sorted(set(table["nic_bytes_per_s"])))
    low, high = int(table["nbytes"].min()), int(table["nbytes"].max())
    size = format_nbytes(high) if low == high else f"{format_nbytes(low)} to {format_nbytes(high)}"
    scales = sorted({f"{scale:.3g}" for scale in table["scale"]}, key=float)
    slow = sorted({f"{dilation:.3g}" for dilation in table["dilation"]}, key=float)
    real = table["dilation"] * table["scale"] * table["nic_bytes_per_s"] * TCP_PAYLOAD_FRACTION
    stands_for = sorted({float(f"{rate:.4g}") for rate in real})
    return (
        f"replays with NICs of {rates}, {size} of gradients per machine (tensors divided by {_span(scales)}), "
        f"computation taking {_span(slow)} times as long as published, as if NICs carried "
        f"{_span([format_rate(rate) for rate in stands_for])}; sent as fp32 of as many bytes as published{_fp16(table)}"
    )


def _fp16(table: pd.DataFrame) -> str:
    """Which of the models trains in another type."""
    return " (BERT-large trains in fp16)" if table["workload"].str.startswith("bert_large").any() else ""


def _span(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"
