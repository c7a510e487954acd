"""The inside of machines as schedules: GPUs add up along chains, CPUs what the chains gave, the network, and back.

Nodes are the GPUs of all machines (the workers), then the memories of their CPUs, then CPU machines on the network.  A
way to sum is a list of parts: a share of the tensor, and the chains that add it up, each ending at the GPU (the root)
that copies it to host memory, as in `byteps.strategy`, which counts the bytes of the same ways by formula.  Machines
exchange sums as BytePS does: every host memory and every CPU machine owns what makes all NICs finish together.

    cpu-assisted   a chain in every island (switch or NVLink), the GPUs take turns as roots
    brute-force    every GPU a chain of its own
    root=2,3       one chain over all GPUs to each root; "root=all": every GPU
    strawman       a ring over all GPUs as if under one switch, each copies its part
    ring           one ring over the GPUs of all machines, through host memories between them, which add nothing

Pieces follow each other through all stages, so that the links of all stages are busy at once.
Source: BytePS, OSDI 2020, section 4.2; the ring is NCCL's without GPUDirect RDMA.
Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise

import numpy as np

from byteps.assign import cluster_shares
from byteps.cluster import uniform_cluster
from byteps.machine import Topology
from byteps.machine_file import preset
from byteps.schedule import Indices, Round, Schedule, one_round
from byteps.strategy import islands

PIECES = 16
_HOP_STAGES = 3  # a ring's hop between machines: to host memory, over the network, to the GPU

Parts = Sequence[tuple[float, Sequence[Sequence[str]]]]
"""(share of the tensor, chains of GPUs); the shares sum to 1."""
_Pairs = list[tuple[int, int]]  # senders and receivers


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Equal GPU machines with one NIC each on one switch, and CPU machines on it."""

    topology: Topology
    count: int
    servers: int = 0  # CPU machines; their NICs are as fast as the others

    def __post_init__(self) -> None:
        if self.count < 1 or self.servers < 0 or not self.topology.gpus or len(self.topology.nics) != 1:
            raise ValueError(
                f"{self.count} machines {self.topology.name!r} with {len(self.topology.gpus)} GPUs and "
                f"{len(self.topology.nics)} NICs, {self.servers} CPU machines; "
                "use 1 machine or more, each with GPUs and 1 NIC"
            )

    @property
    def num_workers(self) -> int:
        return self.count * len(self.topology.gpus)

    @property
    def num_nodes(self) -> int:
        return self.num_workers + self.count * len(self.topology.cpus) + self.servers

    @property
    def nic(self) -> str:
        return self.topology.nics[0]

    @property
    def host(self) -> str:
        """The CPU in whose memory a machine's sum is."""
        return self.topology.cpu_of(self.nic)

    def node(self, machine: int, name: str) -> int:
        """Of a GPU, or of a CPU's memory."""
        if name in self.topology.gpus:
            return machine * len(self.topology.gpus) + self.topology.gpus.index(name)
        return self.num_workers + machine * len(self.topology.cpus) + self.topology.cpus.index(name)

    def server(self, index: int) -> int:
        return self.num_workers + self.count * len(self.topology.cpus) + index

    @cached_property
    def places(self) -> tuple[tuple[int, str], ...]:
        """By node: machine and name; a CPU machine is machine -1 - its number, without a name."""
        devices = [(m, gpu) for m in range(self.count) for gpu in self.topology.gpus]
        memories = [(m, cpu) for m in range(self.count) for cpu in self.topology.cpus]
        return (*devices, *memories, *((-1 - index, "") for index in range(self.servers)))

    def way(self, src: int, dst: int) -> tuple[str, ...]:
        """The links on a message's way: "m0.GPU0->P0", "m0.NIC0.out", "s0.in"; memory is none of them."""
        (m, a), (other, b) = self.places[src], self.places[dst]
        if m == other:
            return tuple(f"m{m}.{link}" for link in self.topology.route(a, b))
        return (*self._network_end(m, a, "out"), *reversed(self._network_end(other, b, "in")))

    def _network_end(self, machine: int, name: str, direction: str) -> tuple[str, ...]:
        """From a node to the network, or the other way in reverse."""
        if machine < 0:
            return (f"s{-1 - machine}.{direction}",)
        ends = (name, self.nic) if direction == "out" else (self.nic, name)
        route = self.topology.route(*ends)
        ordered = route if direction == "out" else tuple(reversed(route))
        return (*(f"m{machine}.{link}" for link in ordered), f"m{machine}.{self.nic}.{direction}")


def reduced(topology: Topology, per_switch: int) -> Topology:
    """The same with the first so many GPUs of every PCIe switch alone, and copies between GPUs that cost no more than
    their bytes, as on an emulated link."""
    kept: dict[str, list[str]] = {}
    for gpu in topology.gpus:
        kept.setdefault(topology.switch_of(gpu), []).append(gpu)
    gone = {gpu for gpus in kept.values() for gpu in gpus[per_switch:]}
    if per_switch < 1 or any(len(gpus) < per_switch for gpus in kept.values()):
        raise ValueError(f"{per_switch} GPUs per switch of {topology.name!r}, which have {[*map(len, kept.values())]}")
    return replace(
        topology,
        nodes=tuple(node for node in topology.nodes if node.name not in gone),
        links=tuple(link for link in topology.links if link.a not in gone),
        peer_efficiency=1.0,
    )


