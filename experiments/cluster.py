"""Experiments on a cluster of hosts: which of their cases it can run, and what its records may be taken for.

The files of `experiments/cases` ask for an emulated cluster; on real hosts the same cases are fitted to what there is:

    n, k    what is more than there are hosts becomes as many as there are: with 2 + 2, Figure 12 is n = 2, k = 0, 1, 2
    nic     the slowest GPU machine's, or the cap.  Where NICs differ, a case names those of its machines, and equal-NIC
            formulas do not hold for it: `optimum_seconds` is the linear programme's
    scale   divided by how much faster the NICs are than the emulated ones, down to 1: a replay takes as long as in the
            lab until its tensors are the model's own, and computation keeps its proportion (`workloads.dilation`)

`Ground` is what decides the cases; its text stands in each of them, so that records of different clusters never meet,
and whoever reads records can tell from it which cases are current.
Nothing here runs or measures.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import msgspec

from baselines import contenders
from baselines.launch import ring_nbytes
from byteps import assign, theory
from byteps.cluster import Cluster, Machine
from byteps.hosts import Host, Site
from byteps.units import format_rate
from experiments import agenda, spec
from experiments.record import Case, Record, case_hash

FILE = "{}.cluster.jsonl"  # in results/raw, of the experiment's name
BEYOND_KNEE = "beyond knee"  # a fact of records: how, in a few words
CUDA = {"byteps": {"device": "cuda"}, "gloo-ring": {"backend": "nccl"}, "ddp": {"backend": "nccl"}}
"""Settings of the contenders that take tensors on a GPU, by contender."""
_TEXT = re.compile(r"(measured|emulated): gpu ([^;]*); cpu ([^;]*?)(; cuda)?")


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What of a cluster decides the cases that it can run."""

    provenance: Literal["measured", "emulated"]
    gpu_rates: tuple[float, ...]  # bytes/s each way, of each GPU machine, capped
    cpu_rates: tuple[float, ...]
    cuda: bool = False  # every GPU machine has a GPU that torch can use

    def __str__(self) -> str:
        """As in `Case.site`: "measured: gpu 4x25000Mbit; cpu 1x25000Mbit, 1x10000Mbit"."""
        kinds = (_short(self.gpu_rates), _short(self.cpu_rates))
        return f"{self.provenance}: gpu {kinds[0]}; cpu {kinds[1]}" + ("; cuda" if self.cuda else "")

    @property
    def rates(self) -> dict[str, float]:
        """By the names that cases and records use: gpu0, gpu1, ..., cpu0, ..."""
        gpus = {f"gpu{i}": rate for i, rate in enumerate(self.gpu_rates)}
        return gpus | {f"cpu{i}": rate for i, rate in enumerate(self.cpu_rates)}

    @property
    def nic_bytes_per_s(self) -> float:
        return min(self.gpu_rates)


def _short(rates: Sequence[float]) -> str:
    return ", ".join(f"{len(list(same))}x{rate * 8e-6:.12g}Mbit" for rate, same in groupby(rates)) or "none"


def ground_of(site: Site, *, cuda: bool = False) -> Ground:
    """RunError if there is nothing to synchronise on it."""

    def rates(hosts: Iterable[Host]) -> tuple[float, ...]:
        return tuple(min(host.nic_bytes_per_s, site.cap_bytes_per_s or host.nic_bytes_per_s) for host in hosts)

    if len(site.gpu_hosts) < 2:
        raise agenda.RunError(
            f"the cluster has {len(site.gpu_hosts)} machine of role gpu; there is nothing to synchronise below 2"
        )
    return Ground(
        provenance=site.provenance, gpu_rates=rates(site.gpu_hosts), cpu_rates=rates(site.cpu_hosts), cuda=cuda
    )


def parse_ground(text: str) -> Ground:
    """The inverse of its text; ValueError for another one."""
    match = _TEXT.fullmatch(text)
    if not match:
        raise ValueError(f"site is {text!r}; it looks like 'measured: gpu 4x25000Mbit; cpu 2x25000Mbit'")
    return Ground(
        provenance="measured" if match[1] == "measured" else "emulated",
        gpu_rates=_long(match[2]),
        cpu_rates=_long(match[3]),
        cuda=bool(match[4]),
    )


def _long(text: str) -> tuple[float, ...]:
    if text == "none":
        return ()
    pairs = [part.removesuffix("Mbit").split("x") for part in text.split(", ")]
    return tuple(rate for count, megabits in pairs for rate in [float(megabits) * 1e6 / 8] * int(count))


