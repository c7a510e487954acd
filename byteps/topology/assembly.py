"""From a list of devices to a `Topology`: what NCCL's XML, `nvidia-smi topo -m` and the kernel all come down to.

None of them knows how CPUs are joined or how fast memory is: every two CPUs get a link of unknown rate.
Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from byteps.machine import Link, Node, Topology, warned
from byteps.units import format_rate

_SLOW_BYTES_PER_S = 125e6  # 1 GbE: on a machine with GPUs most likely there for management


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU or NIC and where it is.  Rates in bytes per second, each way; 0.0: unknown."""

    kind: Literal["gpu", "nic"]
    name: str
    rank: int  # its place among those of its kind
    cpu: int  # NUMA node
    above: tuple[tuple[str, float], ...] = ()  # switches from the CPU down, each with the rate of its link upwards
    link_bytes_per_s: float = 0.0  # to the last of `above`, or the CPU
    network_bytes_per_s: float = 0.0  # of a NIC


def assemble(
    *,
    name: str,
    source: str,
    devices: Iterable[Device],
    cpus: Iterable[int] = (),
    nvlinked: Iterable[tuple[str, str]] = (),
    nvlink_bytes_per_s: Mapping[str, float] | None = None,
    warnings: Sequence[str] = (),
) -> Topology:
    """`cpus` may add some without a device; `nvlinked` pairs make fabrics; an end that is no GPU is an NVSwitch."""
    notes = list(warnings)
    kept = _without_management(sorted(devices, key=lambda device: (device.kind, device.rank, device.name)), notes)
    numbers = sorted({*cpus, *(device.cpu for device in kept)}) or [0]
    nodes = [Node(name=f"CPU{number}", kind="cpu") for number in numbers]
    links = [Link(a=f"CPU{a}", b=f"CPU{b}", kind="socket") for a, b in combinations(numbers, 2)]
    switches: dict[str, Link] = {}
    ends: list[Link] = []
    for device in kept:
        upper = f"CPU{device.cpu}"
        for switch, rate in device.above:
            switches[switch] = Link(a=switch, b=upper, kind="pcie", bytes_per_s=rate)
            upper = switch
        ends.append(Link(a=device.name, b=upper, kind="pcie", bytes_per_s=device.link_bytes_per_s))
    nodes += [Node(name=switch, kind="switch") for switch in sorted(switches)]
    nodes += [Node(name=device.name, kind=device.kind, bytes_per_s=device.network_bytes_per_s) for device in kept]
    links += [*(switches[switch] for switch in sorted(switches)), *ends]
    gpus = [device.name for device in kept if device.kind == "gpu"]
    rates = nvlink_bytes_per_s or {}
    for index, members in enumerate(group for group in groups(gpus, nvlinked) if len(group) > 1):
        nodes.append(Node(name=f"NVLink{index}", kind="fabric"))
        links += [Link(a=g, b=f"NVLink{index}", kind="nvlink", bytes_per_s=rates.get(g, 0.0)) for g in members]
    if gpus and not switches:
        notes.append("no PCIe switches visible, as in a virtual machine: if there are some, describe them in a file")
    return warned(Topology(name=name, nodes=tuple(nodes), links=tuple(links), source=source, warnings=tuple(notes)))


def _without_management(devices: list[Device], notes: list[str]) -> list[Device]:
    """Without NICs of 1 Gbit/s or less beside faster ones."""
    slow = [d for d in devices if d.kind == "nic" and 0 < d.network_bytes_per_s <= _SLOW_BYTES_PER_S]
    for nic in slow:
        notes.append(f"{nic.name} does {format_rate(nic.network_bytes_per_s)}: is it for management only?")
    if len(slow) == sum(device.kind == "nic" for device in devices):
        return devices
    if slow:
        notes[-1] += " NICs that slow are left out; describe the machine in a file to use them"
    return [device for device in devices if device not in slow]


def groups(names: Sequence[str], pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """The names in groups that pairs join, directly or over other ends, which need not be names; in their order."""
    above: dict[str, str] = {}

    def root(end: str) -> str:
        while end in above:
            end = above[end]
        return end

    for a, b in pairs:
        if root(a) != root(b):
            above[root(a)] = root(b)
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(root(name), []).append(name)
    return list(members.values())