def read(detail: str, n: int, k: int) -> tuple[Machines, str]:
    """Machines and way of "PRESET/WAY" for n GPUs in two machines; "PRESET/WAY/3": in three.

    k: all CPUs' memories, and CPU machines beyond.  ValueError says what is missing.
    """
    name, _, rest = detail.partition("/")
    way, _, text = rest.partition("/")
    count = int(text) if text.isdigit() else 0 if text else 2
    if not way or count < 1:
        raise ValueError(
            f"inside of {detail!r}: write PRESET/WAY or PRESET/WAY/MACHINES, such as pcie-only/cpu-assisted"
        )
    whole = preset(name)
    switches = len({whole.switch_of(gpu) for gpu in whole.gpus})
    per_switch, left = divmod(n, count * switches)
    servers = k - count * len(whole.cpus)
    if left or servers < 0:
        raise ValueError(
            f"{n} GPUs and {k} further nodes on {count} machines {name!r}; give a multiple of {count * switches} GPUs, "
            f"and {count * len(whole.cpus)} further nodes, one for each CPU, or more"
        )
    return Machines(topology=reduced(whole, per_switch), count=count, servers=servers), way


def build(detail: str, n: int, k: int) -> Schedule:
    """The schedule that `read` tells of."""
    machines, way = read(detail, n, k)
    return schedule(machines, way)


def schedule(machines: Machines, way: str, *, pieces: int = PIECES) -> Schedule:
    """One of the ways above."""
    return ring(machines, pieces=pieces) if way == "ring" else chained(machines, way, pieces=pieces)


def parts_of(topology: Topology, way: str) -> Parts:
    """Who adds up along which chains."""
    gpus, groups = topology.gpus, islands(topology)
    if way == "cpu-assisted":
        turns = int(np.lcm.reduce([len(group) for group in groups]))
        return [(1 / turns, [_ending(group, turn % len(group)) for group in groups]) for turn in range(turns)]
    if way == "brute-force":
        return [(1.0, [(gpu,) for gpu in gpus])]
    if way == "strawman":
        around = tuple(chain(*groups))
        return [(1 / len(gpus), [_ending(around, index)]) for index in range(len(gpus))]
    kind, _, names = way.partition("=")
    roots = gpus if names == "all" else tuple(f"GPU{number}" for number in names.split(","))
    if kind != "root" or not set(roots) <= set(gpus):
        raise ValueError(
            f"way {way!r} inside {topology.name!r}; use cpu-assisted, brute-force, strawman, ring, root=all, or root= "
            f"numbers of {', '.join(gpus)}"
        )
    return [(1 / len(roots), [_all_to(topology, root)]) for root in roots]


def chained(machines: Machines, way: str, *, pieces: int = PIECES) -> Schedule:
    """Sums along chains and in host memory; a chunk is a piece of what one owner has of one part."""
    parts = parts_of(machines.topology, way)
    owners, shares = _owners(machines)
    waves: list[dict[tuple[int, bool], list[tuple[int, int, int]]]] = []
    every: list[float] = []
    for piece in range(pieces):
        wave: dict[tuple[int, bool], list[tuple[int, int, int]]] = {}
        for (share, chains), (owner, owned) in (
            (part, one) for part in parts for one in zip(owners, shares, strict=True)
        ):
            chunk = len(every)
            every.append(share * owned / pieces)
            inside = _stages(machines, chains)
            across = [(host, owner) for host in _hosts(machines) if host != owner]
            there = [*inside, across]
            back = [[(b, a) for a, b in stage] for stage in reversed(there)]
            for keep, stages in ((True, there), (False, back)):
                first = 0 if keep else len(there)
                for number, stage in enumerate(stages, start=first):
                    wave.setdefault((piece + number, keep), []).extend((a, b, chunk) for a, b in stage)
        waves.append(wave)
    last = max(time for wave in waves for time, _ in wave)
    found = [
        one_round(chain(*(wave.get((time, keep), ()) for wave in waves)), keep=keep)
        for time in range(last + 1)
        for keep in (True, False)
    ]
    return Schedule(
        name=f"{way} in {machines.topology.name}",
        num_workers=machines.num_workers,
        num_nodes=machines.num_nodes,
        shares=np.array(every),
        rounds=tuple(one for one in found if one.src.size),
    )


