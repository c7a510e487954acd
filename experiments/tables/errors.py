"""How good the simulation is: errors against the paper and the emulated cluster, and what explains them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any

import msgspec

from byteps.units import format_nbytes, format_rate
from experiments import errors as paper_errors
from experiments import fit, paper, residuals, systems
from experiments.analysis import Loaded
from experiments.document import Block, Heading, Items, Paragraph, Table, paragraphs
from experiments.errors import BIG_ERROR, SYSTEMS, USES, Number, Point, Use, errors, median_error, worst
from experiments.figures.simulated import command
from experiments.predictions import compare
from experiments.tables.markdown import NOTHING, table

ASIDE = ("Fig 4", "Fig 12")
PICTURES = ("fig4_simulated", "fig12_simulated", "fig13_speedup", "fig14_topology", "scale_models")

INTRODUCTION = """\
The paper's cluster is simulated, flow by flow, with the constants of `experiments/systems.toml`.  They were fitted on
Figure 12 and on 16 GPUs in Figures 15 and 16, on nothing else; what is held out is predicted.  8 GPUs are one machine
and say nothing about the network.  An error is simulated / paper - 1, of goodput (Figure 12), throughput (Figures 4, 15
and 16), or speed over all-reduce (Figures 13 and 14); medians are of absolute errors."""
BIG = f"""\
Missed by more than {BIG_ERROR:.0%}, the worst first.  Held-out ones were never used to change a constant.  "Hidden in
the paper" is the share of the sums, at their speed in Figure 12, by which the paper's iteration is shorter than without
any overlap (see below)."""
LEFT_OUT = """\
Errors on the 16 GPUs of Figures 15 and 16, and in brackets those of a model if the constants are fitted without it."""
EMULATION = """\
The emulated cluster is simulated with NICs that cost time and nothing else, without a fitted constant; its error is of
the speed, median over verified launches and their range.  Only what was simulated before the launches is a prediction;
where a simulation was repeated later to the same result, the first one counts."""
NO_OVERLAP = """\
The paper's share of linear scaling, and in brackets what the system would reach if nothing overlapped: computation as
it has it on one machine of 8 GPUs, then the sums as fast as in Figure 12, where machines have one GPU.  Where the paper
lies more than 1 % below (bold), something costs time that is neither the NIC nor missing overlap: contention inside the
machine, as far as that goes, or what no model here knows.  It is a residual, and a finding.  Lines without such a point
are left out."""
CONTRADICTIONS = """\
Where the paper's text and figures differ, the figures are used, and neither is fitted to the other."""


def section(loaded: Sequence[Loaded], picture: Callable[[str], list[Block]]) -> list[Block]:
    """The whole of it, for the report; `picture` finds a figure by its name."""
    simulated = [record for one in loaded for record in one.simulated]
    points = paper_errors.points(simulated)
    blocks: list[Block] = [Heading(title="How good is the simulation"), *paragraphs(INTRODUCTION)]
    if simulated:
        blocks += [by_system(points), _part("Against the paper, line by line"), by_line(points)]
        blocks += [block for name in PICTURES for block in picture(name)]
        blocks += [_part("The constants"), constants(systems.load())]
        if lines := fit.load():
            blocks += [_part("Fitted with and without each model"), *paragraphs(LEFT_OUT), cross_validation(lines)]
        blocks += [_part("Points that are missed"), *paragraphs(BIG)]
        blocks += big_errors(points) or [Paragraph(text="None.")]
        compared = against_emulation(loaded)
        blocks += [_part("Against the emulated cluster"), *paragraphs(EMULATION)]
        blocks += compared or [Paragraph(text="No case is both simulated and emulated.")]
        blocks += picture("fig12_predicted") if compared else []
    else:
        blocks += [Paragraph(text=f"Nothing is simulated yet: run `{command('all')}`.")]
    blocks += [_part("Slower in the paper than without any overlap"), *paragraphs(NO_OVERLAP), no_overlap()]
    return [*blocks, _part("What the paper contradicts itself on"), *paragraphs(CONTRADICTIONS), contradictions()]


