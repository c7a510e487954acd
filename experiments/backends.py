"""Where an experiment runs, and those back ends that compute instead of running: simulation and theory.

    lab      on an emulated cluster, or on this machine (`experiments.run`)
    cluster  on hosts of a cluster file (`experiments.conduct`)
    sim      simulated: the cases of cases/NAME.sim.toml
    theory   closed forms: the same cases, else those of cases/NAME.toml; only of those that have one

What was computed has a file of its own, results/raw/NAME.sim.jsonl or NAME.theory.jsonl, so that predictions and
emulated runs stay apart, each with the time at which it was made.  Nothing is summed and nothing can be too slow: such
a record holds one time and what the simulation says besides.  It answers for its case as long as no file has changed
that the result depends on.  Cases are spread over the cores.
"""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from baselines.launch import ROOT
from byteps.version import VERSION
from experiments import agenda, provenance, record, simulate, spec
from experiments.agenda import RunError
from experiments.progress import display
from experiments.record import Case, Provenance, Record
from experiments.simulate import Result

BackEnd = Literal["lab", "cluster", "sim", "theory"]
Computed = Literal["sim", "theory"]
BACK_ENDS: tuple[BackEnd, ...] = ("lab", "cluster", "sim", "theory")

SOURCES = (
    *(f"byteps/{name}.py" for name in ("assign", "cluster", "flowsim", "lowering", "partition", "pipeline")),
    "byteps/machine*.py",
    *(f"byteps/{name}.py" for name in ("planner", "predict", "strategy", "theory", "units")),
    *(f"experiments/{name}.py" for name in ("analysis", "catalogue", "layers", "scale", "simulate", "systems")),
    *(f"experiments/{name}.py" for name in ("traffic", "twins", "workloads")),
    *("byteps/machines/*.toml", "experiments/models/*.toml", "experiments/systems.toml"),
    *("experiments/paper/fig15_16.toml", "baselines/contenders.py"),
)
"""What results depend on."""

COMPUTE: dict[Computed, tuple[Callable[[Case], Result], Provenance]] = {
    "sim": (simulate.simulated, "simulated"),
    "theory": (simulate.by_theory, "theory"),
}


def parse(text: str) -> BackEnd | None:
    """None for "": each experiment where it belongs."""
    for name in BACK_ENDS:
        if text == name:
            return name
    if text:
        raise RunError(f"--on {text}: use one of {', '.join(BACK_ENDS)}")
    return None


def belongs_to(name: str) -> BackEnd:
    """Where an experiment runs if nothing is said: here if it can, else simulated."""
    if name in agenda.experiments():
        return "lab"
    if name in agenda.simulations():
        return "sim"
    return "sim" if agenda.load(name).provenance == "simulated" else "lab"


def code() -> str:
    """Hash of what results depend on."""
    files = sorted({path for pattern in SOURCES for path in ROOT.glob(pattern)})
    return record.code_hash((str(path.relative_to(ROOT)), path.read_bytes()) for path in files)


def compute(name: str, tier: spec.Tier, on: Computed, *, raw: Path) -> int:
    """Compute what is missing of an experiment; returns how many cases could not be computed."""
    experiment = _load(name, on)
    experiment.size(tier)
    path = raw / f"{experiment.name}.{on}.jsonl"
    cases = agenda.cases_of(experiment, tier)
    if on == "theory":
        cases = [case for case in cases if simulate.has_closed_form(case)]
        if not cases:
            raise RunError(f"theory has no closed form for any case of {experiment.name}; use --on sim or --on lab")
    kept, bad = record.read(path)
    now = code()
    missing = [
        case for case in cases if not any(record.done(one, case, contender_version=VERSION, code=now) for one in kept)
    ]
    failed = 0
    with _results(missing, on) as results, display(missing) as show:
        for line in bad:
            show.note(str(line))
        show.note(f"{experiment.name}, tier {tier}, on {on}: {len(missing)} of {len(cases)} cases, records in {path}")
        started = time.monotonic()
        for one in _records(missing, results, now, COMPUTE[on][1]):
            record.append(path, one)
            failed += not one.verified
            show.launched(one, time.monotonic() - started, final=True)
            started = time.monotonic()
    return failed


def _load(name: str, on: Computed) -> spec.Experiment:
    if on == "theory" and name not in agenda.simulations():
        return agenda.load(name)
    experiment = agenda.load_simulation(name)
    if on == "sim" and experiment.provenance != "simulated":
        raise RunError(f'{name}: its provenance is "{experiment.provenance}"; what is simulated says "simulated"')
    return experiment


@contextmanager
def _results(cases: list[Case], on: Computed) -> Iterator[Iterable[Result | str]]:
    """Of every case in order, or why there is none; worker processes end with the block, whatever ends it."""
    if not cases:
        yield ()
        return
    cores = int(provenance.host()["cores"])
    with multiprocessing.Pool(min(cores, len(cases)), initializer=leave_signals_to_the_parent) as pool:
        yield pool.imap(partial(_result, on), cases)


def leave_signals_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _result(on: Computed, case: Case) -> Result | str:
    try:
        return COMPUTE[on][0](case)
    except (ValueError, KeyError, ArithmeticError) as error:
        return f"{type(error).__name__}: {error}"


def _records(cases: list[Case], results: Iterable[Result | str], now: str, source: Provenance) -> Iterator[Record]:
    versions, commit, host = provenance.versions(), provenance.git_commit(), provenance.host()
    for case, result in zip(cases, results, strict=True):
        found, error = (result, "") if isinstance(result, Result) else (None, result)
        yield Record(
            schema=record.SCHEMA_VERSION,
            case=case,
            case_hash=record.case_hash(case),
            code_hash=now,
            contender_version=VERSION,
            provenance=source,
            started_at=provenance.now(),
            seconds=[found.seconds] if found else [],
            facts=found.facts if found else {},
            error=error,
            versions=versions,
            git_commit=commit,
            host=host,
        )
