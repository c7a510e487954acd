"""A Fat-Tree of k-port switches, k^3/4 hosts: every switch a router in a namespace of its own, with multipath routes.

An edge switch is a bridge in the lab's namespace of switches, where its hosts' ports are, and a router behind it by a
link that is never the limit.  All other links are veth pairs with a token bucket of one rate on either end.

    host [eth0] -- [p0] bridge -- [hosts] edge0 [up0] -- [down0] agg0 [up0] -- [down0] core0
                                          edge0 [up1] -- [down0] agg1 [up1] -- [down0] core3

Upwards a router has one route with k/2 next hops, downwards one per host.  Which of the next hops a flow gets is the
kernel's hash of its addresses and ports, with a seed that differs from router to router.  That is hash policy 3 with
the fields of policy 1 (5-tuple), since policy 1 itself will not do between namespaces of one machine: it takes the hash
that the sending socket has left in the packet, the same number in every router, and so a flow that an edge switch sends
to its first aggregation switch is sent on to the first core switch, and half of the core has nothing to do.
Seeds need Linux 6.11.

Source: Al-Fares et al., SIGCOMM 2008.  Simulated in `byteps.network.fat_tree`; hosts are in its order.
Pure: no process, no file, no clock.  `scripts.fat_tree_lab` applies the text.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from scripts import lab
from scripts.lab import MAX_BYTES_PER_S_PER_CORE, Batch, LabSpec

HASH_FIELDS = 0x37  # source and destination address, protocol, source and destination port
TO_HOSTS = "hosts"  # an edge router's device on its bridge


@dataclass(frozen=True, kw_only=True)
class Cable:
    """A link between two routers."""

    lower: str
    lower_device: str
    upper: str
    upper_device: str

    @property
    def name(self) -> str:
        return f"{self.lower}-{self.upper}"


@dataclass(frozen=True, kw_only=True)
class FatTreeSpec:
    """`hosts.wiring` says on which edge switch each host is: k/2 on each, and those beside the tree."""

    hosts: LabSpec
    ports: int  # k

    @property
    def half(self) -> int:
        return self.ports // 2

    @property
    def edges(self) -> tuple[str, ...]:
        return tuple(f"edge{i}" for i in range(self.ports * self.half))

    @property
    def aggregations(self) -> tuple[str, ...]:
        """k/2 a pod, pod after pod."""
        return tuple(f"agg{i}" for i in range(self.ports * self.half))

    @property
    def cores(self) -> tuple[str, ...]:
        """k/2 that have a link to the first aggregation switch of every pod, k/2 for the second, and so on."""
        return tuple(f"core{i}" for i in range(self.half * self.half))

    @property
    def routers(self) -> tuple[str, ...]:
        return (*self.edges, *self.aggregations, *self.cores)

    @property
    def bytes_per_s(self) -> float:
        return self.hosts.hosts[0].nic_bytes_per_s

    @property
    def cables(self) -> tuple[Cable, ...]:
        half, found = self.half, []
        for i, edge in enumerate(self.edges):
            pod, place = divmod(i, half)
            for up in range(half):
                upper = self.aggregations[pod * half + up]
                found.append(Cable(lower=edge, lower_device=f"up{up}", upper=upper, upper_device=f"down{place}"))
        for i, aggregation in enumerate(self.aggregations):
            pod, place = divmod(i, half)
            for up in range(half):
                upper = self.cores[place * half + up]
                found.append(Cable(lower=aggregation, lower_device=f"up{up}", upper=upper, upper_device=f"down{pod}"))
        return tuple(found)

    def below(self, router: str) -> dict[str, tuple[int, ...]]:
        """By the device that leads to them: numbers of the hosts under a router."""
        if router in self.edges:
            here = self.edges.index(router)
            return {TO_HOSTS: tuple(i for i, (edge,) in enumerate(self.hosts.wiring) if edge == here)}
        return {
            one.upper_device: tuple(host for hosts in self.below(one.lower).values() for host in hosts)
            for one in self.cables
            if one.upper == router
        }

    def overload(self, num_cores: int) -> str:
        """Why a machine of `num_cores` cannot carry this lab, or "" if it can."""
        links = len(self.hosts.hosts) + len(self.cables)
        total, allowed = links * self.bytes_per_s, MAX_BYTES_PER_S_PER_CORE * num_cores
        if total <= allowed:
            return ""
        return (
            f"{links} links of {total * 8e-9:.3g} Gbit/s in sum are more than the {allowed * 8e-9:.3g} Gbit/s that "
            f"{num_cores} cores can emulate; use slower ones"
        )


def fat_tree(
    ports: int, bytes_per_s: float, *, beside: Sequence[str] = (), subnet: str = "10.77.0.0/16"
) -> FatTreeSpec:
    """Hosts gpu0, gpu1, ... in the order of pods and edge switches; those `beside` the tree are on the first one."""
    if ports < 2 or ports % 2:
        raise ValueError(f"fat tree of switches with {ports} ports; use an even number of 2 or more")
    half, count = ports // 2, ports**3 // 4
    flat = lab.star(dict.fromkeys([*(f"gpu{i}" for i in range(count)), *beside], bytes_per_s), subnet=subnet)
    wiring = (*((i // half,) for i in range(count)), *((0,) for _ in beside))
    return FatTreeSpec(
        hosts=LabSpec(hosts=flat.hosts, prefix_len=flat.prefix_len, wiring=wiring),
        ports=ports,
    )


def additions(spec: FatTreeSpec, prefix: str) -> tuple[tuple[Batch, ...], ...]:
    """What comes after `scripts.lab.bring_up`, in stages; the batches of one stage are independent of each other."""
    inside = {router: lab.host_namespace(prefix, router) for router in spec.routers}
    switch = lab.switch_namespace(prefix)
    made = Batch(tool="ip", namespace="", lines=tuple(f"netns add {name}" for name in inside.values()))
    joined = [
        Batch(tool="ip", namespace=switch, lines=tuple(_edge_lines(spec, inside))),
        Batch(
            tool="ip",
            namespace="",
            lines=tuple(
                f"link add {one.lower_device} netns {inside[one.lower]} type veth "
                f"peer name {one.upper_device} netns {inside[one.upper]}"
                for one in spec.cables
            ),
        ),
    ]
    last = []
    for number, router in enumerate(spec.routers, start=1):
        devices = [one.lower_device for one in spec.cables if one.lower == router]
        devices += [one.upper_device for one in spec.cables if one.upper == router]
        shapes = tuple(lab.shape(device, spec.bytes_per_s, spec.hosts.queue_bytes) for device in devices)
        last += [
            Batch(tool="sh", namespace=inside[router], lines=_kernel_lines(number)),
            Batch(tool="ip", namespace=inside[router], lines=tuple(_router_lines(spec, router))),
            Batch(tool="tc", namespace=inside[router], lines=shapes),
        ]
    for i, name in enumerate(spec.hosts.names):
        last.append(Batch(tool="ip", namespace=lab.host_namespace(prefix, name), lines=tuple(_host_lines(spec, i))))
    return ((made,), tuple(joined), tuple(last))


def _edge_lines(spec: FatTreeSpec, inside: dict[str, str]) -> list[str]:
    lines = []
    for i, edge in enumerate(spec.edges):
        lines += [
            f"link add e{i} type veth peer name {TO_HOSTS} netns {inside[edge]}",
            f"link set e{i} addrgenmode none",
            f"link set e{i} master br{i} up",
        ]
    return lines


def _kernel_lines(seed: int) -> tuple[str, ...]:
    net = "/proc/sys/net/ipv4"
    return (
        f"echo 1 >{net}/ip_forward",
        f"echo 3 >{net}/fib_multipath_hash_policy",
        f"echo {HASH_FIELDS} >{net}/fib_multipath_hash_fields",
        f"echo {seed} >{net}/fib_multipath_hash_seed",
        f"for f in all default; do echo 0 >{net}/conf/$f/rp_filter; done",  # answers come another way
    )


def _router_lines(spec: FatTreeSpec, router: str) -> list[str]:
    lines = ["link set lo up"]
    if router in spec.edges:
        lines += [
            f"link set {TO_HOSTS} addrgenmode none up",
            f"addr add {_gateway(spec, spec.edges.index(router))}/32 dev {TO_HOSTS}",
        ]
    up, down = [], dict[str, str]()
    for number, one in enumerate(spec.cables):
        lower, upper = _ends(spec, number)
        if one.lower == router:
            lines += _link_lines(one.lower_device, lower)
            up.append(f"nexthop via {upper} dev {one.lower_device}")
        if one.upper == router:
            lines += _link_lines(one.upper_device, upper)
            down[one.upper_device] = f"via {lower} "
    for device, hosts in spec.below(router).items():
        lines += [f"route add {spec.hosts.hosts[i].address}/32 {down.get(device, '')}dev {device}" for i in hosts]
    if up:
        lines.append(f"route add {_subnet(spec)} {' '.join(up)}")
    return lines


def _link_lines(device: str, address: str) -> list[str]:
    return [f"link set {device} addrgenmode none up", f"addr add {address}/31 dev {device}"]


def _host_lines(spec: FatTreeSpec, index: int) -> list[str]:
    """Neighbours on the bridge are reached by it, all others by the router."""
    own, (edge,) = spec.hosts.hosts[index].address, spec.hosts.wiring[index]
    end = f"dev {lab.NIC} src {own} congctl {spec.hosts.congestion_control}"
    neighbours = [i for i in spec.below(spec.edges[edge])[TO_HOSTS] if i != index]
    return [
        *(f"route replace {spec.hosts.hosts[i].address}/32 {end}" for i in neighbours),
        f"route replace {_subnet(spec)} via {_gateway(spec, edge)} {end} onlink",
    ]


def _subnet(spec: FatTreeSpec) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Interface(f"{spec.hosts.hosts[0].address}/{spec.hosts.prefix_len}").network


def _gateway(spec: FatTreeSpec, edge: int) -> str:
    """An edge router's address on its bridge, from the end of the hosts' subnet."""
    return str(_subnet(spec)[-2 - edge])


def _ends(spec: FatTreeSpec, number: int) -> tuple[str, str]:
    """Addresses of a cable's lower and upper end, in the subnet after the hosts'."""
    first = _subnet(spec).broadcast_address + 1 + 2 * number
    return str(first), str(first + 1)
