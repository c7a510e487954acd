"""What a training leaves behind: what its workers noted, and the curve that it makes.

Every worker notes when its steps ended, on the clock that all processes of a machine share; rank 0 notes the loss at
some of its steps.  So epochs are all workers' samples over those of the data set, whoever made them: a straggler's few
steps count as few.  A worker's speed is its steps over the time until its last one.
Pure.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import msgspec

from experiments.record import Record

CURVE: Final = "curve"  # facts of a record
SPEEDS: Final = "steps_per_second"
STEPS: Final = "steps made"


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The loss on data that nobody trains on, with the weights as rank 0 had them."""

    step: int  # rank 0's, so many made
    at: float  # seconds of the shared clock
    loss: float


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's."""

    rank: int
    samples: int  # per step
    data: int  # samples of the data set
    started: float
    ends: list[float]  # of its steps
    evaluations: list[Evaluation]  # rank 0 only


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Of a curve."""

    seconds: float
    epochs: float
    step: int
    loss: float


def facts(notes: Sequence[Notes]) -> dict[str, str]:
    """A launch's curve, every worker's speed and number of steps, for its record."""
    started = min(one.started for one in notes)
    curve = [
        Point(
            seconds=max(seen.at - started, 0.0),
            epochs=sum(bisect_right(one.ends, seen.at) * one.samples / one.data for one in notes),
            step=seen.step,
            loss=seen.loss,
        )
        for one in notes
        for seen in one.evaluations
    ]
    ordered = sorted(notes, key=lambda one: one.rank)
    speeds = [len(one.ends) / (one.ends[-1] - one.started) if one.ends else 0.0 for one in ordered]
    return {
        CURVE: msgspec.json.encode(curve).decode(),
        SPEEDS: msgspec.json.encode([round(speed, 4) for speed in speeds]).decode(),
        STEPS: msgspec.json.encode([len(one.ends) for one in ordered]).decode(),
    }


def points(one: Record) -> list[Point]:
    """The curve of a launch; none where it left none."""
    return msgspec.json.decode(one.facts.get(CURVE, "[]"), type=list[Point])


def speeds(one: Record) -> list[float]:
    """Steps per second by rank."""
    return msgspec.json.decode(one.facts.get(SPEEDS, "[]"), type=list[float])


def steps(one: Record) -> list[int]:
    """Steps made by rank."""
    return msgspec.json.decode(one.facts.get(STEPS, "[]"), type=list[int])


def seconds_to(curve: Sequence[Point], target: float) -> float | None:
    """When the loss was first at most that, on straight lines between evaluations; None if never."""
    for before, after in zip([*curve[:1], *curve], curve, strict=False):
        if after.loss <= target:
            fall = before.loss - after.loss
            part = (before.loss - target) / fall if fall > 0 and before.loss > target else 1.0
            return before.seconds + part * (after.seconds - before.seconds)
    return None
