"""The inside of machines, emulated: every GPU and every CPU's memory a host, every PCIe switch and CPU a bridge.

    gpu0 [eth0] -- P0 -- CPU0 -- CPU1 -- P1 -- [eth0] gpu2        each "--" is shaped to its rate, so many times slower
                          |      memory: [eth0] cpu0, cpu1
                     NIC0 +---- network ---- the next machine

A link is a veth pair with a token bucket on either end, NVLink a second NIC of each GPU (`scripts.tree`).  Frames find
their way as on PCIe: up, over, down.  The ways to sum are the contender `schedule-servers` with schemes "inside:...",
whose workers are the GPUs and whose further nodes are the memories, on the network "inside"; the NIC's rate of a case
says how much slower all links are.  A record's counters hold, beside the hosts', every link's under its name:
"m0.GPU0-P0", tx up, rx down.

Not as in a machine: copies between GPUs across switches cost no more than their bytes (80 of 105 Gbit/s in the paper),
the link to a memory is as fast as all that meets at its CPU (sums are made by the host's process), and the NIC's PCIe
link is one with the network's, at the lower of both rates.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from byteps.machine_network import network_of
from byteps.scheduled import link_loads, simulate
from byteps.schedules import inside
from byteps.schedules.inside import Machines
from byteps.theory import TCP_PAYLOAD_FRACTION
from experiments import networks
from experiments.emulated import Emulated
from experiments.record import Case, Record
from scripts import calibrate
from scripts.lab import LabSpec, star
from scripts.leftovers import LabError
from scripts.netns import Counters
from scripts.tree import TreeSpec, Trunk
from scripts.treelab import TreeLab

NETWORK = "inside"
_OUTSIDE = 0  # the number of the bridge between machines
_SCHEDULER = "scheduler"
_MEMORY = "memory"


def is_inside(case: Case) -> bool:
    return networks.wiring_of(case) == NETWORK


def machines_of(case: Case) -> tuple[Machines, str]:
    """What is emulated, and the way to sum."""
    return inside.read(case.settings["scheme"].partition(":")[2], case.n, case.k)


def slower(case: Case) -> float:
    """How many times slower the case's links are than those of the machine it stands for."""
    machines, _ = machines_of(case)
    return machines.topology.capacities[f"{machines.nic}.out"] / case.nic_bytes_per_s


def tree_of(machines: Machines, factor: float) -> TreeSpec:
    """Hosts gpu0, ... are the workers, cpu0, ... the further nodes, in the schedule's order."""
    topology = machines.topology
    rates = {name: rate / factor for name, rate in topology.capacities.items()}
    if float("inf") in rates.values():
        raise ValueError(f"{topology.name}: some rates are not known, so nothing can be emulated; write them down")
    inner = [*topology.switches, *topology.cpus]
    number = {(m, name): 1 + m * len(inner) + i for m in range(machines.count) for i, name in enumerate(inner)}
    up = {link.a: link.b for link in topology.links if link.kind == "pcie"}
    nic = min(rates[f"{machines.nic}.out"], rates[f"{machines.nic}->{up[machines.nic]}"])

    def of_place(m: int, name: str) -> tuple[float, int, str]:
        """Rate, bridge and link name of a node."""
        if m < 0:
            return nic, _OUTSIDE, f"s{-1 - m}"
        if name in topology.cpus:
            meets = sum(rate for link, rate in rates.items() if link.endswith(f"->{name}"))
            return meets, number[m, name], f"m{m}.{name}-{_MEMORY}"
        return rates[f"{name}->{up[name]}"], number[m, up[name]], f"m{m}.{name}-{up[name]}"

    nodes = [*(of_place(m, name) for m, name in machines.places), (nic, _OUTSIDE, _SCHEDULER)]
    names = [_host(machines, node) for node in range(machines.num_nodes)] + [_SCHEDULER]
    flat = star({name: rate for name, (rate, _, _) in zip(names, nodes, strict=True)})
    trunks = [
        Trunk(name=f"m{m}.{a}-{b}", a=number[m, a], b=number[m, b], bytes_per_s=rates[f"{a}->{b}"])
        for m in range(machines.count)
        for a, b in ((link.a, link.b) for link in topology.links if {link.a, link.b} <= set(inner))
    ]
    trunks += [
        Trunk(name=f"m{m}.{machines.nic}", a=number[m, up[machines.nic]], b=_OUTSIDE, bytes_per_s=nic)
        for m in range(machines.count)
    ]
    fabrics = [
        {
            _host(machines, machines.node(m, link.a)): rates[f"{link.a}->{fabric}"]
            for link in topology.links
            if link.kind == "nvlink" and link.b == fabric
        }
        for m in range(machines.count)
        for fabric in dict.fromkeys(link.b for link in topology.links if link.kind == "nvlink")
    ]
    wired = LabSpec(hosts=flat.hosts, prefix_len=flat.prefix_len, wiring=tuple((bridge,) for _, bridge, _ in nodes))
    return TreeSpec(
        hosts=wired, trunks=tuple(trunks), fabrics=tuple(fabrics), host_links=tuple(link for _, _, link in nodes)
    )


def _host(machines: Machines, node: int) -> str:
    return f"gpu{node}" if node < machines.num_workers else f"cpu{node - machines.num_workers}"


