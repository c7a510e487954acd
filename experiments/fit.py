"""Finds the constants of the systems: fitted on Figure 12 and on 16 GPUs in Figures 15 and 16, and on nothing else.

With r = ln(simulated / the paper's seconds) of such a point, the constants of a system make the sum of r^2 least; they
are 0 or more, and shares of a rate at most 1.  A parameter server's two fractions are fitted on Figure 12, where
t = a nM/(kB) + b M/B describes all its points, then its costs of a tensor on 16 GPUs.  Its point at k = 0 is left out:
7 Gbit/s, with no machine that is a server.

The cost of a message is not fitted: as long as most partitions are of one size, it looks as a smaller share of the rate
does.  (Fitted with the others it came to 10 us, standard error 60 us.)

A constant that is less than its standard error (of linear least squares at the solution) is set to 0, and the others
are fitted again: these points do not ask for it.

*Cross-validation*: all of this again without one model, which is then predicted; and so for each.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from experiments import agenda, analysis, backends, errors, provenance, simulate, systems
from experiments.errors import Number
from experiments.record import Case
from experiments.systems import Systems

FILE = Path(__file__).with_name("fitted.toml")
TRAINING = ("Fig 15", "Fig 16")
MOST_TRIALS = 12  # of a fit; more would follow a valley
HEADER = """\
# How well the constants of systems.toml explain the numbers that they were fitted on, by `python -m experiments fit`:
# simulated / paper - 1, also with the model left out.
"""
_Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A number of the paper that constants are fitted on."""

    number: Number
    case: Case
    seconds: float  # that the number says


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A constant to find."""

    path: str  # in `systems.toml`
    unit: float  # it is looked for in these
    start: float  # in units, as the next ones
    step: float  # for differences: small beside what matters, large beside the grain of partitions
    most: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Constants that are fitted together, on the points of a system in these figures."""

    system: errors.System
    figures: tuple[str, ...]
    parameters: tuple[Parameter, ...]

    def points(self, some: Iterable[Point]) -> list[Point]:
        return [one for one in some if one.number.system == self.system and one.number.figure in self.figures]


def _seconds(path: str, start: float = 0.0) -> Parameter:
    return Parameter(path=path, unit=1e-3, start=start, step=0.01)


def _share(path: str) -> Parameter:
    return Parameter(path=path, unit=1.0, start=0.9, step=0.005, most=1.0)


def _times(path: str) -> Parameter:
    return Parameter(path=path, unit=1.0, start=1.0, step=0.005)


STAGES = (
    Stage(
        system="BytePS",
        figures=("Fig 12", *TRAINING),
        parameters=(_share("byteps.network_fraction"), _seconds("byteps.tensor_seconds")),
    ),
    Stage(
        system="All-reduce",
        figures=("Fig 12", *TRAINING),
        parameters=(_share("all_reduce.network_fraction"), _seconds("all_reduce.negotiation_seconds", start=0.1)),
    ),
    Stage(
        system="Parameter server",
        figures=("Fig 12",),
        parameters=(_times("parameter_server.server_fraction"), _times("parameter_server.worker_fraction")),
    ),
    Stage(
        system="Parameter server",
        figures=TRAINING,
        parameters=(
            _seconds("parameter_server.tensor_seconds.MXNet", start=1.0),
            _seconds("parameter_server.tensor_seconds.TensorFlow", start=1.0),
        ),
    ),
)


def points() -> list[Point]:
    """All that is fitted on."""
    cases = {
        errors.wanted_of(case): case
        for name in ("fig12", "scale")
        for case in agenda.cases_of(agenda.load_simulation(name), "reproduce")
        if case.settings.get("local", "rule") == "rule"
    }
    found = []
    for number in errors.published():
        if number.use == "fitted" and not (number.system == "Parameter server" and number.wanted.k == 0):
            case = cases[number.wanted]
            found.append(Point(number=number, case=case, seconds=_seconds_of(number, case, number.value)))
    return found


def _seconds_of(number: Number, case: Case, value: float) -> float:
    """The time that a value stands for; and the value that a time stands for."""
    if number.linear:
        return number.linear * analysis.linear_seconds(case) / value
    return case.nbytes * 8e-9 / value


Times = Callable[[Sequence[tuple[Systems, Case]]], list[float]]
"""Seconds of simulated cases, each with constants of its own."""


