"""An experiment is a TOML file; this module turns it into the list of cases to run, in order.

    name = "fig12"
    provenance = "emulated"          # where its points come from when it runs
    warmups = 1
    iterations = 3
    [[contender]]
    name = "byteps"
    settings = { partition = ["auto", "4096000"] }     # every combination of the lists is a line of its own
    [tier.reproduce]
    blocks = 2
    n = 8
    ks = [0, 1, 2, 4, 8]
    nbytes = ["64MiB"]
    nic = "200Mbit"                  # left out where no NIC is involved

Blocks.  A block holds one launch of every contender and setting.  The order of contenders is rotated from block to
block, and so is the order of their values of k, so that no contender always meets the warm or the cold machine.  What
does not depend on k runs once per block, recorded as k = 0.
Pure: the caller reads the file and says which contenders depend on k.
"""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from byteps.units import parse_nbytes, parse_rate
from experiments.record import Case

Tier = Literal["smoke", "reproduce", "paper"]
TIERS: tuple[Tier, ...] = ("smoke", "reproduce", "paper")


class SpecError(ValueError):
    """An experiment file that cannot be used; the text names file and key."""


class ContenderChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A contender in this experiment; every combination of `settings` is launched."""

    name: str
    settings: dict[str, list[str]] = {}

    def combinations(self) -> list[dict[str, str]]:
        keys = sorted(self.settings)
        return [dict(zip(keys, values, strict=True)) for values in product(*(self.settings[key] for key in keys))]


class TierSize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the experiment one tier runs."""

    blocks: int  # launches of every contender and setting
    n: int
    ks: list[int]
    nbytes: list[str]
    nic: str = ""

    @property
    def nic_bytes_per_s(self) -> float:
        return parse_rate(self.nic) if self.nic else 0.0


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One experiment file."""

    name: str
    title: str
    provenance: Literal["emulated", "measured"]
    warmups: int
    iterations: int
    contender: list[ContenderChoice]
    tier: dict[Tier, TierSize]

    def __post_init__(self) -> None:
        if not self.contender:
            raise ValueError("no [[contender]]: name at least one")
        for name, size in self.tier.items():
            if size.blocks < 1 or size.n < 1 or not size.ks or not size.nbytes:
                raise ValueError(f"tier.{name}: blocks, n, ks and nbytes must each hold at least one")
            if min(size.ks) < 0 or max(size.ks) > size.n:
                raise ValueError(f"tier.{name}.ks = {size.ks}: k must lie between 0 and n = {size.n}")
            parse_nbytes_list(size.nbytes, key=f"tier.{name}.nbytes")
            if self.provenance == "emulated" and size.nic_bytes_per_s <= 0:
                raise ValueError(f'tier.{name}.nic is missing: an emulated cluster needs a NIC rate, e.g. "200Mbit"')

    def size(self, tier: Tier) -> TierSize:
        if tier not in self.tier:
            raise SpecError(f"experiment {self.name} has no tier {tier!r}; it has {', '.join(sorted(self.tier))}")
        return self.tier[tier]


def parse_nbytes_list(texts: list[str], *, key: str) -> list[int]:
    sizes = [parse_nbytes(text) for text in texts]
    if min(sizes) < 1:
        raise ValueError(f"{key} = {texts}: sizes must be at least one byte")
    return sizes


def parse(text: str, *, source: str) -> Experiment:
    """One experiment from TOML text."""
    try:
        return msgspec.toml.decode(text, type=Experiment)
    except (msgspec.MsgspecError, ValueError) as error:
        raise SpecError(f"{source}: {error}") from error


def load(path: Path) -> Experiment:
    return parse(path.read_text(encoding="utf-8"), source=str(path))


T = TypeVar("T")


def _rotated(items: list[T], by: int) -> list[T]:
    by %= max(len(items), 1)
    return items[by:] + items[:by]


def expand_block(experiment: Experiment, tier: Tier, block: int, *, uses_k: Mapping[str, bool]) -> list[Case]:
    """The launches of one block, in the order in which they run."""
    size = experiment.size(tier)
    cases: list[Case] = []
    for contender in _rotated(experiment.contender, block):
        if contender.name not in uses_k:
            raise SpecError(
                f"experiment {experiment.name}: contender {contender.name!r} is not registered; "
                f"registered are {', '.join(sorted(uses_k))}"
            )
        ks = _rotated(size.ks, block) if uses_k[contender.name] else [0]
        sizes = parse_nbytes_list(size.nbytes, key="nbytes")
        for nbytes, settings, k in product(sizes, contender.combinations(), ks):
            cases.append(
                Case(
                    experiment=experiment.name,
                    tier=tier,
                    contender=contender.name,
                    settings=settings,
                    n=size.n,
                    k=k,
                    nic_bytes_per_s=size.nic_bytes_per_s,
                    nbytes=nbytes,
                    warmups=experiment.warmups,
                    iterations=experiment.iterations,
                    block=block,
                    position=len(cases),
                )
            )
    return cases


def expand(experiment: Experiment, tier: Tier, *, uses_k: Mapping[str, bool]) -> list[Case]:
    """All launches of a tier, block after block."""
    blocks = range(experiment.size(tier).blocks)
    return [case for block in blocks for case in expand_block(experiment, tier, block, uses_k=uses_k)]
