"""Where compression pays: every codec at three NIC rates, the same number of training steps each.

A small language model (`experiments.learner`, task char), trained synchronously by four workers on emulated NICs;
computing takes what it takes, so that a codec's processor time counts as it does for users.  Bytes are those that the
kernel counts on the workers' NICs, both ways.  Partitions of up to 16 KiB travel as they are, and this model is small:
so its bytes shrink by less than the codecs' formulas say of large tensors.  A block is a launch of each, order rotated.
"""

from collections.abc import Sequence
from typing import Final

from byteps.units import parse_rate
from experiments import curves, learning
from experiments.bounds import Row
from experiments.record import Case, Record
from experiments.statistics import paired_ratios

NAME: Final = "compression"
WORKERS: Final = 4
SERVERS: Final = 4
TASK: Final = "char"
CODECS: Final = {
    "none": "none",
    "fp16": "fp16",
    "onebit": "onebit",
    "topk:0.01": "topk 1 %",
    "randomk:0.01": "randomk 1 %",
}
RATES: Final = ("25Mbit", "100Mbit", "500Mbit")

contender = learning.contender
execute = learning.execute


def cases(
    *,
    blocks: int = 1,
    steps: int = 80,
    rates: Sequence[str] = RATES,
    codecs: Sequence[str] = tuple(CODECS),
    tier: str = "reproduce",
) -> list[Case]:
    """Every codec at every rate; those of a rate after each other."""
    found = []
    for block in range(blocks):
        turn = block % len(codecs)
        turned = [*codecs[turn:], *codecs[:turn]]
        for position, (rate, codec) in enumerate((rate, codec) for rate in rates for codec in turned):
            found.append(
                Case(
                    experiment=NAME,
                    tier=tier,
                    contender="byteps",
                    settings={"task": TASK, "mode": "bsp", "codec": codec, "steps": str(steps)},
                    n=WORKERS,
                    k=SERVERS,
                    nic_bytes_per_s=parse_rate(rate),
                    nbytes=learning.NBYTES[TASK],
                    warmups=0,
                    iterations=1,
                    block=block,
                    position=position,
                )
            )
    return found


def of(records: Sequence[Record], codec: str, rate: float) -> dict[int, Record]:
    """By block."""
    return {
        one.case.block: one
        for one in records
        if one.correct and one.case.settings["codec"] == codec and one.case.nic_bytes_per_s == rate
    }


def step_nbytes(one: Record) -> float:
    """Payload of a worker's NIC per step, both ways."""
    return learning.nic_nbytes(one) / curves.steps(one)[0]


def step_seconds(one: Record) -> float:
    """Of the whole training, over its steps."""
    return one.seconds[0] / curves.steps(one)[0]


def final_loss(one: Record) -> float:
    """After the last step, of what nobody trained on."""
    return curves.points(one)[-1].loss


def rates_of(records: Sequence[Record]) -> list[float]:
    """From the slowest NIC."""
    return sorted({one.case.nic_bytes_per_s for one in records if one.correct})


def rows(records: Sequence[Record]) -> list[Row]:
    """Bytes, time and loss of every codec, per rate and against none."""
    found = []
    for rate in rates_of(records):
        there = f"{rate * 8 / 1e6:g} Mbit/s"
        plain = of(records, "none", rate)
        for codec, label in CODECS.items():
            some = of(records, codec, rate)
            what = f"{there}, {label}"
            by_cores = sum(not one.faithful for one in some.values())
            note = f"{by_cores} of {len(some)} not faithful" if by_cores else ""
            seconds = {block: step_seconds(one) for block, one in some.items()}
            found.append(Row(what=f"{what}: step", values=tuple(seconds.values()), unit="s", note=note))
            for quantity, measure in (("bytes", step_nbytes), ("step", step_seconds)):
                ours = {block: measure(one) for block, one in some.items()}
                ratios = paired_ratios({block: measure(one) for block, one in plain.items()}, ours)
                if codec != "none":
                    found.append(Row(what=f"{what}: {quantity}, none / {label}", values=tuple(ratios.values())))
            found.append(Row(what=f"{what}: loss at the end", values=tuple(map(final_loss, some.values()))))
    return found
