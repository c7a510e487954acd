"""Summing on the GPUs of one machine against its own PCIe: copies alone, collectives alone, and the whole pipeline.

`experiments.device_program` times them in turn, in the same process, over 16 tensors of 16 MiB:

    pipeline / copies out and in at the same time    at most 1.25

Copies both ways at once are a bound: the pipeline makes the same ones, and collectives beside them.  One launch for
each number of GPUs, 1, 2, 4 and 8, as far as there are so many.  Nothing of this has run on hardware yet, as the report
says until there is a record.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from baselines import contenders
from baselines.launch import ROOT, Contender
from experiments import record
from experiments.bounds import Row
from experiments.record import Case, OracleCheck, Record
from experiments.run import blank_record
from scripts.netns import LabError

NAME = "device"
TENSORS, NBYTES = 16, 16 << 20
MOST_OVER_COPIES = 1.25
ABSENT = (
    "Summing on the GPUs of a machine was never run on hardware. `python -m experiments bench device` measures it "
    "where there is a CUDA device; until then its orderings are tested, on a device in plain memory (docs/devices.md)."
)
_DEADLINE_SECONDS = 300.0
_COUNT = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


def cases(
    *,
    blocks: int = 3,
    iterations: int = 5,
    nbytes: int = NBYTES,
    gpus: Sequence[int] = (1, 2, 4, 8),
    tier: str = "sweep",
) -> list[Case]:
    """One launch for each number of GPUs and block."""
    return [
        Case(
            experiment=NAME,
            tier=tier,
            contender="byteps",
            settings={"gpus": str(count)},
            n=1,
            k=0,
            nic_bytes_per_s=0.0,
            nbytes=TENSORS * nbytes,
            warmups=2,
            iterations=iterations,
            block=block,
            position=position,
        )
        for block in range(blocks)
        for position, count in enumerate(gpus)
    ]


def contender(name: str) -> Contender:
    return contenders.get(name)


def num_gpus() -> int:
    """Of this machine, as torch sees them; in a process of its own, since torch takes seconds to import."""
    done = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, timeout=_DEADLINE_SECONDS)
    return int(done.stdout) if done.returncode == 0 else 0


def execute(wanted: Sequence[Case], raw: Path, tell: Callable[[str], None]) -> list[Record]:
    """Each measured and recorded, as far as there are GPUs for it."""
    there, records = num_gpus(), []
    if not there:
        raise LabError("no CUDA device on this machine")
    for case in (case for case in wanted if int(case.settings["gpus"]) <= there):
        one = _launch(case)
        record.append(raw / f"{NAME}.jsonl", one)
        records.append(one)
        tell(f"{case.title}: {one.error or one.facts}")
    return records


def _launch(case: Case) -> Record:
    settings = {
        "ranks": int(case.settings["gpus"]),
        "tensors": TENSORS,
        "nbytes": case.nbytes // TENSORS,
        "warmups": case.warmups,
        "iterations": case.iterations,
    }
    command = [sys.executable, "-m", "experiments.device_program", json.dumps(settings)]
    blank, started = blank_record(case, contenders.get(case.contender), "measured"), time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_DEADLINE_SECONDS)
        if done.returncode:
            last = next(iter(done.stderr.strip().splitlines()[::-1]), "no output")
            return msgspec.structs.replace(blank, error=f"exit status {done.returncode}: {last}")
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return msgspec.structs.replace(blank, error=f"{type(error).__name__}: {error}")
    return filled(blank, found, time.monotonic() - started)


def filled(blank: Record, found: dict[str, dict[str, list[float]]], wall_seconds: float) -> Record:
    """A record of what the program printed; the other times than the pipeline's are facts, as medians."""
    seconds = {what: list(map(float, values)) for what, values in found["seconds"].items()}
    error = float(found["max_error"])  # type: ignore[arg-type]
    facts = {f"{what}_seconds": f"{median(values):.6g}" for what, values in seconds.items() if what != "pipeline"}
    return msgspec.structs.replace(
        blank,
        startup_seconds=wall_seconds,
        seconds=seconds["pipeline"],
        oracle=OracleCheck(max_error=error, tolerance=0.0, checked=int(found["checked"]), passed=error == 0),  # type: ignore[call-overload]
        facts={**facts, "device": str(found["device"]), "torch": str(found["torch"])},
    )


def rows(records: Sequence[Record]) -> list[Row]:
    """By number of GPUs: each way's rate over PCIe, and the pipeline against the copies that it makes."""
    found = []
    for count in sorted({int(one.case.settings["gpus"]) for one in records}):
        of = [one for one in records if one.case.settings["gpus"] == str(count) and one.verified]
        said = f"{count} GPU{'s' if count > 1 else ''}"
        for what, label in (("out", "copies to the host"), ("in", "copies from the host"), ("collect", "collectives")):
            rates = [
                one.case.nbytes / float(seconds) / 1e9 for one in of if (seconds := one.facts.get(f"{what}_seconds"))
            ]
            if rates:
                found.append(Row(what=f"{said}: {label}, of one gradient", unit="GB/s", values=tuple(rates)))
        over = tuple(median(one.seconds) / float(one.facts["both_seconds"]) for one in of)
        found.append(Row(what=f"{said}: pipeline / copies", values=over, bound=MOST_OVER_COPIES, direction="at most"))
    return found
