"""What synchronisation costs a training and what staleness costs its loss: BSP, SSP, and asynchronous training.

Two tasks (`experiments.learner`), four workers on emulated NICs, each mode with and without a straggler: the last
worker, whose steps take three times as long.  All train for the same time, not for the same number of steps: which mode
is best at the end is the question.  A step's computation is emulated by waiting, so that four workers share this
machine's cores.

The bound: asynchronous training keeps the fast workers' steps per second, those of all but the last worker,
within 5 % of theirs without the straggler.  A block is a launch of each, order rotated.
"""

from collections.abc import Sequence
from statistics import mean, median
from typing import Final

from byteps.units import parse_rate
from experiments import curves, learning
from experiments.bounds import Row
from experiments.record import Case, Record
from experiments.statistics import paired_ratios

NAME: Final = "convergence"
WORKERS: Final = 4
SERVERS: Final = 2
NIC: Final = "100Mbit"
TASKS: Final = ("digits", "char")
MODES: Final = {"bsp": "BSP", "ssp:1": "SSP, s = 1", "ssp:3": "SSP, s = 3", "async": "asynchronous"}
STRAGGLERS: Final = {"1": "no straggler", "3": "straggler"}
TARGETS: Final = {"digits": 0.5, "char": 2.75}
"""Losses that every mode comes to in this time if nothing is slow."""
PACE_SECONDS: Final = "0.1"
KEPT: Final = 0.95

contender = learning.contender
execute = learning.execute


def cases(
    *,
    blocks: int = 1,
    seconds: float = 12.0,
    tasks: Sequence[str] = TASKS,
    modes: Sequence[str] = tuple(MODES),
    tier: str = "reproduce",
) -> list[Case]:
    """Every mode of every task, with and without a straggler."""
    found = []
    for block in range(blocks):
        points = [(task, mode, straggler) for task in tasks for mode in modes for straggler in STRAGGLERS]
        turn = block % len(points)
        for position, (task, mode, straggler) in enumerate([*points[turn:], *points[:turn]]):
            settings = {
                **{"task": task, "mode": mode, "straggler": straggler},
                **{"pace": PACE_SECONDS, "seconds": f"{seconds:g}"},
            }
            found.append(
                Case(
                    experiment=NAME,
                    tier=tier,
                    contender="byteps",
                    settings=settings,
                    n=WORKERS,
                    k=SERVERS,
                    nic_bytes_per_s=parse_rate(NIC),
                    nbytes=learning.NBYTES[task],
                    warmups=0,
                    iterations=1,
                    block=block,
                    position=position,
                )
            )
    return found


def tasks_of(records: Sequence[Record]) -> list[str]:
    """Those that were trained."""
    return [task for task in TASKS if any(one.correct and one.case.settings["task"] == task for one in records)]


def of(records: Sequence[Record], task: str, mode: str, straggler: str) -> list[Record]:
    """The trainings of a line."""
    wanted = {"task": task, "mode": mode, "straggler": straggler}
    return [one for one in records if one.correct and wanted.items() <= one.case.settings.items()]


def fast_speed(one: Record) -> float:
    """Steps per second of a worker that never straggles: the mean over all but the last."""
    return mean(curves.speeds(one)[:-1])


def kept(records: Sequence[Record], task: str, mode: str) -> dict[int, float]:
    """What a straggler leaves of the fast workers' speed, by block."""
    slowed, alone = (
        {one.case.block: fast_speed(one) for one in of(records, task, mode, straggler)} for straggler in ("3", "1")
    )
    return paired_ratios(slowed, alone)


def seconds_to_target(one: Record) -> float | None:
    """Until the task's target loss; None where the time was up before."""
    return curves.seconds_to(curves.points(one), TARGETS[one.case.settings["task"]])


def rows(records: Sequence[Record]) -> list[Row]:
    """The bound, then speeds, losses and times to a target of every line."""
    tasks = tasks_of(records)
    found = []
    for task in tasks:
        for mode, label in MODES.items():
            bound = KEPT if mode == "async" else None
            if not any(of(records, task, mode, straggler) for straggler in STRAGGLERS):
                continue
            what = f"{task}, {label}: fast workers' steps/s, with / without straggler"
            found.append(Row(what=what, values=tuple(kept(records, task, mode).values()), bound=bound))
    for task in tasks:
        for straggler, slow in STRAGGLERS.items():
            for mode, label in MODES.items():
                some = of(records, task, mode, straggler)
                if not some:
                    continue
                bound_by_cores = sum(not one.faithful for one in some)
                note = f"{bound_by_cores} of {len(some)} not faithful" if bound_by_cores else ""
                what = f"{task}, {slow}, {label}"
                found.append(Row(what=f"{what}: fast workers", values=tuple(map(fast_speed, some)), unit="steps/s"))
                losses = tuple(curves.points(one)[-1].loss for one in some)
                found.append(Row(what=f"{what}: loss at the end", values=losses, note=note))
                times = tuple(time for one in some if (time := seconds_to_target(one)) is not None)
                missed = "" if len(times) == len(some) else f"not reached in {len(some) - len(times)} of {len(some)}"
                found.append(Row(what=f"{what}: until loss {TARGETS[task]:g}", values=times, unit="s", note=missed))
    return found


def middle(records: Sequence[Record]) -> Record | None:
    """The launch whose last loss is the median one (of an even number, the lower): its curve stands for the line."""
    if not records:
        return None
    ordered = sorted(records, key=lambda one: curves.points(one)[-1].loss)
    return ordered[(len(ordered) - 1) // 2]


def median_seconds(records: Sequence[Record]) -> float | None:
    """To the target, over the launches that came there; None if none did."""
    times = [time for one in records if (time := seconds_to_target(one)) is not None]
    return median(times) if times else None
