"""Training on unequal machines: each setting that fits them against the one that treats them alike.

    batches    one machine computes 3 times as long per sample: batches by speed, weighted averages / equal batches
    NICs       CPU machines with NICs of 4 and 1: shares by their rates / equal shares, as if nobody had said the rates
    two NICs   every machine has two: connections over both / over one of them

Samples per iteration, model and machines are the same on both sides of a ratio, and a check against all ranks' data in
one process ends every launch.  How long a machine computes is emulated, by waiting.  A lower ratio is better; what
bounds it is the ratio of what the slowest machine does: 120/240 ms, 32 MB at 4 / 20 MB at 1, and 1/2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from byteps.units import parse_rate
from experiments.bounds import Row
from experiments.record import Case, Record
from experiments.statistics import launch_seconds, paired_ratios

WORKERS: Final = 2
FITTING, ALIKE = "fitting", "alike"


@dataclass(frozen=True, kw_only=True)
class Theme:
    """A way in which machines differ."""

    title: str  # fitting / alike
    k: int
    rate: str  # of every NIC
    nics: Mapping[str, str]  # of those that differ
    both: Mapping[str, str]  # settings of `experiments.training`
    fitting: Mapping[str, str]
    alike: Mapping[str, str]
    bound: float


THEMES: Final = {
    "batches": Theme(
        title="batches by speed / equal batches, machines of speed 3 and 1",
        k=0,
        rate="1Gbit",
        nics={},
        both={"pace": "10,30", "layers": "5"},
        fitting={"samples": "12,4"},
        alike={"samples": "8,8"},
        bound=0.8,
    ),
    "NICs": Theme(
        title="shares by NIC rate / equal shares, CPU machines of 400 and 100 Mbit/s",
        k=2,
        rate="300Mbit",
        nics={"cpu0": "400Mbit", "cpu1": "100Mbit"},
        both={"samples": "8", "layers": "10"},
        fitting={"shares": "by rate"},
        alike={"shares": "equal"},
        bound=0.7,
    ),
    "two NICs": Theme(
        title="over two NICs / over one of them",
        k=0,
        rate="100Mbit",
        nics={},
        both={"samples": "8", "layers": "10", "nics": "2"},
        fitting={"interfaces": "eth0,eth1"},
        alike={"interfaces": "eth0"},
        bound=0.7,
    ),
}


def cases(experiment: str, parameters_per_layer: int, *, blocks: int, iterations: int, tier: str) -> list[Case]:
    """Both sides of every theme, order rotated."""
    return [
        Case(
            experiment=experiment,
            tier=tier,
            contender="byteps",
            settings={
                **{"theme": name, "side": side, "way": "optimizer", "steps": "2"},
                **theme.both,
                **(theme.fitting if side == FITTING else theme.alike),
            },
            n=WORKERS,
            k=theme.k,
            nic_bytes_per_s=parse_rate(theme.rate),
            nics={name: parse_rate(rate) for name, rate in theme.nics.items()},
            nbytes=4 * parameters_per_layer * int(theme.both["layers"]),
            warmups=1,
            iterations=iterations,
            block=block,
            position=position,
        )
        for block in range(blocks)
        for name, theme in THEMES.items()
        for position, side in enumerate((FITTING, ALIKE) if block % 2 == 0 else (ALIKE, FITTING))
    ]


def rows(records: Sequence[Record]) -> list[Row]:
    """A ratio for every theme that was run."""

    def per_block(name: str, side: str) -> dict[int, float]:
        return {
            one.case.block: launch_seconds(one.seconds)
            for one in records
            if one.correct and one.case.settings.get("theme") == name and one.case.settings["side"] == side
        }

    found = []
    for name, theme in THEMES.items():
        seconds = {side: per_block(name, side) for side in (FITTING, ALIKE)}
        if not any(one.case.settings.get("theme") == name for one in records):
            continue
        for side in (FITTING, ALIKE):
            what = f"iteration, {name}, {side}, n = {WORKERS}, k = {theme.k}"
            found.append(Row(what=what, values=tuple(seconds[side].values()), unit="s"))
        ratios = tuple(paired_ratios(seconds[FITTING], seconds[ALIKE]).values())
        found.append(Row(what=theme.title, values=ratios, bound=theme.bound, direction="at most"))
    return found
