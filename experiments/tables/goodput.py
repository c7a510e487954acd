"""Bare synchronisation: Figure 12, the CPU adder, sizes and numbers of tensors."""

from statistics import median

import pandas as pd

from byteps.units import format_nbytes
from experiments import paper
from experiments.analysis import Loaded, attempted, frame
from experiments.document import Block, Paragraph, Table
from experiments.figures.against_k import looks
from experiments.figures.sizes import by_k
from experiments.groups import least_shaped_nbytes
from experiments.tables.markdown import NOTHING, cell, interval, table


def against_k(rows: pd.DataFrame, column: str, paper_rows: list[tuple[str, dict[int, float]]], ks: list[int]) -> Table:
    """A row for each line and size, a column for each k; what does not depend on k stands under "any k".

    `paper_rows` holds k -> number, with -1 for any k.
    """
    sizes = rows["nbytes"].nunique() > 1
    lines = []
    for look in looks(rows):
        of_line = rows[rows["look"] == look]
        for nbytes, of_size in of_line.groupby("nbytes"):
            used = of_size[of_size["verified"]]
            cells = [cell(of_size[of_size["k"] == k], column) if look.uses_k else NOTHING for k in ks]
            always = NOTHING if look.uses_k else cell(of_size, column)
            label = f"{look.label}, {format_nbytes(int(nbytes))}" if sizes else look.label
            lines.append((label, always, *cells, f"{len(used)} of {len(of_size)}"))
    for label, values in paper_rows:
        cells = [f"{values[k]:.3f}" if k in values else NOTHING for k in ks]
        lines.append((f"{label}, paper", f"{values[-1]:.3f}" if -1 in values else NOTHING, *cells, NOTHING))
    return table(("", "any k", *(f"k = {k}" for k in ks), "launches used"), lines)


def fractions(loaded: Loaded) -> list[Block]:
    """Fractions of t_opt, a table for each n; the paper's own beside them where it measured the same n."""
    published = paper.fig12()
    blocks: list[Block] = []
    everything = frame(attempted(loaded.records))
    for n, rows in everything.groupby("n"):
        cited = []
        if n == published.n:
            cited = [
                ("BytePS", _over(published.byteps, published.optimal)),
                ("All-reduce", {-1: published.allreduce[0] / published.optimal[0]}),
                ("MXNet PS", _over(published.ps, published.optimal)),
            ]
        blocks += [Paragraph(text=f"n = {n}:"), against_k(rows, "of_optimum", cited, sorted(set(rows["k"])))]
    return blocks


def _over(values: list[float], optimal: list[float]) -> dict[int, float]:
    return {k: value / best for k, (value, best) in enumerate(zip(values, optimal, strict=True))}


def adder(loaded: Loaded) -> Table:
    everything = frame(loaded.records)
    used = everything[everything["verified"]]
    published = {"fp32": paper.fig9b().fp32, "fp16": paper.fig9b().fp16}
    rows = []
    for dtype in ("fp32", "fp16", "bf16"):
        chosen = used[used["dtype"] == dtype]
        columns = [interval(chosen[chosen["cores"] == cores]["gbit_per_s"]) for cores in ("1", "all")]
        rows.append((dtype, *columns, f"{published[dtype]:.1f}" if dtype in published else NOTHING))
    return table(("type", "1 core, Gbit/s", "all cores, Gbit/s", "paper, 32 cores, Gbit/s"), rows)


def sizes(loaded: Loaded) -> Table:
    """Seconds, and the share of each contender's own bound in brackets where the network was shaped."""
    everything = frame(attempted(loaded.records))
    single = everything[everything["workload"] == "tensor"]
    columns = sorted(set(single["nbytes"]))
    many = sorted(set(everything[everything["workload"] != "tensor"][["workload", "nbytes"]].itertuples(index=False)))
    rows = []
    for look, of_line in by_k(everything):
        cells = [
            _seconds(of_line[(of_line["workload"] == name) & (of_line["nbytes"] == nbytes)])
            for name, nbytes in [*(("tensor", nbytes) for nbytes in columns), *many]
        ]
        rows.append((look.label, *cells))
    header = [format_nbytes(nbytes) for nbytes in columns]
    header += [f"{format_nbytes(nbytes)} in {name.partition(':')[2]} tensors" for name, nbytes in many]
    return table(("seconds (share of own bound)", *header), rows)


def _seconds(rows: pd.DataFrame) -> str:
    if not rows["verified"].any():
        return cell(rows, "seconds")
    rows = rows[rows["verified"]]
    shaped = rows["nbytes"].iloc[0] >= least_shaped_nbytes(float(rows["nic_bytes_per_s"].iloc[0]))
    share = rows["of_bound"].dropna()
    bound = f" ({median(share):.2f})" if shaped and len(share) else " (software)" if not shaped else ""
    return f"{median(rows['seconds']):.3g}{bound}"
