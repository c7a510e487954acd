"""The inside of a machine as a graph: GPUs, PCIe switches, CPU sockets, NICs, NVLink fabrics, and links between them.

PCIe is a tree under each CPU, so the way between two nodes is up, over, and down; CPUs are joined by socket links.
GPUs of one fabric reach each other over it.  Each has one link to the fabric's node with the sum of its own NVLinks'
rates: exact for NVSwitch, optimistic for a mesh, where a pair has only some of those links.

A rate of 0.0 is unknown: it is taken as not limiting (infinite in `capacities`), and `warnings` names it.  Machines
are read from TOML by `machine_file`.
Pure: no I/O, no clock, no randomness.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

Kind = Literal["gpu", "switch", "cpu", "nic", "fabric"]
MOST_DEEP = 64
"""Switches above each other; PCIe has 256 buses, and each takes one."""
PRESETS = ("dgx-1v", "dgx-a100", "dgx-h100", "multi-nic", "nvlink", "pcie-only")
_ENDS = {
    "pcie": ({"gpu", "nic", "switch"}, {"switch", "cpu"}),
    "socket": ({"cpu"}, {"cpu"}),
    "nvlink": ({"gpu"}, {"fabric"}),
}


@dataclass(frozen=True, kw_only=True)
class Node:
    name: str
    kind: Kind
    bytes_per_s: float = 0.0  # nic: of the network, each way; cpu: of its memory, reads and writes; 0.0: unknown


@dataclass(frozen=True, kw_only=True)
class Link:
    """Full duplex."""

    a: str  # pcie: the lower end; nvlink: the GPU
    b: str  # pcie: the switch or CPU it hangs under; nvlink: the fabric
    kind: Literal["pcie", "socket", "nvlink"]  # socket: between CPUs, be it QPI, UPI or xGMI
    bytes_per_s: float = 0.0  # each way; 0.0: unknown


@dataclass(frozen=True, kw_only=True)
class Topology:
    """One machine.  Nodes of a kind are in the order of their ranks."""

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    source: str  # where the rates are from
    peer_efficiency: float = 1.0  # a GPU-to-GPU copy across PCIe switches loads PCIe links with bytes / peer_efficiency
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        kinds = {node.name: node.kind for node in self.nodes}
        for name, count in Counter(node.name for node in self.nodes).items():
            if count > 1 or not name or "->" in name:
                raise ValueError(f"node name {name!r} is used {count} times; names are unique, not empty, without '->'")
        for link in self.links:
            a, b = kinds.get(link.a, "no node"), kinds.get(link.b, "no node")
            if a not in _ENDS[link.kind][0] or b not in _ENDS[link.kind][1]:
                a_kinds, b_kinds = (" or ".join(sorted(allowed)) for allowed in _ENDS[link.kind])
                raise ValueError(
                    f"{link.kind} link from {link.a!r} ({a}) to {link.b!r} ({b}); expected {a_kinds} to {b_kinds}"
                )
        sockets = Counter(tuple(sorted((link.a, link.b))) for link in self.links if link.kind == "socket")
        for (a, b), count in sockets.items():
            if a == b:
                raise ValueError(f"a socket link leads from {a!r} to itself; name two different CPUs")
            if count > 1:
                raise ValueError(f"{a!r} and {b!r} have {count} socket links; give one, with their rates' sum")
        for what, rate in ((item.name, item.bytes_per_s) for item in self.nodes):
            _check_rate(what, rate)
        for link in self.links:
            _check_rate(f"the link from {link.a} to {link.b}", link.bytes_per_s)
        if not 0 < self.peer_efficiency <= 1:
            raise ValueError(f"peer_efficiency is {self.peer_efficiency}; it must be above 0 and at most 1")
        if not self.cpus:
            raise ValueError("there is no CPU; a machine has at least 1")
        uses = Counter((link.a, link.kind) for link in self.links)
        for node in self.nodes:
            tied = node.kind not in ("gpu", "nic", "switch") or uses[node.name, "pcie"] == 1
            if len(self._above(node.name)) > MOST_DEEP:
                raise ValueError(f"{node.name!r} hangs under more than {MOST_DEEP} switches, or in a circle of them")
            if not tied or kinds[self._above(node.name)[-1]] == "switch" or uses[node.name, "nvlink"] > 1:
                raise ValueError(
                    f"{node.name!r} must hang under one switch or CPU, in one fabric at most, in no circle"
                )
        for cpu in self.cpus[1:]:
            self._over_sockets(self.cpus[0], cpu)

    def _names(self, kind: Kind) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes if node.kind == kind)

    @property
    def gpus(self) -> tuple[str, ...]:
        return self._names("gpu")

    @property
    def nics(self) -> tuple[str, ...]:
        return self._names("nic")

    @property
    def cpus(self) -> tuple[str, ...]:
        return self._names("cpu")

    @property
    def switches(self) -> tuple[str, ...]:
        return self._names("switch")

    @property
    def has_nvlink(self) -> bool:
        return any(link.kind == "nvlink" for link in self.links)

    def fabric_of(self, gpu: str) -> str:
        """The fabric it is linked to; "" if none."""
        return next((link.b for link in self.links if link.kind == "nvlink" and link.a == gpu), "")

    def cpu_of(self, node: str) -> str:
        """The CPU it hangs off."""
        return self._above(node)[-1]

    def switch_of(self, device: str) -> str:
        """The top switch of its PCIe tree, right under the CPU; "" if it hangs off the CPU itself."""
        top = self._above(device)[-2]
        return top if top in self.switches else ""

    @property
    def nic_switches(self) -> tuple[str, ...]:
        """The paper's S_n: top switches with GPUs and NICs."""
        shared = {self.switch_of(nic) for nic in self.nics} - {""}
        return tuple(dict.fromkeys(s for gpu in self.gpus if (s := self.switch_of(gpu)) in shared))

    @property
    def gpu_switches(self) -> tuple[str, ...]:
        """The paper's S_g: top switches with GPUs only.  A GPU right under a CPU counts by its own name: it shares
        its lanes with nobody, as if behind a switch of its own."""
        tops = dict.fromkeys(self.switch_of(gpu) or gpu for gpu in self.gpus)
        return tuple(top for top in tops if top not in self.nic_switches)

    def route(self, a: str, b: str) -> tuple[str, ...]:
        """The directed links "x->y" on the way, hop by hop; never through a GPU or NIC."""
        fabric = self.fabric_of(a)
        if a == b:
            return ()
        if fabric and fabric == self.fabric_of(b):
            hops = [a, fabric, b]
        else:
            up, down = self._above(a), self._above(b)
            if up[-1] == down[-1]:
                top = next(node for node in up if node in down)
                hops = [*up[: up.index(top)], top, *reversed(down[: down.index(top)])]
            else:
                hops = [*up[:-1], *self._over_sockets(up[-1], down[-1]), *reversed(down[:-1])]
        return tuple(f"{x}->{y}" for x, y in pairwise(hops))

    @cached_property
    def capacities(self) -> dict[str, float]:
        """Bytes per second of everything that bytes pass: each link each way, "CPU0.memory", "NIC0.out", "NIC0.in"."""
        rates = {f"{a}->{b}": ln.bytes_per_s for ln in self.links for a, b in ((ln.a, ln.b), (ln.b, ln.a))}
        for node in self.nodes:
            suffixes = {"cpu": ("memory",), "nic": ("out", "in")}.get(node.kind, ())
            rates |= {f"{node.name}.{suffix}": node.bytes_per_s for suffix in suffixes}
        return {name: rate or math.inf for name, rate in rates.items()}

    @cached_property
    def _parents(self) -> dict[str, str]:
        return {link.a: link.b for link in self.links if link.kind == "pcie"}

    def _above(self, node: str) -> tuple[str, ...]:
        """From the node up its PCIe tree to the CPU."""
        above = [node]
        while above[-1] in self._parents and len(above) <= len(self._parents):  # less in a cycle, which is refused
            above.append(self._parents[above[-1]])
        return tuple(above)

    def _over_sockets(self, a: str, b: str) -> tuple[str, ...]:
        """The CPUs from one to the other, by the fewest links."""
        before, path = self._sockets_from(a), [b]
        if b not in before:
            raise ValueError(f"no way from {a!r} to {b!r}: CPUs must be joined by socket links")
        while path[-1] != a:
            path.append(before[path[-1]])
        return tuple(reversed(path))

    def _sockets_from(self, start: str) -> dict[str, str]:
        """Each CPU that socket links lead to, with the one before it on the shortest way; the start with itself.

        Of ways as short, the one whose links are named first, as nearer CPUs have it."""
        if start not in self._searched:
            before = {start: start}
            for cpu in (queue := [start]):  # grows meanwhile: breadth first
                for neighbour in self._joined.get(cpu, ()):
                    if neighbour not in before:
                        before[neighbour] = cpu
                        queue.append(neighbour)
            self._searched[start] = before
        return self._searched[start]

    @cached_property
    def _searched(self) -> dict[str, dict[str, str]]:
        return {}

    @cached_property
    def _joined(self) -> dict[str, list[str]]:
        """Each CPU's neighbours."""
        joined: dict[str, list[str]] = {}
        for ln in self.links:
            if ln.kind == "socket":
                joined.setdefault(ln.a, []).append(ln.b)
                joined.setdefault(ln.b, []).append(ln.a)
        return joined


def _check_rate(what: str, bytes_per_s: float) -> None:
    if not 0 <= bytes_per_s < math.inf:
        raise ValueError(f"rate of {what} is {bytes_per_s} bytes/s; use one above 0, or leave it out: unknown")


def warned(topology: Topology) -> Topology:
    """The same with a warning that names the rates that are unknown, if any are."""
    unknown: dict[str, list[str]] = {}
    for link in topology.links:
        if not link.bytes_per_s:
            unknown.setdefault(f"{link.kind} links", []).append(f"{link.a} to {link.b}")
    for node in topology.nodes:
        if not node.bytes_per_s and node.kind in ("cpu", "nic"):
            unknown.setdefault("memory" if node.kind == "cpu" else "network", []).append(node.name)
    if not unknown:
        return topology
    shown = (f"{kind} ({', '.join(n[:2])}{', ...' if len(n) > 2 else ''})" for kind, n in unknown.items())
    text = f"rates not known and taken as never limiting: {', '.join(shown)}"
    return replace(topology, warnings=(*topology.warnings, text))