def _part(title: str) -> Heading:
    return Heading(title=title, level=3)


def by_system(points: Sequence[Point]) -> Table:
    """The median of all errors of a system, for each use of the paper's numbers."""
    header = ("system", "fitted", "held out, Figs 13 to 16", "held out, Figs 4 and 12", "one machine")
    rows = []
    for system in dict.fromkeys(SYSTEMS.values()):
        own = [point for point in points if point.number.system == system]
        cells = [
            _of_use(own, "fitted"),
            [point for point in _of_use(own, "held out") if point.number.figure not in ASIDE],
            [point for point in _of_use(own, "held out") if point.number.figure in ASIDE],
            _of_use(own, "one machine"),
        ]
        rows.append((system, *map(_summary, cells)))
    return table(header, rows)


def _of_use(points: Iterable[Point], use: Use) -> list[Point]:
    return [point for point in points if point.number.use == use]


def _summary(points: list[Point]) -> str:
    """Median, worst, and of how many points."""
    middle, least = median_error(points), worst(points)
    if middle is None or least is None:
        return NOTHING
    return f"{middle:.1%} (worst {_signed(least)}, n={_count(points)})"


def _count(points: Sequence[Point]) -> str:
    known = len(errors(points))
    return f"{known}" if known == len(points) else f"{known} of {len(points)}"


def _signed(point: Point) -> str:
    return NOTHING if point.error is None else f"{point.error:+.1%}"


def by_line(points: Sequence[Point]) -> Table:
    """A row for each figure, line, and use."""
    rows = []
    for figure, of_figure in groupby(sorted(points, key=_figure_order), key=lambda point: point.number.figure):
        by_name: dict[str, list[Point]] = {}
        for point in of_figure:
            by_name.setdefault(point.number.line, []).append(point)
        for line, of_line in by_name.items():
            for use in USES:
                if some := _of_use(of_line, use):
                    rows.append((figure, line, use, *_cells(some)))
    return table(("figure", "line", "the paper's numbers are", "points", "median error", "worst", "where"), rows)


def _figure_order(point: Point) -> tuple[int, str]:
    figure = point.number.figure.removeprefix("Fig ")
    return int(figure.rstrip("ab")), figure


def _cells(points: list[Point]) -> tuple[str, str, str, str]:
    middle, least = median_error(points), worst(points)
    if middle is None or least is None:
        return f"none: `{command(points[0].number.wanted.experiment)}`", NOTHING, NOTHING, NOTHING
    return _count(points), f"{middle:.1%}", _signed(least), least.number.where


def cross_validation(lines: Sequence[fit.Line]) -> Table:
    """Of every model that was fitted on, the error with it and without it."""
    trained = [line for line in lines if line.left_out_error is not None]
    columns = list(dict.fromkeys(line.line for line in trained))
    by_place: dict[str, dict[str, fit.Line]] = {}
    for line in trained:
        by_place.setdefault(line.where, {})[line.line] = line
    rows = [
        (where, *(_left_out(by_line[column]) if column in by_line else NOTHING for column in columns))
        for where, by_line in by_place.items()
    ]
    rows.append(("median of absolute errors", *(_left_out_median(trained, column) for column in columns)))
    return table(("fitted (left out)", *columns), rows)


def _left_out(line: fit.Line) -> str:
    return f"{line.fitted_error:+.1%} ({line.left_out_error:+.1%})"


def _left_out_median(lines: Sequence[fit.Line], column: str) -> str:
    some = [line for line in lines if line.line == column]
    both = (
        median(abs(line.fitted_error) for line in some),
        median(abs(line.left_out_error or 0.0) for line in some),
    )
    return "{:.1%} ({:.1%})".format(*both)


def constants(known: systems.Systems) -> Table:
    """Every constant of the simulation and its source."""
    return table(("constant", "value", "source"), _constants("", msgspec.to_builtins(known)))


