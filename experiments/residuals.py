"""What is known of where the simulation misses the paper: reasons, and the bound that says when no fit could help.

*No overlap*: an iteration of n machines computes, then sums, then computes again; nothing of one hides behind another.
Computation takes what the paper's own system takes on one machine of 8 GPUs, sums take the bound of its algorithm over
the share of it that it reaches without computation, in Figure 12:

    all-reduce     2(n-1)M / (nB)    36 of 51.4 Gbit/s
    BytePS, k = 0  2(n-1)M / (nB)    49 of 51.4
    BytePS, k = n  M / B             86 of 90

With any overlap it is faster.  Where the paper's is slower still, something costs time that is neither the NIC nor
missing overlap: contention inside the machine (Figure 12's have one GPU), or what no model here knows.
Pure: no I/O except reading residuals.toml and the paper's numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import msgspec

from byteps import theory
from experiments import catalogue, paper
from experiments.errors import Number, Wanted, published

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
    """One of the paper's numbers beside the bound, as shares of linear scaling."""

    number: Number
    bound: float

    @property
    def published(self) -> float:
        return self.number.value / self.number.linear

    @property
    def below(self) -> bool:
        return self.published < self.bound


@cache
def no_overlap() -> Mapping[Number, NoOverlap]:
    """Of all-reduce and BytePS, training every model on more than one machine."""
    trained = [one for one in published() if one.wanted.experiment == "scale" and one.system != "Parameter server"]
    alone = {(one.line, one.wanted.model): one.linear / one.value for one in trained if one.wanted.n == 1}
    found = {}
    for one in trained:
        if one.wanted.n > 1:
            computation = _computation_seconds(one.wanted.model)
            seconds = computation * alone[one.line, one.wanted.model] + sum_seconds(one.wanted)
            found[one] = NoOverlap(number=one, bound=computation / seconds)
    return found


def _computation_seconds(model: str) -> float:
    return catalogue.computation_seconds(catalogue.of_case(model, 0, 1.0, 1.0))


def sum_seconds(wanted: Wanted) -> float:
    """As the paper's Figure 12 has it: the bound of the algorithm over the share of it that was reached there."""
    data = paper.fig12()
    ks = {"byteps": {0: data.byteps[0], data.n: data.byteps[-1]}, "horovod": {0: data.allreduce[0]}}
    goodput = ks[wanted.contender][data.n if wanted.k else 0]
    bound = theory.goodput(data.n, data.n if wanted.k else 0, data.nic_goodput_gbps)
    nbytes, _ = catalogue.model_size(wanted.model, 1.0, 1.0)
    rate = data.nic_goodput_gbps * 1e9 / 8 * goodput / bound
    return theory.byteps_seconds(nbytes, wanted.n, wanted.k, rate)


def below_no_overlap(number: Number) -> bool:
    return number in no_overlap() and no_overlap()[number].below
