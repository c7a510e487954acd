"""Launches of `experiments.learner`: one case is one training of a job of BytePS, from start to end.

On emulated NICs, or over loopback where a case has no NIC rate.  A training is one "iteration" of the case, so that its
time, the NICs' counters and the watch over the machine are those of the training alone; its curve is among the
record's facts.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from baselines.contenders import get
from baselines.launch import Contender, Launch, Process
from experiments import curves, here, launch, record, run
from experiments.emulated import Emulated
from experiments.record import Case, Record
from experiments.small_tensors import without_nic
from scripts.lab import star
from scripts.netns import Lab, LabError, why_no_lab

NBYTES: Final = {"digits": 4 * 38_282, "char": 4 * 115_673}
"""Of the gradients of each task: `python -m experiments.learner` says how many parameters there are."""
_OPTIONS: Final = ("task", "mode", "codec", "pace", "straggler", "steps", "seconds")  # settings that are the learner's
_PARTITION: Final = "4096000"  # the default of a user who knows no NIC rate
SOURCES: Final = (
    *("experiments/learner.py", "experiments/learning.py", "experiments/curves.py", "experiments/trainer.py"),
    *("experiments/here.py", "examples/digits.py", "examples/char_model.py", "byteps/torch/*.py", "byteps/codecs/*.py"),
)


def contender(name: str) -> Contender:
    """BytePS, with a training in place of the driver."""
    one = get(name)
    if name != "byteps":
        raise ValueError(f"contender {name!r} is none of this benchmark; its cases have 'byteps'")
    return replace(one, plan=_plan, sources=(*one.sources, *SOURCES))


def _plan(launch: Launch) -> list[Process]:
    """The roles of a job of BytePS, whose workers learn."""
    plan = get("byteps").plan
    assert plan is not None
    if not launch.nic_bytes_per_s:
        launch = replace(launch, settings={**launch.settings, "partition": _PARTITION})
    planned = []
    for process in plan(launch):
        env: Mapping[str, str] = process.env if launch.nic_bytes_per_s else without_nic(process.env)
        if process.rank >= 0:
            words = {name: launch.settings[name] for name in _OPTIONS if name in launch.settings}
            argv = (
                *process.argv[: process.argv.index("--") + 1],
                *(sys.executable, "-m", "experiments.learner"),
                *(part for name, word in words.items() for part in (f"--{name}", word)),
            )
            process = replace(process, argv=argv)
            env = {**env, "OMP_NUM_THREADS": "1"}
        planned.append(replace(process, env=env))
    return planned


def _noting(one: Contender, folder: Path) -> Contender:
    """Its workers write what they noted into that folder."""

    def plan(launch: Launch) -> list[Process]:
        assert one.plan is not None
        return [
            replace(process, argv=(*process.argv, "--notes", str(folder))) if process.rank >= 0 else process
            for process in one.plan(launch)
        ]

    return replace(one, plan=plan)


def execute(wanted: Sequence[Case], raw: Path, tell: Callable[[str], None]) -> list[Record]:
    """One launch after the other, each recorded as soon as it ends; LabError where no lab can be but must."""
    records: list[Record] = []
    for rate, group in groupby(wanted, lambda case: case.nic_bytes_per_s):
        cases = list(group)
        made: Iterable[tuple[Record, Path]]
        if not rate:
            made = ((here.run(case, one, logs=logs), notes) for case, one, logs, notes in _prepared(cases, raw))
        else:
            made = _in_lab(cases, raw)
        began = time.monotonic()
        for one, notes in made:
            one = _with_curve(one, notes)
            record.append(raw / f"{one.case.experiment}.jsonl", one)
            records.append(one)
            tell(f"[{len(records)}/{len(wanted)}] {one.case.title}: {_said(one)} ({time.monotonic() - began:.0f} s)")
            began = time.monotonic()
    return records


def _said(one: Record) -> str:
    if one.error or not one.correct:
        return one.error or "ranks ended with different weights"
    curve = curves.points(one)
    return f"{one.seconds[0]:.1f} s, loss {curve[0].loss:.3f} to {curve[-1].loss:.3f}"


def _prepared(cases: Sequence[Case], raw: Path) -> Iterator[tuple[Case, Contender, Path, Path]]:
    """Of each: the contender, whose workers write what they noted into a folder, logs, and that folder."""
    for case in cases:
        logs = raw / "logs" / f"{record.case_hash(case)[:12]}-{time.time_ns()}"
        with tempfile.TemporaryDirectory() as folder:
            yield case, _noting(contender(case.contender), Path(folder)), logs, Path(folder)


def _in_lab(cases: Sequence[Case], raw: Path) -> Iterator[tuple[Record, Path]]:
    """On one emulated cluster, calibrated before, between and after them."""
    if reason := why_no_lab():
        raise LabError(reason)
    with Lab(star(run.cluster_of(list(cases)))) as lab:
        stage = Emulated(lab)
        before = run.calibrate_once(stage)
        for case, one, logs, notes in _prepared(cases, raw):
            blank = run.blank_record(case, one, "emulated")
            (outcome,) = launch.run([case], one, stage, logs=logs, tell=lambda _case, _doing: None)
            after = run.calibrate_once(stage)
            yield run.assemble(blank, outcome, before, after), notes
            before = after


def _with_curve(one: Record, folder: Path) -> Record:
    """What its workers noted among its facts; a launch that failed has none."""
    notes = [msgspec.json.decode(path.read_bytes(), type=curves.Notes) for path in folder.glob("*.json")]
    if one.error or len(notes) != one.case.n:
        return one
    return msgspec.structs.replace(one, facts={**one.facts, **curves.facts(notes)})


def nic_nbytes(one: Record) -> float:
    """Payload that a GPU machine's NIC sent and received, the mean over machines."""
    nics = [nic for host, nic in one.nics.items() if host.startswith("gpu")]
    return sum(nic.payload_sent + nic.payload_received for nic in nics) / len(nics) if nics else 0.0