class Inside(Emulated):
    """A lab of `tree_of` as a stage: counters of every link, and a calibration that knows the tree."""

    def __init__(self, lab: TreeLab, machines: Machines, factor: float) -> None:
        super().__init__(lab)
        self._tree = lab
        self._machines = machines
        self._factor = factor

    def __str__(self) -> str:
        topology, count = self._machines.topology, self._machines.count
        return f"{count} machines {topology.name} of {len(topology.gpus)} GPUs, links {self._factor:g} times slower"

    def all_counters(self) -> dict[str, Counters]:
        topology, fabric = self._machines.topology, "{} fabric"
        of_host = {
            fabric.format(_host(self._machines, node)): f"m{m}.{name}-{topology.fabric_of(name)}"
            for node, (m, name) in enumerate(self._machines.places)
            if name in topology.gpus
        }
        links = self._tree.link_counters()
        return super().all_counters() | {of_host.get(name, name): found for name, found in links.items()}

    def calibrate(self, seconds: float) -> calibrate.Calibration:
        """Once around all hosts in the tree's order, so that no link carries two flows in one direction."""
        spec = self._tree.spec
        order = around(self._machines)
        flows = list(zip(order, [*order[1:], *order[:1]], strict=True))
        names = [_host(self._machines, node) for node in order]
        found = calibrate.measure(
            self._tree.popen,
            {name: spec.address(name) for name in names},
            {name: spec.host(name).nic_bytes_per_s for name in names},
            [(_host(self._machines, a), _host(self._machines, b)) for a, b in flows],
            seconds=seconds,
            bounds=calibrate.EMULATED,
        )
        network = network_of(self._machines, self._factor)
        rate = dict(zip(network.link_names, network.rates.tolist(), strict=True))
        expected = [min(rate[link] for link in self._machines.way(a, b)) * TCP_PAYLOAD_FRACTION for a, b in flows]
        return dataclasses.replace(
            found,
            flows=tuple(
                dataclasses.replace(flow, expected_bytes_per_s=wanted)
                for flow, wanted in zip(found.flows, expected, strict=True)
            ),
        )


def around(machines: Machines) -> list[int]:
    """All nodes in an order in which the tree's leaves come, a CPU's memory between those of its switches."""
    topology, order = machines.topology, list[int]()
    for m in range(machines.count):
        for cpu in topology.cpus:
            gpus = [gpu for gpu in topology.gpus if topology.cpu_of(gpu) == cpu]
            first = [gpu for gpu in gpus if topology.switch_of(gpu) == topology.switch_of(gpus[0])]
            order += [machines.node(m, name) for name in (*first, cpu, *(gpu for gpu in gpus if gpu not in first))]
    return order + [machines.server(index) for index in range(machines.servers)]


@contextmanager
def open_stage(cases: Sequence[Case], num_cores: int) -> Iterator[Inside]:
    """The lab for these cases, which are of the same machines.  LabError if there is none."""
    found = {(case.n, case.k, case.nic_bytes_per_s, machines_of(case)[0].topology.name) for case in cases}
    if len(found) != 1:
        raise LabError(f"cases of {len(found)} different machines in one lab; give each a `nic` rate of its own")
    (machines, _), factor = machines_of(cases[0]), slower(cases[0])
    tree = tree_of(machines, factor)
    if reason := tree.overload(num_cores):
        raise LabError(reason)
    with TreeLab(tree) as lab:
        yield Inside(lab, machines, factor)


@dataclass(frozen=True, kw_only=True)
class LinkCount:
    """One direction of one link, per synchronisation."""

    link: str  # as in `byteps.machine`: "m0.P0->CPU0"
    expected: float  # multiples of the tensor's bytes
    counted: float


def link_counts(record: Record) -> list[LinkCount]:
    """What the formulas say and what the kernel counted, of every link of a launch."""
    machines, way = machines_of(record.case)
    loads = link_loads(inside.schedule(machines, way), network_of(machines))
    total = record.case.nbytes * record.case.iterations
    found = []
    for link in network_of(machines).link_names:
        name, sent = _counter_of(machines, link)
        nic = record.nics[name]
        counted = nic.payload_sent if sent else nic.payload_received
        found.append(LinkCount(link=link, expected=loads.get(link, 0.0), counted=counted / total))
    return found


def _counter_of(machines: Machines, link: str) -> tuple[str, bool]:
    """The counters of a directed link, and whether its bytes are those sent."""
    if "->" not in link:  # "m0.NIC0.out", "s0.in"
        name, _, direction = link.rpartition(".")
        return name, direction == "out"
    machine, _, rest = link.partition(".")
    a, b = rest.split("->")
    if machines.nic in (a, b):
        return f"{machine}.{machines.nic}", b == machines.nic
    links = {frozenset((one.a, one.b)): (one.a, one.b) for one in machines.topology.links}
    lower, upper = links[frozenset((a, b))]
    return f"{machine}.{lower}-{upper}", a == lower


def simulated_seconds(case: Case) -> float:
    """Of the same schedule on the same links, as flows; no start-ups, no headers but those of full packets."""
    machines, way = machines_of(case)
    network = network_of(machines, slower(case) / TCP_PAYLOAD_FRACTION)
    (seconds,) = simulate([(inside.schedule(machines, way), float(case.nbytes))], network)
    return seconds
