"""An experiment is a TOML file; this module turns it into the list of cases to run, in order.

    name = "fig12"
    provenance = "emulated"          # where its points come from when it runs
    warmups = 1
    iterations = 3
    [[contender]]
    name = "byteps"
    settings = { partition = ["auto", "4096000"] }     # every combination of the lists is a line of its own
    knobs = ["default", "tuned"]     # as it comes, or with the best knobs that `python -m experiments tune` found
    ks = [0, "n"]                    # instead of the tier's; also `nbytes`, `workloads`, `nic`
    tiers = ["reproduce"]            # in these only
    [tier.reproduce]
    blocks = 2
    n = [2, 8]                       # GPU machines; one number, or several
    ks = [0, 1, 2, 4, 8]             # CPU machines; "n": as many; what is more than n is left out
    nbytes = ["64MiB"]               # one tensor of each of these sizes, or else
    workloads = ["vgg16"]            # models to replay, each tensor divided by `scale`; or "tensors:100" with nbytes
    scale = 256                      # or several
    real_nic = "10Gbit"              # of the cluster that the replay stands for; left out: the paper's
    nic = "200Mbit"                  # left out where no NIC is involved; several: one emulated cluster for each

`one_launch = true`: one launch of a contender runs all sizes and workloads of a setting, one after the other; else each
is a launch of its own.

Blocks.  A block holds one launch of every contender and setting.  The order of contenders is rotated from block to
block, and so is the order of their values of k, so that no contender always meets the warm or the cold machine.  What
does not depend on k runs once per block, recorded as k = 0.
Pure: the caller reads the file and says which contenders depend on k.
"""

from collections.abc import Callable, Mapping
from itertools import groupby, product
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeVar

import msgspec

from byteps.units import parse_nbytes, parse_rate
from experiments.record import Case

Tier = Literal["smoke", "reproduce", "sweep", "paper"]
TIERS: tuple[Tier, ...] = ("smoke", "reproduce", "sweep", "paper")
Tuned = Mapping[str, Mapping[str, str]]
"""The best knobs found for a contender, or for a contender with a strategy: "horovod", "horovod scheduled"."""


class SpecError(ValueError):
    """An experiment file that cannot be used; the text names file and key."""


class ContenderChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A contender in this experiment; every combination of `settings` is launched."""

    name: str
    settings: dict[str, list[str]] = {}
    ks: list[int | Literal["n"]] = []  # empty: those of the tier, as for the next ones
    nbytes: list[str] = []
    workloads: list[str] = []
    nic: str = ""
    tiers: list[Tier] = []
    knobs: list[Literal["default", "tuned"]] = msgspec.field(default_factory=lambda: ["default"])

    def nic_rates(self, size: "TierSize") -> list[float]:
        """Bytes per second."""
        return [parse_rate(self.nic)] if self.nic else size.nic_rates

    def combinations(self, tuned: Tuned) -> list[dict[str, str]]:
        """Every combination of the settings, with each choice of knobs."""
        keys = sorted(self.settings)
        plain = [dict(zip(keys, values, strict=True)) for values in product(*(self.settings[key] for key in keys))]
        return [combination | self._knobs(knobs, combination, tuned) for knobs in self.knobs for combination in plain]

    def _knobs(self, knobs: str, settings: Mapping[str, str], tuned: Tuned) -> dict[str, str]:
        if knobs == "default":
            return {}
        name = tuning_name(self.name, settings)
        if name not in tuned:
            raise SpecError(f"no tuned knobs for {name!r}: find them with `python -m experiments tune`")
        return {**tuned[name], "knobs": knobs}


def tuning_name(contender: str, settings: Mapping[str, str]) -> str:
    """What tuning calls a contender that is used with a strategy."""
    strategy = settings.get("strategy", "plain")
    return contender if strategy == "plain" else f"{contender} {strategy}"


class TierSize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the experiment one tier runs."""

    blocks: int  # launches of every contender and setting
    n: int | list[int]
    ks: list[int | Literal["n"]]
    nbytes: list[str] = []
    workloads: list[str] = msgspec.field(default_factory=lambda: ["tensor"])
    scale: float | list[float] = 1.0
    nic: str | list[str] = ""
    real_nic: str = ""  # of the cluster that a replay stands for; left out: the paper's

    @property
    def ns(self) -> list[int]:
        return [self.n] if isinstance(self.n, int) else self.n

    @property
    def scales(self) -> list[float]:
        return self.scale if isinstance(self.scale, list) else [self.scale]

    @property
    def nic_rates(self) -> list[float]:
        """Bytes per second; 0 where no NIC is involved."""
        texts = [self.nic] if isinstance(self.nic, str) else self.nic
        return [parse_rate(text) if text else 0.0 for text in texts]


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One experiment file."""

    name: str
    title: str
    provenance: Literal["emulated", "measured", "simulated"]
    warmups: int
    iterations: int
    contender: list[ContenderChoice]
    one_launch: bool = False
    tier: dict[Tier, TierSize]

    def __post_init__(self) -> None:
        if not self.contender:
            raise ValueError("no [[contender]]: name at least one")
        for name, size in self.tier.items():
            if size.blocks < 1 or not size.ns or min(size.ns) < 1 or not size.ks or not size.workloads:
                raise ValueError(f"tier.{name}: blocks, n, ks and workloads must each hold at least one")
            numbers = [k for k in size.ks if k != "n"]
            if numbers and (min(numbers) < 0 or max(numbers) > max(size.ns)):
                raise ValueError(f"tier.{name}.ks = {size.ks}: k must lie between 0 and n = {max(size.ns)}, or be 'n'")
            if bool(size.nbytes) == any(is_model(workload) for workload in size.workloads):
                raise ValueError(
                    f"tier.{name}: give nbytes for tensors, and none for models, whose size is their own; "
                    f"nbytes = {size.nbytes}, workloads = {size.workloads}"
                )
            if size.nbytes:
                parse_nbytes_list(size.nbytes, key=f"tier.{name}.nbytes")
            if self.provenance != "measured" and (not size.nic_rates or min(size.nic_rates) <= 0):
                raise ValueError(
                    f'tier.{name}.nic is missing: an {self.provenance} cluster needs a NIC rate, e.g. "200Mbit"'
                )

    def size(self, tier: Tier) -> TierSize:
        if tier not in self.tier:
            raise SpecError(f"experiment {self.name} has no tier {tier!r}; it has {', '.join(sorted(self.tier))}")
        return self.tier[tier]


def is_model(workload: str) -> bool:
    """Whether the workload is a model to replay, not just tensors."""
    return workload.partition(":")[0] not in ("tensor", "tensors")


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


ModelSize = Callable[[str, float, float, float], tuple[int, float]]
"""(workload, scale, NIC rate here, NIC rate there or 0 for the paper's) -> bytes and time dilation of the model."""


def expand_block(
    experiment: Experiment, tier: Tier, block: int, *, uses_k: Mapping[str, bool], model_size: ModelSize, tuned: Tuned
) -> list[Case]:
    """The cases of one block, in the order in which they run."""
    size = experiment.size(tier)
    cases: list[Case] = []
    chosen = [choice for choice in experiment.contender if not choice.tiers or tier in choice.tiers]
    offered = [(rate, choice) for choice in _rotated(chosen, block) for rate in choice.nic_rates(size)]
    for rate, choice in sorted(offered, key=lambda pair: pair[0]):
        if choice.name not in uses_k:
            raise SpecError(
                f"experiment {experiment.name}: contender {choice.name!r} is not registered; "
                f"registered are {', '.join(sorted(uses_k))}"
            )
        for n, settings in product(size.ns, choice.combinations(tuned)):
            wanted = [n if k == "n" else k for k in choice.ks or size.ks]
            ks = list(dict.fromkeys(k for k in wanted if k <= n)) if uses_k[choice.name] and n > 1 else [0]
            for k in _rotated(ks, block):
                for workload, scale, nbytes, dilation in _loads(choice, size, rate, model_size):
                    cases.append(
                        Case(
                            experiment=experiment.name,
                            tier=tier,
                            contender=choice.name,
                            settings=settings,
                            n=n,
                            k=k,
                            nic_bytes_per_s=rate,
                            nbytes=nbytes,
                            workload=workload,
                            scale=scale,
                            dilation=dilation,
                            warmups=experiment.warmups,
                            iterations=experiment.iterations,
                            block=block,
                            position=len(cases),
                        )
                    )
    return cases


def _loads(
    choice: ContenderChoice, size: TierSize, rate: float, model_size: ModelSize
) -> list[tuple[str, float, int, float]]:
    """What one setting of a contender synchronises: workload, scale, bytes, dilation."""
    workloads = choice.workloads or size.workloads
    if size.nbytes:
        sizes = parse_nbytes_list(choice.nbytes or size.nbytes, key="nbytes")
        return [(workload, 1.0, nbytes, 1.0) for workload, nbytes in product(workloads, sizes)]
    real = parse_rate(size.real_nic) if size.real_nic else 0.0
    return [
        (workload, scale, *model_size(workload, scale, rate, real))
        for scale, workload in product(size.scales, workloads)
    ]


def _no_models(workload: str, _scale: float, _rate: float, _real: float) -> tuple[int, float]:
    raise SpecError(f"workload {workload!r} is a model, and no models are at hand")


def expand(
    experiment: Experiment,
    tier: Tier,
    *,
    uses_k: Mapping[str, bool],
    model_size: ModelSize = _no_models,
    tuned: Tuned = MappingProxyType({}),
) -> list[Case]:
    """All cases of a tier, block after block; one NIC rate after the other."""
    cases = [
        case
        for block in range(experiment.size(tier).blocks)
        for case in expand_block(experiment, tier, block, uses_k=uses_k, model_size=model_size, tuned=tuned)
    ]
    return sorted(cases, key=lambda case: case.nic_bytes_per_s)


def launches(experiment: Experiment, cases: list[Case]) -> list[list[Case]]:
    """Which cases share a launch."""
    if not experiment.one_launch:
        return [[case] for case in cases]

    def shared(case: Case) -> tuple[object, ...]:
        settings = tuple(sorted(case.settings.items()))
        return case.block, case.nic_bytes_per_s, case.scale, case.contender, settings, case.n, case.k

    return [list(group) for _, group in groupby(cases, key=shared)]
