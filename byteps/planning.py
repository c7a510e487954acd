"""What to expect of a cluster: shares, the way to sum inside machines, the time of BytePS and of what else could run.

Everything is computed from the description: shares by `assign` (by `programme` where uplinks of racks are
oversubscribed), the way inside each machine by `planner`, times by `predict`, which simulates one synchronisation of M
bytes in partitions.  NICs carry payload at rate * 1448/1514 (TCP over Ethernet).  Alternatives get the same machines.
Pure but for descriptions of machines that are files, which `machine_of` reads.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from byteps import predict, programme
from byteps.assign import Shares, cluster_shares
from byteps.cluster import Cluster, Machine
from byteps.machine import Topology
from byteps.partition import MIN_AUTO_PARTITION_BYTES, auto_partition_bytes
from byteps.plan import LocalStrategy, Plan, PlannedMachine
from byteps.planner import Candidate, choose
from byteps.predict import BytePSCosts, Job, Kind, bare, transfer
from byteps.strategy import hierarchical_loads, ring_loads
from byteps.theory import TCP_PAYLOAD_FRACTION
from byteps.topology import load_topology
from byteps.units import parse_nbytes

MODELS = {  # gradient bytes of one iteration; fp32 but for BERT-large, which trains in fp16
    "resnet50": 102_228_128,
    "vgg16": 553_430_176,
    "ugatit": 2_683_044_352,
    "transformer-big": 843_218_944,
    "bert-large": 672_452_216,
    "gpt2": 497_759_232,
}
"""By name, as people and files spell it with hyphens or underscores."""
_PARTITIONS_OF_A_SERVICE = 8
_SHIFTS = 8  # steps in which GPU machines' shares are tried smaller
_WORTH_SHIFTING = 0.01
_LEAST_SHARE = 1e-9
_MOST_PARTS = 512  # of a simulated synchronisation: more change less than half a percent


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """One way to synchronise on this cluster."""

    name: str
    seconds: float
    bottleneck: str  # the resource with the most to carry for its rate


@dataclass(frozen=True, kw_only=True)
class Group:
    """Machines that are alike."""

    machines: tuple[Machine, ...]
    share: float  # of each
    inside: Candidate | None  # how each sums inside; None where nothing is known of it

    @property
    def title(self) -> str:
        names = [machine.name for machine in self.machines]
        return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]} ({len(names)})"


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """All that `byteps plan` has to say."""

    nbytes: int
    cluster: Cluster
    shares: Shares
    groups: tuple[Group, ...]
    partition_bytes: int
    byteps: Alternative
    alternatives: tuple[Alternative, ...]
    one_more: Alternative  # BytePS with one more CPU machine like the last, or like the GPU machines without GPUs
    warnings: Mapping[str, tuple[str, ...]]  # by description of a machine: what is not known of it

    @property
    def price(self) -> float:
        """Per hour, of all machines; 0 if a price is missing."""
        prices = [machine.price for machine in self.cluster.machines]
        return sum(prices) if all(prices) else 0.0

    @property
    def added_price(self) -> float:
        """Per hour, of one more CPU machine; 0 if it is not known."""
        return self.cluster.cpu_machines[-1].price if self.cluster.cpu_machines else 0.0

    def plan(self, source: str) -> Plan:
        """For the runtime to load."""
        planned = {}
        for group in self.groups:
            local = group.inside.plan if group.inside else None
            for machine in group.machines:
                planned[machine.name] = PlannedMachine(
                    name=machine.name,
                    share=group.share,
                    nics_bytes_per_s=machine.nics,
                    local=None
                    if local is None
                    else LocalStrategy(name=local.name, roots=local.roots, reason=local.reason),
                )
        return Plan(
            cluster=source,
            n=self.cluster.n,
            k=self.cluster.k,
            partition_bytes=self.partition_bytes,
            predicted_seconds=self.byteps.seconds,
            gpu_machines=tuple(planned[machine.name] for machine in self.cluster.gpu_machines),
            cpu_machines=tuple(planned[machine.name] for machine in self.cluster.cpu_machines),
        )


def gradient_nbytes(text: str) -> int:
    """Of a model by its name, or a size as written."""
    name = text.lower().replace("_", "-")
    if name in MODELS:
        return MODELS[name]
    try:
        return parse_nbytes(text)
    except ValueError:
        raise ValueError(f"{text!r} is no model and no size: use {', '.join(MODELS)}, or such as 500MB") from None


def forecast(cluster: Cluster, nbytes: int, machine_of: Callable[[str], Topology] = load_topology) -> Forecast:
    """Plan for `nbytes` of gradients per GPU; `machine_of` reads descriptions of machines by preset or path."""
    if nbytes < 1:
        raise ValueError(f"nbytes is {nbytes}; a model has at least 1 byte of gradients")
    if cluster.n < 2:
        raise ValueError("one GPU machine has nobody to exchange gradients with; a plan needs 2 or more")
    inside = _Insides(cache(machine_of))
    shares = _shares(cluster)
    inside.groups(cluster, shares)  # chooses ways to sum for these
    slowest = min(machine.nic_bytes_per_s for machine in cluster.machines)
    services = sum(share > 0 for share in shares.all)
    # Whole partitions meet the shares only if every service has several.
    partition_bytes = max(
        min(auto_partition_bytes(nbytes, slowest), nbytes // (_PARTITIONS_OF_A_SERVICE * services)),
        MIN_AUTO_PARTITION_BYTES,
    )
    job = transfer(nbytes, min(math.ceil(nbytes / partition_bytes), _MOST_PARTS))

    def shared(name: str, cluster: Cluster, shares: Shares) -> Alternative:
        """By services with these shares."""
        kinds = inside.kinds(inside.groups(cluster, shares), cluster.n)
        outcome = predict.byteps(job, kinds, BytePSCosts(partition_bytes=nbytes))
        found = Alternative(name=name, seconds=outcome.seconds, bottleneck=outcome.bottleneck)
        return _behind_uplinks(found, cluster, nbytes, shares)

    def fitted(cluster: Cluster, shares: Shares) -> Shares:
        """Less on GPU machines, where what they sum keeps links inside busy that the NIC does not know of."""
        if not cluster.k or not any(machine.machine for machine in cluster.gpu_machines):
            return shares
        tried = [_shifted(shares, step / _SHIFTS) for step in range(_SHIFTS + 1)]
        times = [shared("", cluster, one).seconds for one in tried]
        best = min(range(len(tried)), key=lambda index: (times[index], index))
        return tried[best] if times[best] < times[0] * (1 - _WORTH_SHIFTING) else shares

    shares = fitted(cluster, shares)
    n, k = cluster.n, cluster.k
    everywhere, nowhere = (1 / n,) * n, (0.0,) * n
    groups = inside.groups(cluster, shares)
    others = [inside.all_reduce(job, groups, cluster, nbytes, flat=flat) for flat in (True, False)]
    others.append(shared("parameter server on GPU machines", cluster, Shares(gpu=everywhere, cpu=(0.0,) * k)))
    if k:
        others.append(shared("parameter server on CPU machines", cluster, Shares(gpu=nowhere, cpu=(1 / k,) * k)))
        alone = cluster_shares(replace(cluster, machines=cluster.gpu_machines, oversubscription=1.0))
        others.append(shared("BytePS without CPU machines", cluster, Shares(gpu=alone.gpu, cpu=(0.0,) * k)))
    larger = replace(cluster, machines=(*cluster.machines, _another(cluster)))
    return Forecast(
        nbytes=nbytes,
        cluster=cluster,
        shares=shares,
        groups=tuple(inside.groups(cluster, shares)),
        partition_bytes=partition_bytes,
        byteps=shared("BytePS", cluster, shares),
        alternatives=tuple(one for one in others if one is not None),
        one_more=shared("BytePS with one more CPU machine", larger, fitted(larger, _shares(larger))),
        warnings={
            machine.machine: inside.topology(machine).warnings for machine in cluster.gpu_machines if machine.machine
        },
    )


def _shares(cluster: Cluster) -> Shares:
    """The fastest; where uplinks may be the limit, by the programme that knows them."""
    if cluster.oversubscription == 1:
        return cluster_shares(cluster)
    best = programme.flat(1.0, programme.Limits(cluster=cluster))
    own = [share if share > _LEAST_SHARE else 0.0 for share in best.flat]  # what the solver leaves of nothing
    own = [share / sum(own) for share in own]
    return Shares(gpu=tuple(own[: cluster.n]), cpu=tuple(own[cluster.n :]))


def _shifted(shares: Shares, part: float) -> Shares:
    """That part of what GPU machines sum goes to the CPU machines, in proportion to what they have."""
    moved, on_cpu = part * sum(shares.gpu), sum(shares.cpu)
    if not on_cpu:
        return shares
    return replace(
        shares,
        gpu=tuple(own * (1 - part) for own in shares.gpu),
        cpu=tuple(own * (1 + moved / on_cpu) for own in shares.cpu),
    )


def _another(cluster: Cluster) -> Machine:
    """One more CPU machine: like the last, or else a GPU machine's network without its inside.

    Oversubscribed racks stay as they are: it comes to the network's core.
    """
    like = (*cluster.gpu_machines, *cluster.cpu_machines)[-1]
    rack = like.rack if cluster.oversubscription == 1 else ""
    return Machine(name="one more", role="cpu", nic_bytes_per_s=like.nic_bytes_per_s, nics=like.nics, rack=rack)


def _behind_uplinks(found: Alternative, cluster: Cluster, nbytes: int, shares: Shares) -> Alternative:
    """The same, or what the busiest uplink takes, if that is longer."""
    if not cluster.uplinks:
        return found
    busy = programme.busy_seconds(nbytes / TCP_PAYLOAD_FRACTION, programme.Limits(cluster=cluster), shares.all)
    seconds, name = max((busy[name], name) for name in (f"uplink of {rack}" for rack in cluster.uplinks))
    return replace(found, seconds=seconds, bottleneck=name) if seconds > found.seconds else found


@dataclass(frozen=True)
class _Insides:
    """What is inside machines, and how they sum there: as is best for the first plan that asks, BytePS's."""

    read: Callable[[str], Topology]
    chosen: dict[tuple[str, tuple[float, ...]], Candidate] = field(default_factory=dict)

    def groups(self, cluster: Cluster, shares: Shares) -> list[Group]:
        """Machines that are alike and get the same share, in the order of the first of each."""
        alike: dict[object, list[tuple[Machine, float]]] = {}
        for machine, share in zip(cluster.gpu_machines + cluster.cpu_machines, shares.all, strict=True):
            look = (machine.role, machine.nics, machine.machine, machine.gpus, round(share, 9))
            alike.setdefault(look, []).append((machine, share))
        found = []
        for members in alike.values():
            machine, share = members[0]
            chosen = None
            if machine.role == "gpu" and machine.machine:
                chosen = self.chosen.get((machine.machine, machine.nics))
                if chosen is None:
                    exchanged = 1 + (cluster.n - 2) * share
                    chosen = choose(self.topology(machine), exchanged, exchanged).best
                    self.chosen[machine.machine, machine.nics] = chosen
            found.append(Group(machines=tuple(machine for machine, _ in members), share=share, inside=chosen))
        return found

    def topology(self, machine: Machine) -> Topology:
        """Its description, with the NICs' rates that the cluster's file gives."""
        topology = self.read(machine.machine)
        if len(topology.nics) != len(machine.nics):
            raise ValueError(
                f"{machine.name!r} has {len(machine.nics)} NICs, but {machine.machine!r} describes "
                f"{len(topology.nics)} ({', '.join(topology.nics)}); give `nic` a rate for each of them"
            )
        if machine.gpus not in (1, len(topology.gpus)):
            raise ValueError(
                f"{machine.name!r} has {machine.gpus} GPUs, but {machine.machine!r} describes {len(topology.gpus)}"
            )
        rates = dict(zip(topology.nics, machine.nics, strict=True))
        nodes = (
            replace(node, bytes_per_s=rates[node.name] * TCP_PAYLOAD_FRACTION) if node.kind == "nic" else node
            for node in topology.nodes
        )
        return replace(topology, nodes=tuple(nodes))

    def kinds(self, groups: Sequence[Group], n: int) -> list[Kind]:
        found = []
        for group in groups:
            machine = group.machines[0]
            plan, capacities = bare(machine.nic_bytes_per_s * TCP_PAYLOAD_FRACTION)
            if group.inside:
                plan, capacities = group.inside.plan, self.topology(machine).capacities
            found.append(
                Kind(
                    name=group.title,
                    count=len(group.machines),
                    own=group.share,
                    plan=plan,
                    capacities=capacities,
                    worker=machine.role == "gpu",
                )
            )
        return found

    def all_reduce(
        self, job: Job, groups: Sequence[Group], cluster: Cluster, nbytes: int, *, flat: bool
    ) -> Alternative | None:
        """A ring through all GPUs, or rings inside machines and between them; none where every machine has one GPU.

        The slowest machine sets the pace.  A ring crosses a rack's uplink once.
        """
        name = "ring all-reduce" if flat else "hierarchical all-reduce"
        found = []
        for kind, group in zip(self.kinds(groups, cluster.n), groups, strict=True):
            machine = group.machines[0]
            if not kind.worker:
                continue
            if group.inside:
                loads = (ring_loads if flat else hierarchical_loads)(self.topology(machine), cluster.n)
            elif flat:
                loads = dict.fromkeys(kind.capacities, 2 * (cluster.n - 1) / cluster.n)
            else:
                continue
            outcome = predict.ring(job, kind, cluster.n * machine.gpus, loads)
            found.append(Alternative(name=name, seconds=outcome.seconds, bottleneck=outcome.bottleneck))
        if not found:
            return None
        crossing = 2 * (cluster.n - 1) / cluster.n * nbytes / TCP_PAYLOAD_FRACTION
        racks = {machine.rack for machine in cluster.gpu_machines}
        found += [
            Alternative(name=name, seconds=crossing / rate, bottleneck=f"uplink of {rack}")
            for rack, rate in cluster.uplinks.items()
            if rack in racks and len(racks) > 1
        ]
        return max(found, key=lambda one: one.seconds)
