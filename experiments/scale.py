"""Training on clusters like the paper's: what its jobs, machines and systems are to `byteps.predict`.

    machine     a preset of `byteps.machine_file`, or "one-gpu": nothing but the NIC costs time
    local       how BytePS sums inside a machine: "rule" (the paper's), "planned" (ours), "strawman", or the GPUs that
                hand the sum to the CPU: "root=all", "root=2,3"

On a single machine every system does the same: an all-reduce over its GPUs, without the network.  Horovod's ring goes
over all GPUs of all machines and, without GPUDirect RDMA, through host memory, beside the NIC's own traffic.  A
parameter server's workers sum over all GPUs of a machine, each a part, as MXNet's do.
ByteScheduler cuts tensors, sends what the next forward pass needs first, and takes the barrier away.  Over all-reduce
that is BytePS's pipeline with the ring as its only stage; over parameter servers, with CPU machines owning everything.
Pure except for files of workloads, machines and the paper's numbers.
"""

from dataclasses import dataclass, replace
from functools import cache

from byteps import machine_file, planner, predict, strategy
from byteps.assign import paper_shares
from byteps.flowsim import Outcome
from byteps.machine import Topology
from byteps.predict import BytePSCosts, Gradient, Job, Kind
from byteps.strategy import Loads, LocalPlan
from experiments import paper
from experiments.systems import AllReduce, Systems
from experiments.workloads import Workload

ONE_GPU = "one-gpu"
OVERLAPS_FORWARD = {"MXNet": True, "TensorFlow": False, "PyTorch": False}
"""Whether a layer's forward pass starts as soon as its own parameters are there: MXNet's dependency engine sees to it,
TensorFlow's and PyTorch's steps begin when all are."""


@cache
def framework_of(model: str) -> str:
    """What the paper trains it in; PyTorch for other models."""
    models = paper.fig15_16().model
    return models[model].framework if model in models else "PyTorch"


def training(workload: Workload, *, overlap_forward: bool) -> Job:
    gradients = tuple(
        Gradient(
            nbytes=tensor.nbytes,
            ready_seconds=tensor.ready_seconds,
            forward_position=tensor.forward_position,
            forward_seconds=tensor.forward_seconds,
            phase=tensor.phase,
        )
        for tensor in workload.tensors
    )
    return Job(gradients=gradients, phase_ends=workload.phase_ends, overlap_forward=overlap_forward)


@cache
def _preset(name: str) -> Topology:
    return machine_file.preset(name)


@dataclass(frozen=True, kw_only=True)
class Site:
    """n GPU machines that are alike and k CPU machines, whose NICs carry so much payload each way."""

    machine: str
    n: int
    k: int
    nic_bytes_per_s: float

    @property
    def topology(self) -> Topology | None:
        return None if self.machine == ONE_GPU else _preset(self.machine)

    @property
    def ranks(self) -> int:
        return self.n * (len(self.topology.gpus) if self.topology else 1)

    @property
    def ring_loads(self) -> Loads:
        if self.topology:
            return strategy.ring_loads(self.topology, self.n)
        return dict.fromkeys(("NIC0.out", "NIC0.in"), 2 * (self.n - 1) / self.n)

    def plan(self, local: str) -> LocalPlan:
        """From the GPUs to host memory and the NIC, and back."""
        topology = self.topology
        if topology is None:
            return predict.bare(self.nic_bytes_per_s)[0]
        if self.n == 1:
            half = {link: load / 2 for link, load in self.ring_loads.items()}
            return replace(strategy.rule(topology), name="all-reduce inside", before=(half,), after=(half,))
        match local.partition("="):
            case "rule", "", "":
                return strategy.rule(topology)
            case "planned", "", "":
                own = paper_shares(self.n, self.k).gpu[0]
                carried = 1 + (self.n - 2) * own  # each way, per byte of its gradients
                return planner.choose(topology, carried, carried).best.plan
            case "strawman", "", "":
                return strategy.strawman(topology)
            case "root", "=", "all":
                return strategy.reduce_broadcast(topology, topology.gpus)
            case "root", "=", numbers:
                return strategy.reduce_broadcast(topology, [f"GPU{number}" for number in numbers.split(",")])
        raise ValueError(f"local = {local!r}: use rule, planned, strawman, root=all, or GPUs such as root=2,3")

    def kind(self, name: str, count: int, own: float, plan: LocalPlan | None = None) -> Kind:
        """GPU machines with that plan; without one, CPU machines."""
        bare, capacities = predict.bare(self.nic_bytes_per_s)
        if plan and self.topology:
            nics = {f"{nic}.{way}": self.nic_bytes_per_s for nic in self.topology.nics for way in ("out", "in")}
            capacities = {**self.topology.capacities, **nics}
        return Kind(name=name, count=count, own=own, plan=plan or bare, capacities=capacities, worker=plan is not None)