def why_not(experiment: spec.Experiment) -> str:
    """Why an experiment says nothing about a cluster of hosts, or ""."""
    if experiment.provenance != "emulated":
        return f"{experiment.name} needs no cluster ({experiment.provenance})"
    several = any(len(size.nic_rates) > 1 for size in experiment.tier.values())
    if several or any(choice.nic for choice in experiment.contender):
        return f"{experiment.name} compares NIC rates, and a host's is what it is"
    if any(set(choice.settings.get("network", [])) - {"star"} for choice in experiment.contender):
        return f"{experiment.name} compares networks, and the hosts' is what it is"
    if any({"congestion", "queue"} & set(choice.settings) for choice in experiment.contender):
        return f"{experiment.name} compares congestion controls and queues, and the hosts' are what they are"
    return ""


def experiments_of(tier: spec.Tier) -> list[str]:
    """The experiments that a tier runs on a cluster."""
    return [name for name in agenda.of_tier(tier) if not why_not(agenda.load(name))]


def cases_of(experiment: spec.Experiment, tier: spec.Tier, ground: Ground) -> tuple[list[Case], list[str]]:
    """The cases of a tier that fit, in the order in which they run, and a line for what did not fit."""
    asked = agenda.cases_of(_at_rate(experiment, ground.nic_bytes_per_s), tier)
    fitted: dict[str, Case] = {}
    for case in asked:
        one = fit(case, ground)
        fitted.setdefault(case_hash(one), one)
    return list(fitted.values()), _left_out(asked, ground)


def current_hashes(experiment: spec.Experiment, site: str) -> set[str]:
    """The hashes of the cases that the experiment asks of this cluster now, in any tier."""
    ground = parse_ground(site)
    return {case_hash(case) for tier in experiment.tier for case in cases_of(experiment, tier, ground)[0]}


def _at_rate(experiment: spec.Experiment, rate: float) -> spec.Experiment:
    """The experiment on NICs of this rate."""
    tiers = {
        name: msgspec.structs.replace(
            size,
            nic=f"{rate * 8:.0f}bit",
            scale=[max(1.0, scale * size.nic_rates[0] / rate) for scale in size.scales],
        )
        for name, size in experiment.tier.items()
    }
    return msgspec.structs.replace(experiment, tier=tiers)


def fit(case: Case, ground: Ground) -> Case:
    """The case with the machines that there are."""
    n = min(case.n, len(ground.gpu_rates))
    k = min(case.k, n, len(ground.cpu_rates)) if n > 1 else 0
    names = [f"gpu{i}" for i in range(n)] + [f"cpu{i}" for i in range(k)]
    nics = {name: ground.rates[name] for name in names}
    settings = case.settings | (CUDA.get(case.contender, {}) if ground.cuda else {})
    return msgspec.structs.replace(
        case,
        n=n,
        k=k,
        settings=settings,
        site=str(ground),
        nic_bytes_per_s=ground.nic_bytes_per_s,
        nics=nics if set(nics.values()) != {ground.nic_bytes_per_s} else {},
    )


def _left_out(asked: Sequence[Case], ground: Ground) -> list[str]:
    said = []
    for name, what, wanted, there in (
        ("n", "GPU machines", {case.n for case in asked}, len(ground.gpu_rates)),
        ("k", "CPU machines", {case.k for case in asked}, len(ground.cpu_rates)),
    ):
        if more := sorted(number for number in wanted if number > there):
            said.append(f"left out: {name} = {', '.join(map(str, more))}; the cluster has {there} {what}")
    return said


def without(cases: Iterable[Case], lost: Iterable[str]) -> list[Case]:
    """The cases that need none of these machines (gpu0, cpu1, ...)."""
    gone = set(lost)
    return [
        case
        for case in cases
        if gone.isdisjoint([f"gpu{i}" for i in range(case.n)] + [f"cpu{i}" for i in range(case.k)])
    ]


def not_run(contender: str) -> str:
    """Why a contender cannot run on hosts, or ""."""
    return contenders.get(contender).only_emulated or contenders.get(contender).missing()


def cluster_of(case: Case) -> Cluster:
    """The machines of a case as `byteps.assign` wants them; every NIC has a rate of its own."""
    rates = [case.nics.get(f"gpu{i}", case.nic_bytes_per_s) for i in range(case.n)]
    more = [case.nics.get(f"cpu{i}", case.nic_bytes_per_s) for i in range(case.k)]
    gpu = (Machine(name=f"gpu{i}", role="gpu", nic_bytes_per_s=rate) for i, rate in enumerate(rates))
    cpu = (Machine(name=f"cpu{i}", role="cpu", nic_bytes_per_s=rate) for i, rate in enumerate(more))
    return Cluster(machines=(*gpu, *cpu))