def ring(machines: Machines, *, pieces: int = PIECES) -> Schedule:
    """Through the GPUs of all machines; between machines by way of both hosts' memories."""
    if pieces < _HOP_STAGES:
        raise ValueError(f"{pieces} pieces; a ring between machines needs {_HOP_STAGES}, one for each stage of a hop")
    path = _path(machines)
    order = [machines.node(m, gpu) for m in range(machines.count) for gpu in path]
    n = len(order)
    direct = np.array([machines.count == 1 or (p + 1) % len(path) > 0 for p in range(n)])
    host = np.array([machines.node(p // len(path), machines.host) for p in range(n)])
    node, following, beyond = np.array(order), np.roll(order, -1), np.roll(host, -len(path))
    rounds: list[Round] = []
    for keep, offset in ((True, -1), (False, 0)):

        def chunks(time: int, which: Indices, offset: int = offset) -> Indices:
            """What the positions send at a time: piece after piece of one step, then the next step."""
            return (which + offset - time // pieces) % n * pieces + time % pieces

        end = (n - 1) * pieces
        near, far = np.flatnonzero(direct), np.flatnonzero(~direct)
        for time in range(end + _HOP_STAGES - 1):
            hops = [(node, following, near, time)] if time < end else []
            stages = [(node, host), (host, beyond), (beyond, following)]
            late = [(a, b, far, time - lag) for lag, (a, b) in enumerate(stages) if 0 <= time - lag < end]
            # on the way a message replaces what host memory holds of the chunk; only the next GPU adds
            adding = [*hops, *(one for one in late if one[1] is following)]
            passing = [one for one in late if one[1] is not following]
            for group, kept in ((passing, False), (adding, keep)) if keep else (([*passing, *adding], False),):
                messages = [(a[which], b[which], chunks(when, which)) for a, b, which, when in group]
                if sum(src.size for src, _, _ in messages):
                    src, dst, chunk = (np.concatenate(column) for column in zip(*messages, strict=True))
                    rounds.append(Round(src=src, dst=dst, chunk=chunk, keep=kept))
    return Schedule(
        name=f"ring through {machines.topology.name}",
        num_workers=machines.num_workers,
        num_nodes=machines.num_nodes,
        shares=np.full(n * pieces, 1 / (n * pieces)),
        rounds=tuple(rounds),
    )


def _stages(machines: Machines, chains: Sequence[Sequence[str]]) -> list[_Pairs]:
    """Until a machine's sum is in its host's memory: hop after hop, the copies, and what other CPUs added up."""
    topology, host = machines.topology, machines.host
    by_cpu: dict[str, list[str]] = {}
    for *_, root in chains:
        by_cpu.setdefault(topology.cpu_of(root), []).append(root)
    copies, crossing = [], []
    for cpu, roots in by_cpu.items():
        near = cpu if len(roots) > 1 else host  # one input need not be added up on the way
        copies += [(root, near) for root in roots]
        crossing += [(near, host)] if near != host else []
    hops = [list(pairwise(gpus)) for gpus in chains]
    longest = max(map(len, hops))
    # chains that are shorter begin later, so that all of them end together
    rows = [
        [row[stage - longest + len(row)] for row in hops if stage >= longest - len(row)] for stage in range(longest)
    ]
    stages = [*rows, copies, *([crossing] if crossing else [])]
    return [
        [(machines.node(m, a), machines.node(m, b)) for m in range(machines.count) for a, b in stage]
        for stage in stages
    ]


def _hosts(machines: Machines) -> list[int]:
    return [machines.node(m, machines.host) for m in range(machines.count)]


def _owners(machines: Machines) -> tuple[list[int], list[float]]:
    """Nodes that sum over the network, and how much of the tensor each."""
    if machines.count == 1:
        return _hosts(machines), [1.0]
    shares = cluster_shares(uniform_cluster(machines.count, machines.servers, 1.0)).all
    nodes = [*_hosts(machines), *(machines.server(index) for index in range(machines.servers))]
    owned = [(node, share) for node, share in zip(nodes, shares, strict=True) if share > 0]
    total = sum(share for _, share in owned)
    return [node for node, _ in owned], [share / total for _, share in owned]


def _all_to(topology: Topology, root: str) -> tuple[str, ...]:
    """All GPUs; sockets and switches are crossed once, towards the root."""
    groups = islands(topology)
    own = next(index for index, group in enumerate(groups) if root in group)
    others = [*groups[own + 1 :], *groups[:own]]
    far = [group for group in others if topology.cpu_of(group[0]) != topology.cpu_of(root)]
    near = [group for group in others if topology.cpu_of(group[0]) == topology.cpu_of(root)]
    return (*chain(*far, *near), *_ending(groups[own], groups[own].index(root)))


def _ending(items: Sequence[str], last: int) -> tuple[str, ...]:
    """Around in a circle, ending at this one."""
    return (*items[last + 1 :], *items[: last + 1])


def _path(machines: Machines) -> tuple[str, ...]:
    """A ring's way through a machine: in and out by the GPUs nearest to the NIC, of two islands where there are two."""
    topology = machines.topology
    if machines.count == 1:
        return tuple(chain(*islands(topology)))
    distance = {gpu: len(topology.route(gpu, machines.nic)) for gpu in topology.gpus}
    near, *others = sorted(islands(topology), key=lambda island: min(distance[gpu] for gpu in island))
    first = min(near, key=lambda gpu: distance[gpu])
    last = min(others[0] if others else near, key=lambda gpu: (gpu == first, distance[gpu]))
    between = [gpu for gpu in chain(near, *others[1:], *others[:1]) if gpu not in (first, last)]
    return (first, *between, last) if last != first else (first,)
