"""How long an iteration takes: BytePS, ring all-reduce and a parameter server on whole clusters, by simulation.

Mean field.  Workers run in lockstep and placement interleaves services by share, so every partition is taken as spread
over all services at once, and machines that are alike are simulated as one (`Kind`).  An iteration then costs a few
flows for each partition however large the cluster is, and the fluid limit is exact: P equal partitions end at
t_opt * (1 + 1/P) for 0 < k <= n and at t_opt for k = 0, if only NICs cost time.  What it leaves out is that partitions
are placed whole (`flowsim` simulates that with every machine and partition).

Per byte of gradient, with `own` the share that a service of that kind sums (all services together: 1),

    push   a GPU machine sends 1 - own and receives (n - 1) own;  a CPU machine receives n own
    pull   the same the other way round

and each is laid over the links inside the machine by its `LocalPlan`.  A training iteration begins with the backward
pass; gradients become ready on the way; the next forward pass ends it.  Without `overlap_forward` it waits for all of
them (a barrier, as in PyTorch), with it layer by layer.  A phase (GANs: discriminators, then generators) waits for the
results of the one before.
Pure: no I/O, no clock, no randomness.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType

from byteps.flowsim import Flow, Outcome, simulate
from byteps.partition import DEFAULT_PARTITION_BYTES, split
from byteps.strategy import Loads, LocalPlan

_NO_LOADS: Loads = MappingProxyType({})
_PARTS = 1_000_000  # more than a tensor has partitions: orders a queue by layer, then by partition


@dataclass(frozen=True, kw_only=True, slots=True)
class Gradient:
    """A tensor of the training job."""

    nbytes: int
    ready_seconds: float = 0.0  # computation from the start of the backward pass until it is ready
    forward_position: int = 0  # 0: needed first by the next forward pass, and so sent first
    forward_seconds: float = 0.0  # forward computation from the need of this tensor to the need of the next
    phase: int = 0

    def __post_init__(self) -> None:
        if self.nbytes < 0:
            raise ValueError(f"nbytes of a gradient is {self.nbytes}; use 0 or more")
        for what in ("ready_seconds", "forward_seconds"):
            if not 0 <= getattr(self, what) < math.inf:
                raise ValueError(f"{what} of a gradient is {getattr(self, what)}; use a number of 0 or more")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is synchronised in one iteration; gradients in ready order."""

    gradients: tuple[Gradient, ...]
    overlap_forward: bool = False
    phase_ends: tuple[float, ...] = ()  # when each phase's computation is over, maybe after its last gradient

    def __post_init__(self) -> None:
        if not self.gradients:
            raise ValueError("a job needs at least one gradient")
        last = -1
        for index, gradient in enumerate(self.gradients):
            if gradient.phase not in ((last, last + 1) if index else (0,)):
                raise ValueError(
                    f"gradient {index} is of phase {gradient.phase} after one of phase {last}; gradients come phase by "
                    "phase, from 0 on, none left out"
                    if index
                    else f"the first gradient is of phase {gradient.phase}; phases begin with 0"
                )
            last = gradient.phase
        phases = last + 1
        if self.phase_ends and len(self.phase_ends) != phases:
            raise ValueError(f"phase_ends has {len(self.phase_ends)} moments for {phases} phases; give one for each")
        if list(self.phase_ends) != sorted(self.phase_ends):
            raise ValueError(f"phase_ends are {self.phase_ends}; a phase ends no earlier than the one before")


