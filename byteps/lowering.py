"""One synchronisation by BytePS as flows: every machine and every partition, cut, placed and ordered as at run time.

A partition is pushed by each of n workers to its owner and, once all n pushes are in, pulled by each of them: 2n flows
over the links "NAME.out" and "NAME.in" of machines, and "RACK.up" and "RACK.down" from rack to rack.  What a worker
sends to its own service stays in the machine.  How well that fills the NICs depends on three things, which a
*discipline* states:

    window      pushes wait for credit, which comes back with the pull, in the global order of partitions: priority,
                then the order of tensors, then the offset (as in `pipeline`)
    connection  between a worker and a service, the partitions of one direction go one by one, or all at once
    weight      of a connection where it shares a NIC with others

`rounds` is the ideal: P rounds, each with just its share for every service, and connections weigh as much as they
carry.  A CPU machine's NIC, shared by n connections of share c, is then never left by any of them: its pushes take
nMc/B = t_opt, round by round, the pulls of a round go while the next is pushed, and those of the last come after it.
No worker holds that up, since the connections that can be busy in it at once weigh (1 - g) + (n - 1) g = nc (see
`assign`).  So P rounds end at t_opt * (1 + 1/P); at t_opt for k = 0, where pushes alone fill every NIC both ways.
Sums cost nothing here, small partitions are not batched, and the workers share one window, whose credit comes back
with the last worker's pull.  At run time each has its own, so that workers may hold what waits for one another until
`Pipeline.relax` ends it (BERT-large at 8 to 16 Gbit/s and 4 MB); without such stalls the two end within a few percent
of one another.  Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from byteps.assign import place
from byteps.cluster import Cluster, Machine
from byteps.flowsim import Flow, Outcome, simulate
from byteps.partition import split


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """What is handed over as one."""

    nbytes: int
    ready_seconds: float = 0.0
    priority: int = 0  # higher first


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """What is pushed, summed and pulled as one."""

    nbytes: float
    owner: int  # as in `Shares.all`
    ready_seconds: float = 0.0
    priority: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """How every worker's partitions for one service leave."""

    window: str = ""  # the queue in which they wait for credit; "": they do not
    credit_bytes: float = 0.0  # of that queue
    one_by_one: bool = True  # on the connection
    weight: float = 1.0  # of the connection


Discipline = Callable[[int, float], Lane]
"""(owner, the fraction of all bytes that it sums) -> its lane"""


def fair_share(owner: int, share: float) -> Lane:
    """Everything is offered at once, and all that moves shares alike: few pulls begin before the pushes end."""
    return Lane(one_by_one=False)


def service_windows(credit_bytes: float) -> Discipline:
    """The credit is divided among the services in proportion to their shares."""
    return lambda owner, share: Lane(window=f"for {owner}", credit_bytes=credit_bytes * share)


def ordered(credit_bytes: float) -> Discipline:
    """One credit for all services, and connections share a NIC alike: the runtime, left to TCP."""
    return lambda owner, share: Lane(window="for all", credit_bytes=credit_bytes)


def ordered_weighted(credit_bytes: float) -> Discipline:
    """One credit, and connections share a NIC by what they carry, so that a stretch of the order ends together: what
    the runtime comes near to where it keeps the order down to the NIC."""
    return lambda owner, share: Lane(window="for all", credit_bytes=credit_bytes, weight=share)


def cut(tensors: Iterable[Tensor], shares: Sequence[float], partition_bytes: int) -> tuple[Partition, ...]:
    """The partitions of tensors in the order of their numbers, each with its owner."""
    parts = [(nbytes, tensor) for tensor in tensors for _, nbytes in split(tensor.nbytes, 1, partition_bytes)]
    owners = place([nbytes for nbytes, _ in parts], shares)
    return tuple(
        Partition(nbytes=nbytes, owner=owner, ready_seconds=tensor.ready_seconds, priority=tensor.priority)
        for (nbytes, tensor), owner in zip(parts, owners, strict=True)
    )