def _constants(path: str, tables: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if "source" in tables:
        yield f"`{path}`", f"{tables['value']:.4g}", tables["source"]
        return
    for name, inner in tables.items():
        yield from _constants(f"{path}.{name}" if path else name, inner)


def big_errors(points: Sequence[Point]) -> list[Block]:
    """Every point that is missed by more than 15 %, the worst first, with what is known of it; nothing without any."""
    missed = [point for point in points if point.error is not None and abs(point.error) > BIG_ERROR]
    missed.sort(key=lambda point: -abs(point.error or 0.0))
    reasons = list(dict.fromkeys(residuals.reason_of(point.number) for point in missed))
    rows = [
        (
            point.number.figure,
            point.number.line,
            point.number.where,
            f"{point.number.value:.5g}",
            f"{point.simulated:.5g}",
            _signed(point),
            point.number.use,
            _hidden(point.number),
            str(reasons.index(residuals.reason_of(point.number)) + 1),
        )
        for point in missed
    ]
    header = ("figure", "line", "where", "paper", "simulated", "error", "the paper's number is")
    missed_points = table((*header, "hidden in the paper", "reason"), rows)
    return [missed_points, Paragraph(text="Reasons:"), Items(lines=tuple(reasons), numbered=True)] if rows else []


def _hidden(number: Number) -> str:
    known = residuals.no_overlap()
    return f"{known[number].hidden:.0%}" if number in known else NOTHING


def against_emulation(loaded: Sequence[Loaded]) -> list[Block]:
    """Every case that was simulated and emulated; nothing without any."""
    rows, missed = [], []
    for one in loaded:
        for pair in compare(one.records, one.simulated):
            case = pair.case
            values = sorted(pair.errors)
            missed.append(abs(pair.error))
            spread = f" [{values[0]:+.1%}, {values[-1]:+.1%}]" if len(values) > 1 else " (n=1)"
            rows.append(
                (
                    case.experiment,
                    pair.line.label,
                    f"n = {case.n}, k = {case.k}" if pair.line.uses_k else f"n = {case.n}",
                    format_nbytes(case.nbytes) if case.workload == "tensor" else case.workload,
                    format_rate(case.nic_bytes_per_s),
                    f"{pair.emulated_seconds:.4g}",
                    f"{pair.simulated_seconds:.4g}",
                    f"{pair.error:+.1%}{spread}",
                    "before" if pair.predicted else "after",
                )
            )
    header = ("experiment", "line", "machines", "what", "NIC", "emulated, s", "simulated, s", "error of the speed")
    if not rows:
        return []
    text = f"Median of the absolute errors: {median(missed):.1%}, n={len(missed)}."
    return [table((*header, "simulated ... the launches"), rows), Paragraph(text=text)]


def no_overlap() -> Table:
    """The paper's training beside the bound without overlap; bold where it is slower."""
    rows: dict[tuple[str, str], dict[int, residuals.NoOverlap]] = {}
    for number, one in residuals.no_overlap().items():
        rows.setdefault((number.line, number.wanted.model), {})[number.wanted.n] = one
    some = {key: row for key, row in sorted(rows.items()) if any(one.below for one in row.values())}
    ns = sorted({number.wanted.n for number in residuals.no_overlap()})
    gpus = paper.fig15_16().gpus_per_machine
    cells = [(line, paper.TITLES[model], *(_bound_cell(row[n]) for n in ns)) for (line, model), row in some.items()]
    return table(("line", "model", *(f"{n * gpus} GPUs" for n in ns)), cells)


def _bound_cell(one: residuals.NoOverlap) -> str:
    return f"**{one.published:.3f} < {one.bound:.3f}**" if one.below else f"{one.published:.3f} ({one.bound:.3f})"


def contradictions() -> Table:
    """What the paper says in two ways."""
    return table(("the paper says", "but"), [(one.says, one.but) for one in residuals.load().contradiction])