def optimum_seconds(case: Case) -> float:
    """t_opt on the case's NICs: closed form where they are equal, else the linear programme."""
    if not case.nics:
        return theory.byteps_seconds(case.nbytes, case.n, case.k, case.nic_bytes_per_s * theory.TCP_PAYLOAD_FRACTION)
    cluster = cluster_of(case)
    carried = theory.traffic(case.nbytes, assign.cluster_shares(cluster))
    rates = [machine.nic_bytes_per_s * theory.TCP_PAYLOAD_FRACTION for machine in cluster.machines]
    return max(nbytes / rate for nbytes, rate in zip(carried, rates, strict=True))


def optimum_goodput(site: str, n: int, k: int) -> float:
    """M / t_opt over what the slowest GPU machine's NIC carries, for a line in a figure of goodput.

    `site` "" is the emulated cluster, whose NICs are equal.  Not a number for more machines than there are, where they
    differ.
    """
    ground = parse_ground(site) if site else None
    if ground is None or len(set(ground.rates.values())) == 1:
        return theory.goodput(n, k, 1.0)
    if n > len(ground.gpu_rates) or k > len(ground.cpu_rates):
        return float("nan")
    case = Case(
        experiment="",
        tier="",
        contender="byteps",
        settings={},
        n=n,
        k=k,
        nic_bytes_per_s=ground.nic_bytes_per_s,
        nbytes=1 << 30,
        warmups=0,
        iterations=1,
        block=0,
    )
    case = fit(case, ground)
    return case.nbytes / optimum_seconds(case) / (case.nic_bytes_per_s * theory.TCP_PAYLOAD_FRACTION)


def ring_seconds(case: Case) -> float:
    """Ring all-reduce on the case's GPU machines: the slowest NIC decides."""
    slowest = min(case.nics.get(f"gpu{i}", case.nic_bytes_per_s) for i in range(case.n))
    return theory.ring_seconds(case.nbytes, case.n, slowest * theory.TCP_PAYLOAD_FRACTION)


def unequal_bound_seconds(case: Case) -> float:
    """How long the contender's algorithm takes on unequal NICs; not a number where no formula is known."""
    contender = contenders.CONTENDERS.get(case.contender)
    if case.contender == "byteps":
        return optimum_seconds(case)
    if contender is not None and contender.nic_nbytes is ring_nbytes:
        return ring_seconds(case)
    return float("nan")


_NEVER = ("BytePS with tensors on a GPU", "torch.distributed with NCCL", "Horovod with NCCL")
"""Ways through the code that need hardware which the suite's own tests do not have."""


def _way(one: Record) -> str:
    """Which of `_NEVER` a record went, or ""."""
    if one.case.contender == "byteps" and one.case.settings.get("device") == "cuda":
        return _NEVER[0]
    if one.case.settings.get("backend") == "nccl":
        return _NEVER[1]
    return _NEVER[2] if one.case.contender == "horovod" and one.facts.get("operations") == "nccl" else ""


def beyond_knee(rate: float, cores: int, knee_per_core: float) -> str:
    """How a machine's NIC is faster than the software was seen to be, for `BEYOND_KNEE`, or "".

    All in bytes/s; `knee_per_core` 0: no knee was measured, so nothing is known.
    """
    if not knee_per_core or rate / cores <= knee_per_core:
        return ""
    return (
        f"{format_rate(rate)} on {cores} cores are {format_rate(rate / cores)} per core; "
        f"the software was seen to keep up with {format_rate(knee_per_core)} per core"
    )


def remarks(records: Iterable[Record]) -> list[str]:
    """What a reader of a cluster's records has to know before any number; one sentence each."""
    verified = [one for one in records if one.verified and one.provenance in ("emulated", "measured")]
    said = []
    beyond = sorted({(one.case.site, one.facts[BEYOND_KNEE]) for one in verified if BEYOND_KNEE in one.facts})
    for site, how in beyond:
        said.append(
            f"NICs faster than the software ({site}): {how}. Its times say how fast the software is, not what the "
            "network allows, and no claim is judged by them. To compare algorithms there, cap every NIC: "
            '[network] cap = "..." in the cluster file shapes them with tc for all contenders alike'
        )
    if any(one.case.nics for one in verified):
        said.append(
            "NICs of unequal rates: t_opt is the linear programme's, a ring's bound is that of the slowest NIC, and "
            "formulas for equal NICs are not applied"
        )
    ran = {_way(one) for one in verified}
    said += [
        f"Never run on the hardware that it is for: {way}; no verified record exists"
        for way in _NEVER
        if way not in ran
    ]
    return said