def rounds(nbytes: float, shares: Sequence[float], count: int) -> tuple[Partition, ...]:
    """`nbytes` in so many rounds, each with a partition for every service."""
    owners = [owner for owner, share in enumerate(shares) if share > 0]
    return tuple(
        Partition(nbytes=nbytes * shares[owner] / count, owner=owner) for _ in range(count) for owner in owners
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """What there is to simulate."""

    flows: tuple[Flow, ...]
    links: dict[str, float]
    credits: dict[str, float]
    pulls: NDArray[np.intp]  # index of the flow that brings each partition (row) to each worker (column)

    def simulate(self) -> Outcome:
        return simulate(self.flows, self.links, self.credits)


def lower(
    cluster: Cluster, partitions: Sequence[Partition], discipline: Discipline, message_seconds: float = 0.0
) -> Plan:
    """The flows of partitions in the order of their tensors; each message takes `message_seconds` before it moves."""
    machines, n = cluster.gpu_machines + cluster.cpu_machines, cluster.n
    owned = np.zeros(len(machines))
    for partition in partitions:
        if not 0 <= partition.owner < len(machines):
            raise ValueError(f"owner of a partition is {partition.owner}; the machines are 0 to {len(machines) - 1}")
        owned[partition.owner] += partition.nbytes
    lanes = [discipline(owner, share) for owner, share in enumerate((owned / (owned.sum() or 1.0)).tolist())]
    flows: list[Flow] = []
    pulls = np.zeros((len(partitions), n), dtype=np.intp)
    for order, index in enumerate(sorted(range(len(partitions)), key=lambda index: -partitions[index].priority)):
        partition = partitions[index]
        lane, service = lanes[partition.owner], machines[partition.owner]
        message = _Message(partition=partition, lane=lane, order=order, startup_seconds=message_seconds)
        first = len(flows)
        flows.append(message.grant(until=first + 2 * n + 2))
        flows += [message.between(worker, service, after=first) for worker in machines[:n]]
        flows.append(_joined(range(first + 1, first + n + 1)))  # the sum is complete
        flows += [message.between(service, worker, after=first + n + 1) for worker in machines[:n]]
        pulls[index] = range(first + n + 2, first + 2 * n + 2)
        flows.append(_joined(pulls[index].tolist()))
    links = {f"{machine.name}.{way}": machine.nic_bytes_per_s for machine in machines for way in ("out", "in")}
    links |= {f"{rack}.{way}": rate for rack, rate in cluster.uplinks.items() for way in ("up", "down")}
    credits = {lane.window: lane.credit_bytes for lane in lanes if lane.window}
    return Plan(flows=tuple(flows), links=links, credits=credits, pulls=pulls)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Message:
    """The flows that carry one partition."""

    partition: Partition
    lane: Lane
    order: int  # global
    startup_seconds: float

    def grant(self, until: int) -> Flow:
        """The partition's wait for credit, which it keeps until a flow ends."""
        return Flow(
            loads={},
            nbytes=self.partition.nbytes,
            release_seconds=self.partition.ready_seconds,
            queue=self.lane.window,
            order=self.order,
            until=until,
        )

    def between(self, sender: Machine, receiver: Machine, after: int) -> Flow:
        remote = sender is not receiver
        return Flow(
            loads=_route(sender, receiver) if remote else {},
            nbytes=self.partition.nbytes,
            weight=self.lane.weight,
            startup_seconds=self.startup_seconds if remote else 0.0,
            after=(after,),
            queue=f"{sender.name} to {receiver.name}" if remote and self.lane.one_by_one else "",
            order=self.order,
        )


def _joined(indices: Iterable[int]) -> Flow:
    """It ends when all of them have."""
    return Flow(loads={}, nbytes=0.0, after=tuple(indices))


def _route(sender: Machine, receiver: Machine) -> dict[str, float]:
    route = {f"{sender.name}.out": 1.0, f"{receiver.name}.in": 1.0}
    if sender.rack != receiver.rack:
        route |= {f"{machine.rack}.{way}": 1.0 for machine, way in ((sender, "up"), (receiver, "down")) if machine.rack}
    return route
