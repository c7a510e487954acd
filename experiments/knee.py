"""The knee: up to which NIC rate the software keeps up with the network, n = k = 2 on the emulated cluster.

The NICs get faster from launch to launch until the processors of this one machine, which emulates all of them, are
the limit.  A rate is reached if the transfer takes at most t_opt / 0.9, t_opt from the shaped rate times 1448/1514.
The knee is the highest rate up to which every rate of the sweep is reached, in Gbit/s per machine and per core of this
computer.

The links are calibrated at every rate before and after the launch.  The bare flows of the calibration need processors,
too: where they fall short, the emulation itself is the limit, and a rate that is missed says nothing about BytePS.
A launch that the canary calls CPU-bound counts here, unlike in figures: running out of processors is the point.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from baselines import contenders
from byteps import theory
from byteps.units import format_rate, parse_rate
from experiments import launch, record, run
from experiments.bounds import Row
from experiments.emulated import Emulated
from experiments.record import Case, Record
from experiments.statistics import launch_seconds
from scripts.lab import star
from scripts.netns import Lab, LabError, why_no_lab

NAME = "knee"
RATES = ("200Mbit", "500Mbit", "1Gbit", "2Gbit", "5Gbit")
REACHED = 0.9
_SCHEDULER_RATE = "100Mbit"  # a few messages; a slow NIC keeps its calibration flow from loading the processors
_SECONDS_PER_ITERATION = 0.5
_LEAST_NBYTES, _GREATEST_NBYTES = 16 << 20, 64 << 20


def cases(*, rates: Sequence[str] = RATES, iterations: int = 3, tier: str = "reproduce") -> list[Case]:
    """One launch per rate, 16 to 64 MiB per worker."""
    result = []
    for position, text in enumerate(rates):
        rate = parse_rate(text)
        nbytes = int(min(max(rate * _SECONDS_PER_ITERATION, _LEAST_NBYTES), _GREATEST_NBYTES)) >> 20 << 20
        result.append(
            Case(
                experiment=NAME,
                tier=tier,
                contender="byteps",
                settings={"partition": "auto"},
                n=2,
                k=2,
                nic_bytes_per_s=rate,
                nbytes=nbytes,
                warmups=1,
                iterations=iterations,
                block=0,
                position=position,
            )
        )
    return result


def execute(wanted: Sequence[Case], raw: Path, tell: Callable[[str], None]) -> list[Record]:
    """One lab per rate; every record is appended as soon as it is there."""
    if reason := why_no_lab():
        raise LabError(reason)
    records = []
    for number, case in enumerate(wanted, start=1):
        started = time.monotonic()
        contender = contenders.get(case.contender)
        blank = run.blank_record(case, contender, "emulated")
        hosts = run.cluster_of([case]) | {"scheduler": parse_rate(_SCHEDULER_RATE)}
        with Lab(star(hosts)) as lab:
            stage = Emulated(lab)
            before = run.calibrate_once(stage)
            logs = raw / "logs" / f"{blank.case_hash[:12]}-{time.time_ns()}"
            (outcome,) = launch.run([case], contender, stage, logs=logs, tell=lambda _case, _doing: None)
            one = run.assemble(blank, outcome, before, run.calibrate_once(stage))
        record.append(raw / f"{NAME}.jsonl", one)
        records.append(one)
        title = f"[{number}/{len(wanted)}] {case.title} at {format_rate(case.nic_bytes_per_s)}"
        said = one.error or f"{of_optimum(one):.3f} of t_opt"
        tell(f"{title}: {said} ({time.monotonic() - started:.0f} s)")
    return records


def of_optimum(one: Record) -> float:
    """t_opt / t."""
    rate = one.case.nic_bytes_per_s * theory.TCP_PAYLOAD_FRACTION
    return theory.byteps_seconds(one.case.nbytes, one.case.n, one.case.k, rate) / launch_seconds(one.seconds)


def knee_bytes_per_s(reached: Sequence[tuple[float, float]]) -> float:
    """The highest rate up to which all of the sweep, (rate, fraction of t_opt), are reached; 0 if none is."""
    highest = 0.0
    for rate, fraction in sorted(reached):
        if fraction < REACHED:
            break
        highest = rate
    return highest


def rows(records: Sequence[Record]) -> list[Row]:
    """A line per rate, then the knee."""
    right = sorted((one for one in records if one.correct), key=lambda one: one.case.nic_bytes_per_s)
    if not right:
        return []
    result = [
        Row(
            what=f"of t_opt at {format_rate(one.case.nic_bytes_per_s)}",
            values=(of_optimum(one),),
            note=_note(one),
        )
        for one in right
    ]
    knee = knee_bytes_per_s([(one.case.nic_bytes_per_s, of_optimum(one)) for one in right]) * 8e-9
    cores = int(right[-1].host.get("cores", os.cpu_count() or 1))
    return [
        *result,
        Row(what=f"knee: highest rate with {REACHED} of t_opt", unit="Gbit/s", values=(knee,), note="per machine"),
        Row(what="knee per core", unit="Gbit/s", values=(knee / cores,), note=f"4 machines' NICs share {cores} cores"),
    ]


def _note(one: Record) -> str:
    """What the emulation says about itself."""
    notes = [f"M = {one.case.nbytes >> 20} MiB"]
    links = [seen for seen in (one.calibration_before, one.calibration_after) if seen]
    if not all(seen.passed for seen in links):
        notes.append(f"the emulation itself carries only {min(seen.least_fraction for seen in links):.2f} of this rate")
    if one.fidelity.canary_p99_seconds > 10e-3:
        notes.append("CPU-bound")
    return ", ".join(notes)
