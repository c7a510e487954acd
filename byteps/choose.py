"""Which scheme to run on a given network: all that fit are simulated, and the fastest is taken.

The papers behind the schemes each show one on the network it was made for.  On other networks (unequal NICs, links that
are missing or shared, racks, relays) none of them is always the best, and their simulation takes less time than one
wrong choice costs.  Small networks are simulated exactly, large ones round by round (`byteps.scheduled`).
Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

from byteps.cluster import Cluster, Machine
from byteps.network import Network, racks
from byteps.schedule import Schedule
from byteps.scheduled import estimate, simulate
from byteps.schedules import levels, passed, served

PIECES = 4  # of what a service sums and of what a tree passes on
_MOST_EXACT = 2_000  # messages, of which an exact simulation takes half a second; more are estimated
_MOST_MACHINES = 256  # of a cluster: an all-to-all of more takes seconds even to estimate


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A scheme on a network."""

    name: str
    seconds: float
    exact: bool  # simulated message by message; else round by round


def fitting(num_hosts: int, *, bcube: tuple[int, int] = (0, 0), group: int = 0) -> list[Schedule]:
    """Schedules among so many workers: on BCube(ports, levels), or in groups of `group` neighbours, more of them."""
    n = num_hosts
    found = [passed.ring(n), served.mesh(n, pieces=PIECES), passed.halving_doubling(n), passed.tree(n, PIECES)]
    side = group or next((size for size in range(isqrt(n), 1, -1) if n % size == 0), 0)
    if side and n % side == 0 and side < n:
        found += [levels.torus(n // side, side), passed.hierarchical(n // side, side)]
        found.append(levels.levels("HiPS", [side, n // side], threads=2, within="mesh"))
    ports, count = bcube
    if ports:
        found.append(levels.bml(ports, count))
        found += [passed.bcube_rings(ports, count)] if count <= 2 else []
    return found


def rank(
    schedules: Sequence[Schedule], nbytes: float, network: Network, *, startup_seconds: float = 0.0
) -> list[Choice]:
    """The schedules by their time on the network, the fastest first."""
    found = []
    for schedule in schedules:
        exact = schedule.num_messages <= _MOST_EXACT
        if exact:
            (seconds,) = simulate([(schedule, nbytes)], network, startup_seconds=startup_seconds)
        else:
            pieces = len(schedule.rounds) > 2 and [one.keep for one in schedule.rounds[:3]] == [True, False, True]
            estimated = estimate(schedule, nbytes, network, startup_seconds=startup_seconds, overlapping=pieces)
            seconds = estimated.seconds
        found.append(Choice(name=schedule.name, seconds=seconds, exact=exact))
    return sorted(found, key=lambda choice: choice.seconds)


def of_cluster(cluster: Cluster, nbytes: float, *, fraction: float = 1.0, startup_seconds: float = 0.0) -> list[Choice]:
    """Every scheme on a cluster's machines and racks, the fastest first; `fraction` of each rate carries payload.

    None of a cluster of more than 256 machines.
    """
    machines: tuple[Machine, ...] = cluster.gpu_machines + cluster.cpu_machines
    if len(machines) > _MOST_MACHINES:
        return []
    names = list(cluster.uplinks)
    network = racks(
        [machine.nic_bytes_per_s * fraction for machine in machines],
        [names.index(machine.rack) if machine.rack else -1 for machine in machines],
        [rate * fraction for rate in cluster.uplinks.values()],
    )
    sizes = {sum(one.rack == rack for one in cluster.gpu_machines) for rack in names}
    found = fitting(cluster.n, group=sizes.pop() if len(sizes) == 1 else 0)
    found.append(served.byteps(cluster, pieces=PIECES))
    if cluster.k:
        found.append(served.parameter_server(cluster.n, cluster.k, pieces=PIECES))
    return rank([_on(network, schedule) for schedule in found], nbytes, network, startup_seconds=startup_seconds)


def _on(network: Network, schedule: Schedule) -> Schedule:
    """The schedule, whose nodes are the network's first hosts; the others stand idle."""
    if schedule.num_nodes == network.num_hosts:
        return schedule
    return Schedule(
        name=schedule.name,
        num_workers=schedule.num_workers,
        num_nodes=network.num_hosts,
        shares=schedule.shares,
        rounds=schedule.rounds,
        owners=schedule.owners,
    )
