"""What the facts that preflight gathered say: `problems` judges one host's, `unequal` those of all together.  Pure."""

import ipaddress
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from byteps.hosts import Host
from byteps.theory import TCP_PAYLOAD_FRACTION
from byteps.units import format_nbytes, format_rate

HEADING = ("python", "free", "clock", "NIC", "MTU", "ports", "rate", "GPUs", "inside", "root")
Facts = dict[str, Any]  # of host_probe.py

_LEAST_PYTHON = (3, 11)
_LEAST_FREE = {"gpu": 12 << 30, "cpu": 2 << 30}  # torch for CUDA with what it needs takes 6 GB, peers bring their own
_SHARED = ("nfs", "nfs4", "cifs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "fuse.sshfs", "fuse.glusterfs")
_MOST_SKEW_SECONDS = 1.0
_LEAST_RATE = 0.9  # of what nic promises
_FLOW_BYTES_PER_S = 1.25e9  # what one stream of this program may carry: faster NICs get more of them


@dataclass(frozen=True)
class Finding:
    text: str
    todo: str
    severity: Literal["failed", "note"] = "failed"


@dataclass(kw_only=True)
class Look:
    """What was found out about one host."""

    host: Host
    facts: Facts
    skew_seconds: float = 0.0  # at least: host's clock less this one's
    unreached: Mapping[str, str] = field(default_factory=dict)
    bytes_per_s: float | None = None  # what arrived from the neighbour
    expected: float = 0.0  # what could have arrived

    @property
    def nics(self) -> list[str | None]:
        """The interfaces' names, None for one that is not there."""
        wanted = self.host.interfaces or (self.facts["address"],)
        return [find_interface(one, self.facts["interfaces"]) for one in wanted]


def find_interface(wanted: str, there: Mapping[str, Mapping[str, Any]]) -> str | None:
    """By its name, or a network or address that it has."""
    if wanted in there:
        return wanted
    try:
        network = ipaddress.ip_network(wanted, strict=False)
    except ValueError:
        return None
    for name, interface in there.items():
        if any(ipaddress.ip_address(one) in network for one in interface["addresses"]):
            return name
    return None


def problems(look: Look, *, cap: bool = False, measured: bool = True) -> list[Finding]:
    """What is wrong with one host, and what a user may want to know."""
    host, facts = look.host, look.facts
    found = [*_python_problems(host, facts), *_nic_problems(look)]
    least = _LEAST_FREE[host.role] if not host.environment else 1 << 30
    if facts["free_bytes"] < least:
        text = f"{format_nbytes(facts['free_bytes'])} free for {host.workdir}, {format_nbytes(least)} are needed"
        found.append(Finding(text, "free some, or set install.workdir"))
    if facts["file_system"] in _SHARED:
        text = f"{host.workdir} is on {facts['file_system']}, which other hosts may share"
        found.append(Finding(text, "set install.workdir to a folder of its own disk, such as /var/tmp/byteps"))
    if not facts["writable"]:
        found.append(Finding(f"{host.workdir} cannot be made or written", "set install.workdir"))
    if abs(look.skew_seconds) > _MOST_SKEW_SECONDS:
        text = f"its clock is {look.skew_seconds:+.1f} s off this one's"
        found.append(Finding(text, "let NTP set it (timedatectl set-ntp true); records carry its times", "note"))
    if not facts["sudo"]:
        text = "neither root nor `sudo -n`"
        severity: Literal["failed", "note"] = "failed" if cap else "note"
        todo = "allow `sudo -n tc` for network.cap" if cap else "needed only for network.cap and to install packages"
        found.append(Finding(text, todo, severity))
    if cap and not facts["tc"]:
        found.append(Finding("tc is not here, which network.cap needs", "install iproute2"))
    gpus = len(facts["gpus"])
    if measured and gpus < host.gpus:
        text = f"{gpus} of {host.gpus} GPUs seen by nvidia-smi"
        found.append(Finding(text, "correct gpus, or look at the driver; without GPUs, CPU tensors are summed", "note"))
    for name, reason in look.unreached.items():
        found.append(Finding(f"cannot connect to {name}: {reason}", "let all TCP ports through between the hosts"))
    if look.bytes_per_s is not None and look.bytes_per_s < _LEAST_RATE * look.expected:
        text = f"{format_rate(look.bytes_per_s)} arrive of {format_rate(look.expected)} that nic promises"
        todo = "correct nic, or look who else uses the network; the records' bounds are computed from nic"
        found.append(Finding(text, todo, "note"))
    return found


def _python_problems(host: Host, facts: Facts) -> list[Finding]:
    version = ".".join(map(str, facts["python"]))
    if host.environment:
        if not facts["environment"]:
            return [Finding(f"{host.environment} is no virtual environment", "correct install.environment")]
        return []
    if tuple(facts["python"]) < _LEAST_PYTHON:
        return [Finding(f"{facts['executable']} is Python {version}", "set install.python to a Python 3.11 or later")]
    if not facts["venv"] and not facts["root"]:
        return [Finding("its Python has no venv", "as root: apt-get install python3-venv")]
    return []


def _nic_problems(look: Look) -> list[Finding]:
    host, there = look.host, look.facts["interfaces"]
    listed = ", ".join(f"{name} ({', '.join(one['addresses']) or 'no address'})" for name, one in there.items())
    if not look.facts["address"]:
        return [Finding(f"{host.address} does not resolve there", "use IP addresses, or fix /etc/hosts")]
    found = []
    if find_interface(look.facts["address"], there) is None:
        text = f"none of its interfaces has the address {host.address}; it has {listed}"
        found.append(Finding(text, "give the address that the host itself has"))
    for wanted, name in zip(host.interfaces, look.nics, strict=False):
        if name is None:
            found.append(Finding(f"no interface {wanted}; it has {listed}", "correct interface"))
        elif not there[name]["addresses"]:
            found.append(Finding(f"{name} has no address", "configure it, or name another interface"))
    return found


def unequal(looks: Sequence[Look]) -> dict[str, Finding]:
    """Hosts whose MTU is not that of most: a larger packet than the other end takes is lost without a word."""
    mtus = {look.host.name: mtu_of(look) for look in looks if mtu_of(look)}
    if len(set(mtus.values())) < 2:
        return {}
    counts = list(mtus.values())
    common = max(sorted(set(counts)), key=counts.count)
    return {
        name: Finding(
            f"MTU {mtu}, {common} on other hosts", f"ip link set dev NIC mtu {common}, or the same everywhere"
        )
        for name, mtu in mtus.items()
        if mtu != common
    }


def mtu_of(look: Look) -> int:
    """Of the first NIC; 0 if there is none."""
    name = look.nics[0]
    return int(look.facts["interfaces"][name]["mtu"]) if name is not None else 0


def inside(facts: Facts) -> str:
    """How its GPUs are joined."""
    if not facts["gpus"]:
        return "-"
    return "NVLink" if re.search(r"\bNV[0-9]+\b", facts["topology"]) else "PCIe only"


def clock_skew(asked: float, told: float, heard: float) -> float:
    """How far the host's clock is off at least: 0.0 whenever what it told lies between asking and hearing."""
    return max(told - heard, 0.0) + min(told - asked, 0.0)


def ring(looks: Sequence[Look]) -> list[tuple[Look, Look, float]]:
    """Who sends to whom while the rates are measured, and what can arrive of that (bytes/s)."""
    if len(looks) < 2:
        return []
    pairs = zip(looks, [*looks[1:], looks[0]], strict=True)
    return [(one, to, min(one.host.nics[0], to.host.nics[0]) * TCP_PAYLOAD_FRACTION) for one, to in pairs]


def flows(expected: float) -> int:
    """Streams side by side."""
    return max(1, math.ceil(expected / _FLOW_BYTES_PER_S))


def cells(look: Look, hosts: int) -> tuple[str, ...]:
    """A row under HEADING."""
    facts = look.facts
    python = facts["environment"] or ".".join(map(str, facts["python"]))
    names = ", ".join(f"{name or '?'}" for name in look.nics)
    rate = "-" if look.bytes_per_s is None else f"{_mbit(look.bytes_per_s)} of {_mbit(look.expected)} Mbit/s"
    ports = "-" if hosts < 2 else f"{hosts - 1 - len(look.unreached)} of {hosts - 1}"
    root = "yes" if facts["root"] else "sudo" if facts["sudo"] else "no"
    free = f"{facts['free_bytes'] / 1e9:.0f} GB"
    clock = f"{look.skew_seconds:+.1f} s" if abs(look.skew_seconds) >= 0.1 else "ok"
    gpus = f"{len(facts['gpus'])} of {look.host.gpus}"
    return python, free, clock, names, str(mtu_of(look) or "?"), ports, rate, gpus, inside(facts), root


def _mbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8e-6:.0f}"
