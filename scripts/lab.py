"""What an emulated cluster consists of: hosts and one switch, as text for `ip -batch`, `tc -batch` and `sh`.

Every host is a network namespace with one NIC, a veth whose other end is a port of a bridge; the bridge has a namespace
of its own, so nothing of the machine's own network is touched.  Where all hosts are on the same switches, the first of
these has an address, the subnet's last, and processes may run in it: what they send passes each host's port and no NIC.

    host a [eth0] ---- [p0] switch [p1] ---- [eth0] host b

A NIC of R bytes/s, full duplex, is two token buckets: tbf on the host's eth0 (what it sends) and on its port of the
switch (what it receives).  tbf counts 1514 bytes per full packet of 1448 payload bytes, so payload arrives at
R * 1448/1514.  The bucket has to hold one whole GSO packet; below that tbf segments in software and the sender spins
(22 instead of 2 core-seconds per GiB).  Slow links get smaller GSO packets instead of a larger bucket: with 64 KiB
packets a sender keeps a slow link for milliseconds, and many-to-one traffic becomes unfair (Jain 0.93 instead of 0.98).
The queue before the bucket holds 10 ms, and at least 1 MiB: what 8 senders have in flight at once does not shrink with
the rate.  8 to 1 at 200 Mbit/s, synchronised rounds of 64 KiB, 32 in flight each, share of the link used and packets
lost (3 or 4 runs): 256 KiB 0.84 to 0.91, 71 to 114 lost; 512 KiB 0.84 to 0.95, 1 MiB 0.93 to 0.96, 2 MiB 0.84 to 0.94,
none lost.

Every route says `congctl cubic`, or what a spec asks for.  A route attribute needs no sysctl outside the namespace and
also holds for programmes that choose nothing.  Routes to the host itself have it too: a default of bbr would pace even
loopback.

Pure: no process, no file, no clock.  `scripts.netns` applies the text.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

CONGESTION_CONTROL = "cubic"
NIC = "eth0"  # of a host with one
MAX_BYTES_PER_S_PER_CORE = 0.5e9  # 4 Gbit/s of NIC rate in sum; above, the cores are what one measures

SWITCH = "switch"  # instead of a host: where processes of the switch itself run

_KIB = 1024
_GSO_HEADERS_BYTES = 256  # a GSO packet is its payload and one set of headers
_SMALL_GSO_UP_TO_BYTES_PER_S = 25e6  # 200 Mbit/s
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*(-[A-Za-z0-9_.]+)*")
_CONGESTION_CONTROL = re.compile(r"[a-z][a-z0-9_]{0,14}")
_OWNED_NAME = re.compile(r"byteps-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]+-.+")


@dataclass(frozen=True, kw_only=True)
class Host:
    """One machine of the lab: its name, its IPv4 address, and its NIC's rate each way in bytes per second."""

    name: str
    address: str
    nic_bytes_per_s: float

    def __post_init__(self) -> None:
        if not _HOST_NAME.fullmatch(self.name) or self.name == SWITCH:
            raise ValueError(f"host name {self.name!r}: use letters, digits, '-', '_', '.', and not {SWITCH!r}")
        if not 1e3 <= self.nic_bytes_per_s <= 125e9:
            raise ValueError(
                f"host {self.name}: nic_bytes_per_s = {self.nic_bytes_per_s!r}, allowed are 1e3 to 125e9 "
                "(8 kbit/s to 1 Tbit/s); bytes, not bits"
            )
        ipaddress.IPv4Address(self.address)


