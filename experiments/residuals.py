"""What is known of where the simulation misses the paper: reasons, and the bound that says when no fit could help.

*No overlap*: an iteration of n machines computes, then sums, then computes again; nothing of one hides behind another.
Computation takes what the paper's own system takes on one machine of 8 GPUs, sums take the bound of its algorithm over
the share of it that it reaches without computation, in Figure 12:

    all-reduce     2(N-1)M / (NB)    36 of 51.4 Gbit/s, a ring over all N GPUs
    BytePS, k = 0  2(n-1)M / (nB)    49 of 51.4, between n machines
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
READING = 0.01  # relative: what is nearer than this to the bound is not below it


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
    """One of the paper's numbers beside the bound."""

    number: Number
    computation_seconds: float  # on a single GPU
    alone_seconds: float  # of an iteration on one machine
    sum_seconds: float  # of all gradients, without computation

    @property
    def published(self) -> float:
        """Share of linear scaling."""
        return self.number.value / self.number.linear

    @property
    def bound(self) -> float:
        """The same without overlap."""
        return self.computation_seconds / (self.alone_seconds + self.sum_seconds)

    @property
    def below(self) -> bool:
        return self.published < self.bound * (1 - READING)

    @property
    def hidden(self) -> float:
        """Share of the sums that the paper's iteration hides behind computation; below 0 where it is slower."""
        return 1 - (self.computation_seconds / self.published - self.alone_seconds) / self.sum_seconds


@cache
def no_overlap() -> Mapping[Number, NoOverlap]:
    """Of all-reduce and BytePS, training every model on more than one machine."""
    trained = [one for one in published() if one.wanted.experiment == "scale" and one.system != "Parameter server"]
    alone = {(one.line, one.wanted.model): one.linear / one.value for one in trained if one.wanted.n == 1}
    found = {}
    for one in trained:
        if one.wanted.n > 1:
            computation = catalogue.computation_seconds(catalogue.of_case(one.wanted.model, 0, 1.0, 1.0))
            found[one] = NoOverlap(
                number=one,
                computation_seconds=computation,
                alone_seconds=computation * alone[one.line, one.wanted.model],
                sum_seconds=sum_seconds(one.wanted),
            )
    return found


def sum_seconds(wanted: Wanted) -> float:
    """As the paper's Figure 12 has it: the bound of the algorithm over the share of it that was reached there."""
    data = paper.fig12()
    ks = {"byteps": {0: data.byteps[0], data.n: data.byteps[-1]}, "horovod": {0: data.allreduce[0]}}
    goodput = ks[wanted.contender][data.n if wanted.k else 0]
    bound = theory.goodput(data.n, data.n if wanted.k else 0, data.nic_goodput_gbps)
    nbytes, _ = catalogue.model_size(wanted.model, 1.0, 1.0)
    rate = data.nic_goodput_gbps * 1e9 / 8 * goodput / bound
    if wanted.contender == "horovod":
        return theory.ring_seconds(nbytes, wanted.n * paper.fig15_16().gpus_per_machine, rate)
    return theory.byteps_seconds(nbytes, wanted.n, wanted.k, rate)


def below_no_overlap(number: Number) -> bool:
    return number in no_overlap() and no_overlap()[number].below
