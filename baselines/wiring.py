"""Who is connected with whom: the next host and the NIC on the way of every message, and where each node listens.

On a star every node reaches every other by its only NIC, and so it is "inside" machines and on a Fat-Tree, where
switches forward.  On BCube hosts relay for each other (`byteps.network.hops`).
Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from byteps.network import hops
from byteps.schedule import Schedule

Address = tuple[str, int]
Hops = Callable[[int, int], Sequence[tuple[int, int]]]
"""(source, destination) -> by hop: the NIC by which a message leaves, and the node that it comes to"""


def shape(network: str) -> tuple[int, int]:
    """Ports of a switch and levels of "bcube:3x2"; (0, 1) where any number is reached directly.

    ValueError for anything else.
    """
    if network in ("star", "inside") or fat_tree_ports(network):
        return 0, 1
    kind, _, size = network.partition(":")
    ports, _, levels = size.partition("x")
    if kind != "bcube" or not (ports.isdigit() and levels.isdigit()) or int(ports) < 2 or int(levels) < 1:
        raise ValueError(
            f"network {network!r}; it is star, inside, fat-tree:PORTS, or bcube:PORTSxLEVELS such as bcube:3x2"
        )
    return int(ports), int(levels)


def fat_tree_ports(network: str) -> int:
    """Of a switch of "fat-tree:4"; 0 of another kind.  ValueError where no Fat-Tree has so many."""
    kind, _, ports = network.partition(":")
    if kind != "fat-tree":
        return 0
    if not ports.isdigit() or int(ports) < 2 or int(ports) % 2:
        raise ValueError(f"network {network!r}; switches have an even number of ports, such as fat-tree:4")
    return int(ports)


def ways(network: str) -> Hops:
    """Between the nodes of a network."""
    ports, levels = shape(network)
    if not ports:
        return lambda _src, dst: ((0, dst),)
    return lambda src, dst: hops(src, dst, ports, levels)


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """What one node needs to know of the network."""

    node: int
    nics: int
    neighbours: dict[int, int]  # nodes that it is connected with: its NIC for them
    next_node: dict[int, int]  # by destination of a message: the neighbour to hand it to

    @property
    def calls(self) -> list[int]:
        """Neighbours to connect to; the others connect to it."""
        return [peer for peer in sorted(self.neighbours) if self.node < peer]


def wire(schedule: Schedule, network: str) -> list[Wiring]:
    """Of every node: what its own messages and those that it relays need."""
    way, (ports, nics) = ways(network), shape(network)
    if ports and schedule.num_nodes != ports**nics:
        raise ValueError(f"{schedule.name} has {schedule.num_nodes} nodes; network {network} has {ports**nics} hosts")
    neighbours: list[dict[int, int]] = [{} for _ in range(schedule.num_nodes)]
    following: list[dict[int, int]] = [{} for _ in range(schedule.num_nodes)]
    for src, dst in sorted(
        {pair for one in schedule.rounds for pair in zip(one.src.tolist(), one.dst.tolist(), strict=True)}
    ):
        here = src
        for nic, then in way(src, dst):
            following[here][dst] = then
            neighbours[here][then] = neighbours[then][here] = nic
            here = then
    return [
        Wiring(node=node, nics=nics, neighbours=neighbours[node], next_node=following[node])
        for node in range(schedule.num_nodes)
    ]
