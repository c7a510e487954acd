"""Figure 9b: how fast CPUs add gradients, against NICs."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from experiments import paper
from experiments.analysis import Loaded, frame
from experiments.figures.sheet import (
    PAPER_MARK,
    THEORY_COLOUR,
    Legend,
    Sheet,
    launches_text,
    log_axis,
    sheet,
    source_text,
)
from experiments.lines import colour_of

TYPES = ("fp32", "fp16", "bf16")
NIC_GBPS = (10, 25, 100)


def fig9b_adder(loaded: Loaded, folder: Path) -> list[Path]:
    """Throughput of the summation service's kernel for each type, on one core and on all."""
    published = paper.fig9b()
    host = loaded.records[0].host if loaded.records else {}
    with sheet("Throughput of the CPU adder") as page:
        (axes,), legend = page.panels, page.legend
        _measured(page, loaded, host.get("cores", "?"))
        _paper_marks(axes, legend, published)
        for rate in NIC_GBPS:
            axes.axhline(rate, color=THEORY_COLOUR, linewidth=0.7, linestyle="--")
            axes.text(-0.92, rate, f"{rate} Gbit/s NIC", fontsize=7, ha="left", va="bottom", color=THEORY_COLOUR)
        axes.set(ylabel="Gbit/s of gradients", yscale="log", ylim=(1, 500), xlim=(-0.95, 2.5))
        axes.set_xticks(range(len(TYPES)), TYPES)
        log_axis(axes.yaxis)
        axes.grid(axis="x", visible=False)
        machine = f"{host['cores']} cores, {host['cpu']}" if host else "no records"
        launches = launches_text(frame(loaded.records), ["dtype", "cores"])
        caption = [
            "Gradient bytes summed per second by the summation service's kernel; fp16 and bf16 accumulate in fp32.",
            f"Measured: {machine}; {source_text(loaded)}; medians over launches ({launches}), bars: range.",
            f"Crosses: {published.citation}, a {published.cores}-core machine, read from the published figure.",
        ]
        return page.save(folder, "fig9b_adder", caption)


def _measured(page: Sheet, loaded: Loaded, all_cores: str) -> None:
    (axes,) = page.panels
    table = frame(loaded.records)
    usable = table[table["verified"]]
    kinds = (("1", "1 core", -0.1, "o", "#56B4E9"), ("all", f"all {all_cores} cores", 0.1, "D", colour_of("cpu-adder")))
    for index, dtype in enumerate(TYPES):
        of_type = usable[usable["dtype"] == dtype]
        if of_type.empty:
            axes.annotate(f"{dtype}: no usable launch", (index, 1.2), rotation=90, fontsize=7, ha="center")
        for cores, label, apart, marker, colour in kinds:
            values = of_type[of_type["cores"] == cores]["gbit_per_s"]
            if values.empty:
                continue
            middle = values.median()
            bars = [[middle - values.min()], [values.max() - middle]] if len(values) > 1 else None
            style: dict[str, Any] = {"marker": marker, "color": colour, "markersize": 4.5, "linestyle": "none"}
            axes.errorbar([index + apart], [middle], yerr=bars, capsize=3, elinewidth=1.0, **style)
            page.legend.add("Measured", label, **style)
            if len(values) == 1:
                where = (index + apart, middle)
                axes.annotate("n=1", where, xytext=(5, -3), textcoords="offset points", fontsize=7)


def _paper_marks(axes: Axes, legend: Legend, published: paper.Figure9b) -> None:
    style: dict[str, Any] = {"linestyle": "none", "marker": PAPER_MARK, "color": "black", "markersize": 4.5}
    axes.plot([TYPES.index("fp32"), TYPES.index("fp16")], [published.fp32, published.fp16], **style)
    legend.add("Paper", f"{published.cores} cores", **style)
