"""A lab whose switches are joined into a tree, and hosts with a second network of their own: the inside of machines.

A bridge stands for whatever forwards: a PCIe switch, a CPU, the network.  A *trunk* joins two bridges: a veth pair with
a token bucket on either end, so that each direction has the link's rate.  A *fabric* is one more bridge, on which some
hosts have a second NIC, nv0, each of its own rate, without an address: hosts of a fabric have routes to each other's
address over it, so whoever sends to that address passes the fabric, and everybody else the tree.

    gpu0 [eth0] -- br0 [t0a] ---- [t0b] br1 -- [eth0] cpu0
         [nv0] --- br9 --- [nv0] gpu1

All other things are those of `scripts.lab`.  GSO packets are small everywhere: a large one from a fast link would be
cut in software by the bucket of a slow one.  Pure: no process, no file, no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scripts import lab
from scripts.lab import MAX_BYTES_PER_S_PER_CORE, Batch, LabSpec

FABRIC_NIC = "nv0"
_GSO = "gso_max_size 16384"


@dataclass(frozen=True, kw_only=True)
class Trunk:
    """A link between two bridges, full duplex."""

    name: str
    a: int
    b: int
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class TreeSpec:
    """`hosts.wiring` says on which bridge each host is; trunks make one tree of all bridges."""

    hosts: LabSpec
    trunks: tuple[Trunk, ...]
    fabrics: tuple[Mapping[str, float], ...] = ()  # by host: bytes/s of its second NIC, each way
    host_links: tuple[str, ...] = field(default=())  # by host: what its link is called in counters; its name if none

    def __post_init__(self) -> None:
        bridges = {row[0] for row in self.hosts.wiring}
        group = {bridge: bridge for bridge in bridges | {end for trunk in self.trunks for end in (trunk.a, trunk.b)}}
        for trunk in self.trunks:
            if group[trunk.a] == group[trunk.b]:
                raise ValueError(f"trunk {trunk.name} closes a circle of switches, in which frames would never end")
            old, new = group[trunk.a], group[trunk.b]
            group = {bridge: new if found == old else found for bridge, found in group.items()}
        if len(set(group.values())) != 1 or not bridges <= set(group):
            raise ValueError(f"switches {sorted(group)} are not one tree; join them by trunks")
        twice = [host for fabric in self.fabrics for host in fabric]
        if len(twice) != len(set(twice)) or not set(twice) <= set(self.hosts.names):
            raise ValueError(f"hosts of fabrics are {twice}; each must be a host of the lab, in one fabric at most")

    def link_of(self, index: int) -> str:
        return self.host_links[index] if self.host_links else self.hosts.hosts[index].name

    def overload(self, num_cores: int) -> str:
        """Why a machine of `num_cores` cannot carry this lab, or "" if it can."""
        total = sum(host.nic_bytes_per_s for host in self.hosts.hosts) + sum(one.bytes_per_s for one in self.trunks)
        total += sum(rate for fabric in self.fabrics for rate in fabric.values())
        allowed = MAX_BYTES_PER_S_PER_CORE * num_cores
        if total <= allowed:
            return ""
        return (
            f"links of {total * 8e-9:.3g} Gbit/s in sum are more than the {allowed * 8e-9:.3g} Gbit/s that {num_cores} "
            "cores can emulate; use fewer or slower ones"
        )


def trunk_port(index: int, end: str) -> str:
    """`end` is "a" or "b"."""
    return f"t{index}{end}"


def fabric_port(index: int) -> str:
    """The fabric's end of the link to host number `index`."""
    return f"f{index}"


def additions(spec: TreeSpec, prefix: str) -> tuple[tuple[Batch, ...], ...]:
    """What comes after `scripts.lab.bring_up`, in stages; the batches of one stage are independent of each other."""
    switch = lab.switch_namespace(prefix)
    inside = {host.name: lab.host_namespace(prefix, host.name) for host in spec.hosts.hosts}
    hosts = [
        Batch(tool="ip", namespace=inside[name], lines=(f"link set {lab.NIC} {_GSO}",)) for name in spec.hosts.names
    ]
    shapes = []
    for index, trunk in enumerate(spec.trunks):
        shapes += [lab.shape(trunk_port(index, end), trunk.bytes_per_s) for end in "ab"]
    for name, rate in _rates(spec).items():
        shapes.append(lab.shape(fabric_port(spec.hosts.names.index(name)), rate))
        hosts += [
            Batch(tool="ip", namespace=inside[name], lines=_fabric_lines(spec, name)),
            Batch(tool="tc", namespace=inside[name], lines=(lab.shape(FABRIC_NIC, rate),)),
        ]
    return (
        (Batch(tool="ip", namespace=switch, lines=_bridge_lines(spec, inside)),),
        (Batch(tool="tc", namespace=switch, lines=tuple(shapes)), *hosts),
    )


def _bridge_lines(spec: TreeSpec, inside: Mapping[str, str]) -> tuple[str, ...]:
    there = {row[0] for row in spec.hosts.wiring}
    wanted = {end for trunk in spec.trunks for end in (trunk.a, trunk.b)} - there
    fabrics = [f"nvbr{number}" for number in range(len(spec.fabrics))]
    lines = []
    for bridge in [*(f"br{number}" for number in sorted(wanted)), *fabrics]:
        lines += [
            f"link add {bridge} type bridge stp_state 0 mcast_snooping 0",
            f"link set {bridge} addrgenmode none up",
        ]
    for index, trunk in enumerate(spec.trunks):
        a, b = trunk_port(index, "a"), trunk_port(index, "b")
        lines.append(f"link add {a} type veth peer name {b}")
        for end, bridge in ((a, f"br{trunk.a}"), (b, f"br{trunk.b}")):
            lines += [f"link set {end} addrgenmode none", f"link set {end} master {bridge} {_GSO} up"]
    for bridge, fabric in zip(fabrics, spec.fabrics, strict=True):
        for name in fabric:
            end = fabric_port(spec.hosts.names.index(name))
            lines += [
                f"link add {end} type veth peer name {FABRIC_NIC} netns {inside[name]}",
                f"link set {end} addrgenmode none",
                f"link set {end} master {bridge} {_GSO} up",
            ]
    return tuple(lines)


def _fabric_lines(spec: TreeSpec, name: str) -> tuple[str, ...]:
    (fabric,) = (one for one in spec.fabrics if name in one)
    own = spec.hosts.address(name)
    return (
        f"link set {FABRIC_NIC} addrgenmode none",
        f"link set {FABRIC_NIC} {_GSO} up",
        *(
            f"route replace {spec.hosts.address(peer)}/32 dev {FABRIC_NIC} src {own} congctl {lab.CONGESTION_CONTROL}"
            for peer in fabric
            if peer != name
        ),
    )


def _rates(spec: TreeSpec) -> dict[str, float]:
    return {name: rate for fabric in spec.fabrics for name, rate in fabric.items()}