@dataclass(frozen=True, kw_only=True)
class LabSpec:
    """Hosts on one switch, in one subnet of `prefix_len` bits; or all on `nics` switches, in subnets in a row.

    `wiring`: by host, the switch of each of its NICs, where not all hosts are on the same ones.
    `queue_bytes`: what every port of a switch holds before it drops; 0: as much as its rate asks for (`shaping`).
    """

    hosts: tuple[Host, ...]
    prefix_len: int = 16
    nics: int = 1
    wiring: tuple[tuple[int, ...], ...] = ()
    congestion_control: str = CONGESTION_CONTROL
    queue_bytes: int = 0

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ValueError("a lab needs at least one host")
        for what, values in (("name", self.names), ("address", tuple(host.address for host in self.hosts))):
            if len(set(values)) != len(values):
                twice = sorted({value for value in values if values.count(value) > 1})
                raise ValueError(f"host {what} used twice: {', '.join(twice)}")
        if len({_subnet(host.address, self.prefix_len) for host in self.hosts}) != 1:
            raise ValueError(f"hosts are not all in one /{self.prefix_len} subnet")
        if not _CONGESTION_CONTROL.fullmatch(self.congestion_control):
            raise ValueError(f"congestion control {self.congestion_control!r}: a kernel's name for one, such as cubic")
        for host in self.hosts:
            least = shaping(host.nic_bytes_per_s).burst_bytes
            if self.queue_bytes and self.queue_bytes < least:
                raise ValueError(
                    f"queues of {self.queue_bytes} bytes: at least {least} (a burst) with the NIC of {host.name}"
                )
        if self.wiring and [len(switches) for switches in self.wiring] != [self.nics] * len(self.hosts):
            raise ValueError(
                f"wiring of {len(self.wiring)} hosts; give {len(self.hosts)} hosts {self.nics} switches each"
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)

    def host(self, name: str) -> Host:
        for host in self.hosts:
            if host.name == name:
                return host
        raise ValueError(f"no host {name!r} in this lab; it has {', '.join(self.names)}")

    def switch_of(self, index: int, nic: int) -> int:
        """Of a NIC of the host number `index`."""
        return self.wiring[index][nic] if self.wiring else nic

    def address(self, name: str, nic: int = 0) -> str:
        """Of a host's NIC, or of the switch, where there is one for all."""
        if name == SWITCH:
            if self.wiring:
                raise ValueError("hosts of this lab are on different switches, so none of them has an address")
            return str(_subnet(self.hosts[0].address, self.prefix_len)[-2])
        return _address(self.host(name), nic, self.prefix_len)

    def expected_bytes_per_s(self, name: str) -> float:
        """Payload per second that TCP gets through the host's NIC, one way."""
        from byteps.theory import (
            TCP_PAYLOAD_FRACTION,
        )  # here, because it brings numpy, and the guardian has no need of it

        return self.host(name).nic_bytes_per_s * TCP_PAYLOAD_FRACTION


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """Parameters of one token bucket; `gso_max_bytes` = 0 leaves the device's own limit."""

    burst_bytes: int
    limit_bytes: int
    gso_max_bytes: int

    @property
    def largest_packet_bytes(self) -> int:
        return (self.gso_max_bytes or 64 * _KIB) + _GSO_HEADERS_BYTES


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Lines for one run of a tool inside one namespace ("" is the machine's own)."""

    tool: Literal["ip", "tc", "sh"]
    namespace: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(line + "\n" for line in self.lines)


def star(hosts: Mapping[str, float], *, subnet: str = "10.77.0.0/16", nics: int = 1) -> LabSpec:
    """Hosts by name with their NICs' bytes per second on one switch; addresses in order, from the subnet's first.

    With several NICs, each has this rate, and a switch and a subnet of its own.
    """
    network = ipaddress.IPv4Network(subnet)
    if len(hosts) > network.num_addresses - 3:
        raise ValueError(f"{len(hosts)} hosts and a switch do not fit into {subnet}; give a larger subnet")
    return LabSpec(
        hosts=tuple(
            Host(name=name, address=str(network[i]), nic_bytes_per_s=rate)
            for i, (name, rate) in enumerate(hosts.items(), start=1)
        ),
        prefix_len=network.prefixlen,
        nics=nics,
    )


def bcube(
    ports: int, levels: int, nic_bytes_per_s: float, *, beside: Sequence[str] = (), subnet: str = "10.77.0.0/16"
) -> LabSpec:
    """Hosts gpu0, gpu1, ... of BCube(ports, levels), which has ports^levels: a NIC per level, on a switch of as many
    ports with the hosts whose numbers, written in base `ports`, differ in that digit alone.  They forward nothing.
    Hosts `beside` it are on the first switch of every level.
    """
    count = ports**levels
    names = [*(f"gpu{i}" for i in range(count)), *beside]
    flat = star(dict.fromkeys(names, nic_bytes_per_s), subnet=subnet, nics=levels)
    switches = count // ports
    wiring = tuple(
        tuple(
            level * switches + host // ports ** (level + 1) * ports**level + host % ports**level
            for level in range(levels)
        )
        for host in range(count)
    ) + (tuple(level * switches for level in range(levels)),) * len(beside)
    return LabSpec(hosts=flat.hosts, prefix_len=flat.prefix_len, nics=levels, wiring=wiring)


def shaping(bytes_per_s: float) -> Shaping:
    slow = bytes_per_s <= _SMALL_GSO_UP_TO_BYTES_PER_S
    return Shaping(
        burst_bytes=32 * _KIB if slow else max(128 * _KIB, round(bytes_per_s * 1e-3)),
        limit_bytes=max(1024 * _KIB, round(bytes_per_s * 10e-3)),
        gso_max_bytes=16 * _KIB if slow else 0,
    )


def shape(device: str, bytes_per_s: float, queue_bytes: int = 0) -> str:
    """A line for tc; `queue_bytes` 0: as much as the rate asks for."""
    bucket = shaping(bytes_per_s)
    limit = queue_bytes or bucket.limit_bytes
    return (
        f"qdisc replace dev {device} root tbf rate {round(bytes_per_s * 8)}bit burst {bucket.burst_bytes} limit {limit}"
    )


def overload(spec: LabSpec, num_cores: int) -> str:
    """Why a machine of `num_cores` cannot carry this lab, or "" if it can."""
    total = spec.nics * sum(host.nic_bytes_per_s for host in spec.hosts)
    allowed = MAX_BYTES_PER_S_PER_CORE * num_cores
    if total <= allowed:
        return ""
    return (
        f"{spec.nics * len(spec.hosts)} NICs of {total * 8e-9:.3g} Gbit/s in sum are more than the "
        f"{allowed * 8e-9:.3g} Gbit/s that {num_cores} cores can emulate; use fewer hosts or slower NICs"
    )


def run_prefix(pid: int, start_ticks: int, token: str) -> str:
    """The name of one run: its creator (start time too, as ids are reused) and a token, as a creator has many runs."""
    return f"byteps-{pid}-{start_ticks}-{token}"


def creator_of(namespace: str) -> tuple[int, int] | None:
    """Process id and start time in the name of a namespace of ours, None for a foreign one."""
    match = _OWNED_NAME.fullmatch(namespace)
    return (int(match["pid"]), int(match["start"])) if match else None


def host_namespace(prefix: str, host: str) -> str:
    return f"{prefix}-{host}"


def switch_namespace(prefix: str) -> str:
    return f"{prefix}-{SWITCH}"


def device(nic: int) -> str:
    """A host's end of a link."""
    return f"eth{nic}"


def port(index: int, nic: int = 0) -> str:
    """The switch's end of the link to the host number `index`."""
    return f"p{index}" if nic == 0 else f"p{index}n{nic}"


def namespaces(spec: LabSpec, prefix: str) -> tuple[str, ...]:
    return (switch_namespace(prefix), *(host_namespace(prefix, host.name) for host in spec.hosts))


def bring_up(spec: LabSpec, prefix: str) -> tuple[tuple[Batch, ...], ...]:
    """Stages in order; the batches of one stage are independent of each other."""
    switch = switch_namespace(prefix)
    made = Batch(tool="ip", namespace="", lines=tuple(f"netns add {name}" for name in namespaces(spec, prefix)))
    nics = range(spec.nics)
    tc_ports = tuple(
        shape(port(i, nic), host.nic_bytes_per_s, spec.queue_bytes) for i, host in enumerate(spec.hosts) for nic in nics
    )
    second_half = [
        Batch(tool="tc", namespace=switch, lines=tc_ports),
        Batch(tool="sh", namespace=switch, lines=(_NO_BRIDGE_FIREWALL,)),
    ]
    for host in spec.hosts:
        inside = host_namespace(prefix, host.name)
        second_half.append(Batch(tool="ip", namespace=inside, lines=_host_lines(host, spec)))
        shapes = tuple(shape(device(nic), host.nic_bytes_per_s) for nic in nics)
        second_half.append(Batch(tool="tc", namespace=inside, lines=shapes))
        second_half.append(Batch(tool="sh", namespace=inside, lines=(_NO_TCP_MEMORY,)))
    return ((made,), (Batch(tool="ip", namespace=switch, lines=_switch_lines(spec, prefix)),), tuple(second_half))


def bring_down(names: Iterable[str]) -> Batch:
    """A namespace takes its links with it, so that names are all there is to remove."""
    return Batch(tool="ip", namespace="", lines=tuple(f"netns del {name}" for name in names))


# Frames between ports must not pass the machine's packet filter, which a bridge otherwise does by default.
_NO_BRIDGE_FIREWALL = 'for f in /proc/sys/net/bridge/bridge-nf-call-*; do if [ -e "$f" ]; then echo 0 >"$f"; fi; done'
# The kernel remembers ssthresh per destination: one contender would start with what the one before it found out.
_NO_TCP_MEMORY = "echo 1 >/proc/sys/net/ipv4/tcp_no_metrics_save"


def _switch_lines(spec: LabSpec, prefix: str) -> tuple[str, ...]:
    lines = ["link set lo up"]
    pairs = [(nic, i) for nic in range(spec.nics) for i in range(len(spec.hosts))]
    for switch in sorted({spec.switch_of(i, nic) for nic, i in pairs}):
        # a bridge for every NIC of a host: on one, it would answer for all its addresses on all of them
        lines += [
            f"link add br{switch} type bridge stp_state 0 mcast_snooping 0",
            f"link set br{switch} addrgenmode none up",
        ]
    if not spec.wiring:
        lines.append(f"addr add {spec.address(SWITCH)}/{spec.prefix_len} dev br0")
    for nic in range(spec.nics):
        for i, host in enumerate(spec.hosts):
            inside = host_namespace(prefix, host.name)
            lines += [
                f"link add {port(i, nic)} type veth peer name {device(nic)} netns {inside}",
                f"link set {port(i, nic)} addrgenmode none",
                f"link set {port(i, nic)} master br{spec.switch_of(i, nic)}{_gso(host)} up",
            ]
    return tuple(lines)


def _host_lines(host: Host, spec: LabSpec) -> tuple[str, ...]:
    congctl = f"congctl {spec.congestion_control}"
    local = "route replace table local local"
    lines = ["link set lo up"]
    for nic in range(spec.nics):
        dev, address = device(nic), _address(host, nic, spec.prefix_len)
        lines += [
            f"link set {dev} addrgenmode none",
            f"link set {dev}{_gso(host)} up",
            f"addr add {address}/{spec.prefix_len} dev {dev}",
            f"route replace {_subnet(address, spec.prefix_len)} dev {dev} src {address} {congctl}",
            f"{local} {address} dev {dev} src {address} {congctl}",
        ]
    lines.append(f"{local} 127.0.0.0/8 dev lo src 127.0.0.1 {congctl}")
    lines.append(f"{local} 127.0.0.1 dev lo src 127.0.0.1 {congctl}")
    return tuple(lines)


def _gso(host: Host) -> str:
    limit = shaping(host.nic_bytes_per_s).gso_max_bytes
    return f" gso_max_size {limit}" if limit else ""


def _address(host: Host, nic: int, prefix_len: int) -> str:
    """In the subnet that is `nic` after that of the host's first NIC."""
    return str(ipaddress.IPv4Address(host.address) + (nic << (32 - prefix_len)))


def _subnet(address: str, prefix_len: int) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Interface(f"{address}/{prefix_len}").network