def seconds(constants: Systems, case: Case) -> float:
    return simulate.of_the_paper(case, constants).seconds


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Constants at their best, in their units; of those that are not 0 the standard error too."""

    stage: Stage
    units: _Floats
    standard_errors: _Floats
    num_points: int

    def put(self, constants: Systems) -> Systems:
        found = {}
        for parameter, value, error in zip(self.stage.parameters, self.units, self.standard_errors, strict=True):
            told = f"standard error {error * parameter.unit:.1g}" if error else "they do not ask for it"
            source = f"fitted on {self.num_points} points of {_listed(self.stage.figures)}; {told}"
            found[parameter.path] = (float(f"{value * parameter.unit:.4g}"), source)
        return systems.replaced(constants, found)

    def __str__(self) -> str:
        pairs = zip(self.stage.parameters, self.units, strict=True)
        values = ", ".join(f"{one.path} = {value * one.unit:.3g}" for one, value in pairs)
        return f"{self.stage.system}, {self.num_points} points: {values}"


def _listed(figures: Sequence[str]) -> str:
    """In words."""
    texts = ["Figure 12"] if "Fig 12" in figures else []
    return " and ".join(texts + (["Figures 15 and 16 (16 GPUs)"] if "Fig 15" in figures else []))


def settle(stage: Stage, some: Sequence[Point], start: Systems, times: Times) -> Solution:
    """Fits, and fits again without what the points do not ask for, as often as it takes."""
    start = systems.replaced(start, {one.path: (one.start * one.unit, "a trial") for one in stage.parameters})
    wanted = list(range(len(stage.parameters)))
    units, errors_of = np.array([one.start for one in stage.parameters]), np.zeros(len(stage.parameters))
    while wanted:
        chosen = tuple(stage.parameters[index] for index in wanted)
        units[wanted], errors_of[wanted] = solve(chosen, some, start, units[wanted], times)
        doubtful = [index for index in wanted if units[index] <= errors_of[index] or not errors_of[index]]
        if not doubtful:
            break
        least = min(doubtful, key=lambda index: units[index] / errors_of[index] if errors_of[index] else 0.0)
        wanted.remove(least)
        units[least] = errors_of[least] = 0.0
        start = systems.replaced(start, {stage.parameters[least].path: (0.0, "left out")})
    return Solution(stage=stage, units=units, standard_errors=errors_of, num_points=len(some))


def solve(
    parameters: Sequence[Parameter], some: Sequence[Point], start: Systems, begin: _Floats, times: Times
) -> tuple[_Floats, _Floats]:
    """Least squares from there on, by differences; values and their standard errors, 0 for those at a bound."""
    from scipy.optimize import least_squares  # here, because importing it takes 0.5 s

    wanted = np.array([one.seconds for one in some])
    known: dict[bytes, _Floats] = {}

    def put(units: _Floats) -> Systems:
        pairs = zip(parameters, units, strict=True)
        return systems.replaced(start, {one.path: (float(value) * one.unit, "a trial") for one, value in pairs})

    def residuals(*trials: _Floats) -> list[_Floats]:
        new = [trial for trial in trials if trial.tobytes() not in known]
        found = np.array(times([(put(trial), one.case) for trial in new for one in some]))
        for trial, row in zip(new, found.reshape(len(new), -1), strict=True):
            known[trial.tobytes()] = np.log(row / wanted)
        return [known[trial.tobytes()] for trial in trials]

    def slopes(units: _Floats) -> _Floats:
        steps = [one.step if one.step < one.most - at else -one.step for one, at in zip(parameters, units, strict=True)]
        here, *there = residuals(units, *(units + step for step in np.diag(steps)))
        return np.array([(row - here) / step for row, step in zip(there, steps, strict=True)]).T

    best = least_squares(
        lambda units: residuals(units)[0],
        begin,
        jac=slopes,
        bounds=(0.0, [one.most for one in parameters]),
        method="dogbox",
        x_scale="jac",
        xtol=1e-3,
        ftol=1e-4,
        max_nfev=MOST_TRIALS,
    )
    free = best.active_mask == 0
    spread = np.zeros(len(free))
    spread[free] = np.diag(np.linalg.pinv(best.jac[:, free].T @ best.jac[:, free]))
    variance = 2 * best.cost / max(len(some) - int(free.sum()), 1)
    return best.x, np.sqrt(variance * spread)


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A point, and the errors at it: simulated / paper - 1, of goodput or throughput."""

    system: errors.System
    figure: str
    line: str
    where: str
    paper: float
    fitted_error: float
    left_out_error: float | None = None  # fitted without this model; none for Figure 12, which has none


class Lines(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    point: list[Line]


def fit(start: Systems, times: Times, tell: Callable[[str], None]) -> tuple[Systems, list[Line]]:
    """All stages, and every model left out once."""
    every = points()
    constants = start
    for stage in STAGES:
        solution = settle(stage, stage.points(every), constants, times)
        constants = solution.put(constants)
        tell(str(solution))
    left_out: dict[Number, float] = {}
    for model in dict.fromkeys(one.number.wanted.model for one in every if one.number.wanted.model):
        apart = [one for one in every if one.number.wanted.model == model]
        others = [one for one in every if one.number.wanted.model != model]
        without = constants
        for stage in STAGES:
            if len(stage.points(others)) < len(stage.points(every)):
                without = settle(stage, stage.points(others), without, times).put(without)
        left_out |= dict(zip((one.number for one in apart), _errors(apart, without, times), strict=True))
        tell(f"without {model}: " + ", ".join(f"{one.number.line} {left_out[one.number]:+.1%}" for one in apart))
    lines = [
        Line(
            system=one.number.system,
            figure=one.number.figure,
            line=one.number.line,
            where=one.number.where,
            paper=one.number.value,
            fitted_error=error,
            left_out_error=left_out.get(one.number),
        )
        for one, error in zip(every, _errors(every, constants, times), strict=True)
    ]
    return constants, lines


def _errors(some: Sequence[Point], constants: Systems, times: Times) -> list[float]:
    found = times([(constants, one.case) for one in some])
    return [round(one.seconds / value - 1, 5) for one, value in zip(some, found, strict=True)]


def load(path: Path = FILE) -> list[Line]:
    """What the last fit left; nothing before the first."""
    return msgspec.toml.decode(path.read_bytes(), type=Lines).point if path.exists() else []


def text(lines: Iterable[Line]) -> str:
    """The file that `load` reads."""
    parts = [HEADER]
    for one in lines:
        parts.append("\n[[point]]\n")
        parts += [
            f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in msgspec.to_builtins(one).items()
        ]
    return "".join(parts)


def main(tell: Callable[[str], None] = print) -> list[Line]:
    """Fits, and writes both files."""
    with Pool(int(provenance.host()["cores"]), initializer=backends.leave_signals_to_the_parent) as pool:
        constants, lines = fit(systems.load(), lambda tasks: pool.starmap(seconds, tasks, chunksize=1), tell)
    systems.FILE.write_text(systems.text(constants), encoding="utf-8")
    FILE.write_text(text(lines), encoding="utf-8")
    return lines