def byteps(job: Job, site: Site, local: str, systems: Systems) -> Outcome:
    shares = paper_shares(site.n, site.k) if site.n > 1 else None
    own = shares.gpu[0] if shares else 1.0
    kinds = [site.kind("gpu", site.n, own, site.plan(local))]
    if shares and site.k:
        kinds.append(site.kind("cpu", site.k, shares.cpu[0]))
    return predict.byteps(job, kinds, systems.byteps.costs())


def all_reduce(job: Job, site: Site, systems: Systems) -> Outcome:
    costs = systems.all_reduce.costs(site.ranks, step_seconds(site, systems.all_reduce))
    return predict.ring(job, site.kind("gpu", site.n, 0.0, site.plan("rule")), site.ranks, site.ring_loads, costs)


def step_seconds(site: Site, costs: AllReduce) -> float:
    """Mean over the 2(N - 1) steps of a ring: on each of its two rounds every machine is left once."""
    steps = 2 * (site.ranks - 1)
    if not steps:
        return 0.0
    left = min(2 * site.n, steps) if site.n > 1 else 0
    inside = costs.nvlink_step_seconds if site.topology and site.topology.has_nvlink else costs.pcie_step_seconds
    return (left * costs.network_step_seconds.value + (steps - left) * inside.value) / steps


def scheduled_all_reduce(job: Job, site: Site, systems: Systems) -> Outcome:
    """ByteScheduler over all-reduce, in pieces of Horovod's fusion buffer; several are under way, so steps hide."""
    plan = LocalPlan(name="ring", roots=(), before=(site.ring_loads,), sending={}, receiving={}, after=())
    ring = systems.all_reduce.costs(site.ranks, 0.0)
    costs = BytePSCosts(
        network_fraction=ring.network_fraction, tensor_seconds=ring.tensor_seconds, partition_bytes=ring.fusion_bytes
    )
    return predict.byteps(_without_barrier(job), [site.kind("gpu", site.n, 1 / site.n, plan)], costs)


def parameter_server(job: Job, site: Site, framework: str, systems: Systems) -> Outcome:
    kind = site.kind("gpu", site.n, 0.0, site.plan("root=all"))
    return predict.parameter_server(job, kind, site.n, site.k, systems.parameter_server.costs(framework))


def scheduled_parameter_server(job: Job, site: Site, framework: str, systems: Systems) -> Outcome:
    """ByteScheduler over parameter servers: pushes of one piece overlap pulls of another."""
    server = systems.parameter_server.costs(framework)
    costs = BytePSCosts(
        network_fraction=1 / max(server.server_fraction, server.worker_fraction, 1.0),
        tensor_seconds=server.tensor_seconds,
        partition_bytes=systems.byteps.costs().partition_bytes,
    )
    kinds = [site.kind("gpu", site.n, 0.0 if site.k else 1 / site.n, site.plan("root=all"))]
    if site.k:
        kinds.append(site.kind("cpu", site.k, 1 / site.k))
    return predict.byteps(_without_barrier(job), kinds, costs)


def _without_barrier(job: Job) -> Job:
    return replace(job, overlap_forward=True)
