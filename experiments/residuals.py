"""What is known of where the simulation misses the paper: reasons, and the bound that says when no fit could help.

*No overlap*: an iteration of n machines computes, then sums, then computes again; nothing of one hides behind another.
Computation takes what the paper's own all-reduce takes on one machine of 8 GPUs, the ring 2(n-1)M / (n B'), where B' is
the rate at which the paper's all-reduce ran without computation (Figure 12: 36 Gbit/s of M at n = 8 are 63 Gbit/s on
the NIC).  With any overlap an all-reduce of that rate is faster.  Where the paper's is slower still, something costs
time that neither bandwidth nor a lack of overlap explains.
Pure: no I/O except reading residuals.toml and the paper's numbers.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import msgspec

from byteps import theory
from experiments import catalogue, paper
from experiments.errors import Number

PATH = Path(__file__).with_name("residuals.toml")
UNEXPLAINED = "not explained"


class Reason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why numbers of these figures, lines and places are missed; "*" stands for anything."""

    figure: str
    line: str
    where: str
    text: str
    below_no_overlap: bool = False  # only those where the paper is slower than without any overlap

    def fits(self, number: Number) -> bool:
        pairs = ((number.figure, self.figure), (number.line, self.line), (number.where, self.where))
        return all(fnmatchcase(*pair) for pair in pairs) and (not self.below_no_overlap or below_no_overlap(number))


class Contradiction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The paper's text, and what its figures or formulas say."""

    says: str
    but: str


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: list[Reason]
    contradiction: list[Contradiction]


@cache
def load() -> _File:
    """The file beside this module."""
    try:
        return msgspec.toml.decode(PATH.read_bytes(), type=_File)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"{PATH.name}: {error}") from error


def reason_of(number: Number) -> str:
    """Why it is missed, or that nobody knows."""
    return next((reason.text for reason in load().reason if reason.fits(number)), UNEXPLAINED)


@dataclass(frozen=True, kw_only=True)
class NoOverlap:
    """The paper's all-reduce of a model on n machines beside the bound, as shares of linear scaling."""

    model: str
    gpus: int
    n: int
    published: float
    bound: float

    @property
    def below(self) -> bool:
        return self.published < self.bound


def ring_bytes_per_s() -> float:
    """On the NIC, of the paper's all-reduce without computation."""
    data = paper.fig12()
    goodput = data.allreduce[0] * 1e9 / 8
    return theory.ring_seconds(goodput, data.n, 1.0)


@cache
def no_overlap() -> tuple[NoOverlap, ...]:
    """Of every model on more than one machine."""
    data = paper.fig15_16()
    rate = ring_bytes_per_s()
    found = []
    for model, training in data.model.items():
        tensors = catalogue.of_case(model, 0, 1.0, 1.0)
        nbytes, _ = catalogue.model_size(model, 1.0, 1.0)
        alone = catalogue.computation_seconds(tensors)
        one_machine = alone * training.linear[0] / training.allreduce[0]
        for gpus, n, linear, measured in zip(
            data.gpus, data.machines, training.linear, training.allreduce, strict=True
        ):
            if n > 1:
                seconds = one_machine + theory.ring_seconds(nbytes, n, rate)
                share = measured / linear
                found.append(NoOverlap(model=model, gpus=gpus, n=n, published=share, bound=alone / seconds))
    return tuple(found)


def below_no_overlap(number: Number) -> bool:
    wanted = number.wanted
    return wanted.contender == "horovod" and any(
        one.below for one in no_overlap() if (one.model, one.n) == (wanted.model, wanted.n)
    )