def transfer(nbytes: int, parts: int) -> Job:
    """One synchronisation of `nbytes` in equal parts, all ready at once, and no computation."""
    if nbytes < 1 or parts < 1:
        raise ValueError(f"nbytes is {nbytes}, parts is {parts}; there is at least 1 of each")
    cuts = [nbytes * part // parts for part in range(parts + 1)]
    return Job(
        gradients=tuple(Gradient(nbytes=cuts[i + 1] - cuts[i], forward_position=i) for i in range(parts)),
    )


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Machines that are alike: so many, each with this share of the sum, this inside, and these link rates."""

    name: str
    count: int
    own: float
    plan: LocalPlan
    capacities: Mapping[str, float]  # bytes/s
    worker: bool = True  # a GPU machine

    def loads(self, sent: float, received: float) -> dict[str, float]:
        """On its links, if it sends and receives so many bytes."""
        parts = ((sent, self.plan.sending), (received, self.plan.receiving))
        return self.on_links(_added(*((amount, loads) for amount, loads in parts if amount)))

    def on_links(self, loads: Loads) -> dict[str, float]:
        return {f"{self.name}/{link}": amount for link, amount in loads.items()}


def bare(nic_bytes_per_s: float) -> tuple[LocalPlan, dict[str, float]]:
    """The inside of a machine in which nothing but its NIC costs time: plan and capacities."""
    plan = LocalPlan(name="none", roots=(), before=(), sending={"NIC0.out": 1.0}, receiving={"NIC0.in": 1.0}, after=())
    return plan, {"NIC0.out": nic_bytes_per_s, "NIC0.in": nic_bytes_per_s}


@dataclass(frozen=True, kw_only=True)
class BytePSCosts:
    """What a BytePS costs beyond bandwidth; as it stands, nothing."""

    network_fraction: float = 1.0  # of the NIC's rate
    message_seconds: float = 0.0  # for each partition, in each direction
    tensor_seconds: float = 0.0
    partition_bytes: int = DEFAULT_PARTITION_BYTES


@dataclass(frozen=True, kw_only=True)
class RingCosts:
    """What a ring all-reduce with fusion costs beyond bandwidth."""

    network_fraction: float = 1.0
    step_seconds: float = 0.0  # for each of the 2(N - 1) steps of an operation over N ranks
    tensor_seconds: float = 0.0  # negotiation
    cycle_seconds: float = 0.0  # ready tensors are gathered so often; 0: each goes alone
    fusion_bytes: int = 1  # into buffers of at most this; larger tensors go alone


@dataclass(frozen=True, kw_only=True)
class ServerCosts:
    """A parameter server whose pushes and pulls do not overlap for a key: its servers' time, then its workers'."""

    server_fraction: float = 1.0  # n M / (k B) takes so many times as long
    worker_fraction: float = 1.0  # M / B takes so many times as long
    tensor_seconds: float = 0.0


def byteps(job: Job, kinds: Sequence[Kind], costs: BytePSCosts = BytePSCosts()) -> Outcome:
    """An iteration of BytePS on GPU and CPU machines whose shares sum to 1."""
    owned = sum(kind.count * kind.own for kind in kinds)
    if abs(owned - 1) > 1e-6:
        raise ValueError(f"the shares of all machines sum to {owned:g}; they must sum to 1")
    workers = [kind for kind in kinds if kind.worker]
    n = sum(kind.count for kind in workers)
    push: dict[str, float] = {}
    pull: dict[str, float] = {}
    for kind in kinds:
        sends = 1.0 - kind.own if kind.worker else 0.0
        answers = (n - 1 if kind.worker else n) * kind.own
        push |= kind.loads(sends, answers)
        pull |= kind.loads(answers, sends)

    def one(net: _Iteration, gradient: Gradient, ready: int) -> tuple[int, ...]:
        order = float(gradient.forward_position * _PARTS)
        if costs.tensor_seconds:
            ready = net.add(startup_seconds=costs.tensor_seconds, after=(ready,), queue="tensors", order=order)
        done: list[int] = []
        for _, nbytes in split(gradient.nbytes, 1, costs.partition_bytes):
            order += 1.0
            reduced = [net.chain(kind, kind.plan.before, "before", nbytes, (ready,), order) for kind in workers]
            pushed = net.add(push, nbytes, costs.message_seconds, after=tuple(reduced), queue="push", order=order)
            pulled = net.add(pull, nbytes, costs.message_seconds, after=(pushed,), queue="pull", order=order)
            done += [net.chain(kind, kind.plan.after, "after", nbytes, (pulled,), order) for kind in workers]
        return tuple(done)

    links = _links(kinds, costs.network_fraction)
    return _Iteration(links).run(
        job, lambda net, some, ready: [one(net, *pair) for pair in zip(some, ready, strict=True)]
    )


def ring(job: Job, kind: Kind, ranks: int, loads: Loads, costs: RingCosts = RingCosts()) -> Outcome:
    """An iteration with all-reduce over `ranks` GPUs; `loads` per gradient byte on the links of one machine."""
    placed = kind.on_links(loads)

    def synchronise(net: _Iteration, gradients: Sequence[Gradient], ready: Sequence[int]) -> list[tuple[int, ...]]:
        results: list[tuple[int, ...]] = []
        for members in fused(gradients, costs.cycle_seconds, costs.fusion_bytes):
            told = net.add(
                startup_seconds=costs.tensor_seconds * len(members) + costs.cycle_seconds / 2,
                after=tuple(ready[member] for member in members),
                queue="negotiation",
                order=float(members[0]),
            )
            reduced = net.add(
                placed,
                nbytes=sum(gradients[member].nbytes for member in members),
                startup_seconds=2 * (ranks - 1) * costs.step_seconds,
                after=(told,),
                queue="ring",
                order=float(members[0]),
            )
            results += [(reduced,)] * len(members)
        return results

    return _Iteration(_links([kind], costs.network_fraction)).run(job, synchronise)


def fused(gradients: Sequence[Gradient], cycle_seconds: float, fusion_bytes: int) -> list[range]:
    """Which gradients share an operation: those that become ready in one cycle, as long as a buffer holds them."""
    groups: list[range] = []
    start, nbytes = 0, 0
    for index, gradient in enumerate(gradients):
        first = gradients[start]
        late = not cycle_seconds or gradient.ready_seconds // cycle_seconds > first.ready_seconds // cycle_seconds
        if index > start and (late or nbytes + gradient.nbytes > fusion_bytes):
            groups.append(range(start, index))
            start, nbytes = index, 0
        nbytes += gradient.nbytes
    return [*groups, range(start, len(gradients))]


def parameter_server(job: Job, kind: Kind, n: int, k: int, costs: ServerCosts = ServerCosts()) -> Outcome:
    """An iteration with k parameter servers; with k = 0 every GPU machine is one and its own part costs no NIC."""
    out, into = (sum(kind.plan.sending.values()), sum(kind.plan.receiving.values()))
    if not (out and into):
        raise ValueError(f"plan {kind.plan.name!r} of {kind.name} says nothing of its NIC")
    servers = {f"{kind.name}/servers": costs.server_fraction * (n / k if k else (n - 1) / n)}
    worker = kind.loads(costs.worker_fraction * (1.0 if k else (n - 1) / n), 0.0)
    links = _links([kind], 1.0)
    links[f"{kind.name}/servers"] = sum(rate for link, rate in kind.capacities.items() if link.endswith(".out"))

    def one(net: _Iteration, gradient: Gradient, ready: int) -> tuple[int, ...]:
        order, nbytes = float(gradient.forward_position), gradient.nbytes
        reduced = net.chain(kind, kind.plan.before, "before", nbytes, (ready,), order)
        both = len(net.flows) + 1  # a key's turn lasts until its workers have it
        served = net.add(servers, nbytes, costs.tensor_seconds, after=(reduced,), queue="keys", order=order, until=both)
        pulled = net.add(worker, nbytes, after=(served,))
        return (net.chain(kind, kind.plan.after, "after", nbytes, (pulled,), order),)

    return _Iteration(links).run(
        job, lambda net, some, ready: [one(net, *pair) for pair in zip(some, ready, strict=True)]
    )


_Synchronise = Callable[["_Iteration", Sequence[Gradient], Sequence[int]], list[tuple[int, ...]]]
"""(so far, gradients of a phase, the flows that say when each is ready) -> the flows that end when each is back."""


@dataclass
class _Iteration:
    """The flows of one iteration while they are put together."""

    links: dict[str, float]
    flows: list[Flow] = field(default_factory=list)

    def add(
        self,
        loads: Loads = _NO_LOADS,
        nbytes: float = 0.0,
        startup_seconds: float = 0.0,
        *,
        after: tuple[int, ...] = (),
        queue: str = "",
        order: float = 0.0,
        until: int | None = None,
    ) -> int:
        """Its index."""
        self.flows.append(
            Flow(
                loads=loads,
                nbytes=nbytes,
                startup_seconds=startup_seconds,
                after=after,
                queue=queue,
                order=order,
                until=until,
            )
        )
        return len(self.flows) - 1

    def chain(
        self, kind: Kind, stages: Sequence[Loads], name: str, nbytes: float, after: tuple[int], order: float
    ) -> int:
        """One partition through the stages inside a machine; the index of the last."""
        for number, loads in enumerate(stages):
            queue = f"{kind.name}/{name}{number}"
            after = (self.add(kind.on_links(loads), nbytes, after=after, queue=queue, order=order),)
        return after[0]

    def run(self, job: Job, synchronise: _Synchronise) -> Outcome:
        """Backward pass, synchronisation phase by phase, and the next forward pass."""
        results: list[tuple[int, ...]] = []
        computed = 0.0  # in earlier phases
        start: tuple[int, ...] = ()
        for number, phase in groupby(job.gradients, key=lambda gradient: gradient.phase):
            gradients = list(phase)
            ready = [
                self.add(startup_seconds=max(gradient.ready_seconds - computed, 0.0), after=start)
                for gradient in gradients
            ]
            done = synchronise(self, gradients, ready)
            results += done
            end = job.phase_ends[number] if job.phase_ends else gradients[-1].ready_seconds
            over = self.add(startup_seconds=end - computed, after=start)
            computed = end
            start = (self.add(after=(over, *(index for one in done for index in one))),)
        needs = sorted(zip(job.gradients, results, strict=True), key=lambda pair: pair[0].forward_position)
        previous = () if job.overlap_forward else start
        for gradient, result in needs:
            after = (*previous, *result) if job.overlap_forward else previous
            previous = (self.add(startup_seconds=gradient.forward_seconds, after=after),)
        return simulate(self.flows, self.links)


def _links(kinds: Sequence[Kind], network_fraction: float) -> dict[str, float]:
    """Every link of every kind; what a system reaches of the NICs' rate."""
    return {
        f"{kind.name}/{link}": rate * (network_fraction if link.endswith((".out", ".in")) else 1.0)
        for kind in kinds
        for link, rate in kind.capacities.items()
    }


def _added(*parts: tuple[float, Loads]) -> dict[str, float]:
    total: dict[str, float] = {}
    for amount, loads in parts:
        for link, load in loads.items():
            total[link] = total.get(link, 0.0) + amount * load
    return total
