"""Who sums what by the paper's simple rules, and what that costs against the exact plan.

Unequal NICs.  The paper scales k by the bandwidth ratio: 4 CPU machines with a quarter of the NIC rate count as one.
With k' = (sum of the CPU machines' rates) / b, at most n, a GPU machine gets (n - k') / D' and all CPU machines get
2k'(n - 1) / D' together, by their rates, where D' = n^2 + k'n - 2k'.  The rule has one b for all GPU machines; where
their NICs are not equal, b is taken as the slowest, the mean or the fastest, whichever is best.

Placement.  The table of tensors (`byteps.table`) with either placement says which service owns each partition; what the
busiest NIC then carries, over its rate, is the time.  Shares are the paper's, NICs equal.
Pure, except that models are read from their files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from byteps import theory
from byteps.assign import Shares, paper_shares
from byteps.cluster import Cluster, Machine
from byteps.table import Placement, TensorTable
from byteps.wire import Op, TensorSpec
from experiments import workloads


def seconds_of(cluster: Cluster, shares: Shares) -> float:
    """Per byte of M: what the busiest NIC takes."""
    machines = cluster.gpu_machines + cluster.cpu_machines
    carried = theory.traffic(1.0, shares)
    return max(nbytes / machine.nic_bytes_per_s for nbytes, machine in zip(carried, machines, strict=True))


def scaled_k_shares(cluster: Cluster) -> Shares:
    """The paper's rule at its best."""
    rates = [machine.nic_bytes_per_s for machine in cluster.gpu_machines]
    readings = (min(rates), sum(rates) / len(rates), max(rates))
    return min((_scaled(cluster, rate) for rate in readings), key=lambda shares: seconds_of(cluster, shares))


def _scaled(cluster: Cluster, gpu_rate: float) -> Shares:
    n = cluster.n
    rates = [machine.nic_bytes_per_s for machine in cluster.cpu_machines]
    k = min(sum(rates) / gpu_rate, n)
    slots = n**2 + k * n - 2 * k
    return Shares(gpu=((n - k) / slots,) * n, cpu=tuple(2 * k * (n - 1) / slots * rate / sum(rates) for rate in rates))


def ring_seconds(cluster: Cluster) -> float:
    """As fast as its slowest NIC."""
    return theory.ring_seconds(1.0, cluster.n, min(machine.nic_bytes_per_s for machine in cluster.gpu_machines))


def server_seconds(cluster: Cluster) -> float:
    """A parameter server on the CPU machines, in proportion to their NICs."""
    slowest = min(machine.nic_bytes_per_s for machine in cluster.gpu_machines)
    return max(1 / slowest, cluster.n / sum(machine.nic_bytes_per_s for machine in cluster.cpu_machines))


def unequal_cluster(gpu_rates: Sequence[float], cpu_rates: Sequence[float]) -> Cluster:
    machines = [Machine(name=f"gpu{i}", role="gpu", nic_bytes_per_s=rate) for i, rate in enumerate(gpu_rates)]
    machines += [Machine(name=f"cpu{i}", role="cpu", nic_bytes_per_s=rate) for i, rate in enumerate(cpu_rates)]
    return Cluster(machines=tuple(machines))


@dataclass(frozen=True, kw_only=True)
class Balance:
    """How whole partitions come out."""

    num_partitions: int
    load: float  # of the service furthest above its share, over its share
    time: float  # over t_opt


def balance(model: str, n: int, k: int, partition_bytes: int, placement: Placement) -> Balance:
    """All tensors of a model, registered at once."""
    shares = paper_shares(n, k).all
    table = TensorTable(
        shares=shares,
        processes=[1] * (n + k),
        num_workers=n,
        partition=partition_bytes,
        placement=placement,
        nic_bytes_per_s=None,
    )
    tensors = workloads.with_times(workloads.read(model)).tensors
    entries = table.register(TensorSpec(name=t.name, shape=t.shape, dtype=t.dtype, op=Op.SUM) for t in tensors)
    owned = [0] * (n + k)
    for entry in entries:
        for part, owner in enumerate(entry.owners):
            owned[owner] += min(entry.cut_nbytes, entry.spec.nbytes - part * entry.cut_nbytes)
    total = sum(owned)
    return Balance(
        num_partitions=sum(len(entry.owners) for entry in entries),
        load=max(nbytes / (share * total) for nbytes, share in zip(owned, shares, strict=True) if share),
        time=max(theory.traffic_of_placement(owned, n, k)) / theory.byteps_seconds(total, n, k, 1.0),
    )
