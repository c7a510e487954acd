"""The links in and between machines as a `byteps.network.Network`, on which schedules of `byteps.schedules.inside` are
counted and simulated.  Pure: no I/O, no clock, no randomness.
"""

import numpy as np

from byteps.network import NOWHERE, Network
from byteps.schedules.inside import Machines


def network_of(machines: Machines, slower: float = 1.0) -> Network:
    """All links, so many times slower than they are; hosts are nodes.  A node's own memory is no link."""
    topology = machines.topology
    inside = {link: rate for link, rate in topology.capacities.items() if not link.endswith(".memory")}
    rates = {f"m{m}.{link}": rate for m in range(machines.count) for link, rate in inside.items()}
    nic = topology.capacities[f"{machines.nic}.out"]
    rates |= {f"s{index}.{end}": nic for index in range(machines.servers) for end in ("out", "in")}
    number = {name: index for index, name in enumerate(rates)}
    nodes = range(machines.num_nodes)
    found = [[number[link] for link in machines.way(src, dst)] for src in nodes for dst in nodes]
    longest = max(1, *map(len, found))
    table = np.array([[*row, *[NOWHERE] * (longest - len(row))] for row in found], dtype=np.intp)
    return Network(
        name=f"{machines.count} machines {topology.name}",
        num_hosts=machines.num_nodes,
        rates=np.array(list(rates.values())) / slower,
        link_names=tuple(rates),
        ways=lambda src, dst: table[src * machines.num_nodes + dst],
    )
