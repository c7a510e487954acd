"""A machine's inside as text: to look at, and as the TOML that `machine` reads.

Pure: no I/O, no clock, no randomness.
"""

import json
from itertools import groupby

from byteps.machine import Topology
from byteps.units import format_rate


def as_text(topology: Topology) -> str:
    """A tree of what hangs under each CPU, then what joins them, the paper's S_n and S_g, and what to beware of."""
    rates = {node.name: _shown(node.bytes_per_s) for node in topology.nodes}
    fabric_rate = {link.a: f", {link.b} {_shown(link.bytes_per_s)}" for link in topology.links if link.kind == "nvlink"}
    lines = [f"{topology.name}: {topology.source}"]

    def add(upper: str, indent: str) -> None:
        for link in topology.links:
            if link.kind == "pcie" and link.b == upper:
                network = f", network {rates[link.a]}" if link.a in topology.nics else fabric_rate.get(link.a, "")
                lines.append(f"{indent}{link.a}  {_shown(link.bytes_per_s)}{network}")
                add(link.a, indent + "  ")

    for cpu in topology.cpus:
        lines.append(f"  {cpu}  memory {rates[cpu]}")
        add(cpu, "    ")
    lines += [f"  {x.a} - {x.b}  {_shown(x.bytes_per_s)}" for x in topology.links if x.kind == "socket"]
    lines.append(f"S_n, switches with GPUs and NICs: {', '.join(topology.nic_switches) or 'none'}")
    lines.append(f"S_g, switches with GPUs only:     {', '.join(topology.gpu_switches) or 'none'}")
    lines += [f"warning: {warning}" for warning in topology.warnings]
    return "\n".join(lines)


def as_toml(topology: Topology) -> str:
    """What `machine_file.parse_machine` reads as the same; rates that are unknown are there to be filled in."""
    rate = {node.name: node.bytes_per_s for node in topology.nodes}
    nvlinks = [link for link in topology.links if link.kind == "nvlink"]
    lines = [f"# warning: {warning}" for warning in topology.warnings]
    lines += [f"source = {_text(topology.source)}", f"peer_efficiency = {topology.peer_efficiency!r}"]
    for cpu in topology.cpus:
        lines += ["", "[[cpu]]", f"names = {_text([cpu])}", _rate("memory", rate[cpu])]
    for link in topology.links:
        if link.kind == "socket":
            lines += ["", "[[socket]]", f"between = {_text([link.a, link.b])}", _rate("rate", link.bytes_per_s)]
        elif link.kind == "pcie":
            kind = next(node.kind for node in topology.nodes if node.name == link.a)
            lines += ["", f"[[{kind}]]", f"names = {_text([link.a])}", f"under = {_text(link.b)}"]
            lines += [_rate("rate", link.bytes_per_s)]
            lines += [_rate("network", rate[link.a])] if kind == "nic" else []
    for (fabric, each), members in groupby(nvlinks, key=lambda link: (link.b, link.bytes_per_s)):
        gpus = _text([link.a for link in members])
        lines += ["", "[[fabric]]", f"name = {_text(fabric)}", f"gpus = {gpus}", _rate("rate", each)]
    return "\n".join(lines) + "\n"


def _shown(bytes_per_s: float) -> str:
    return format_rate(bytes_per_s) if bytes_per_s else "rate unknown"


def _text(value: str | list[str]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _rate(key: str, bytes_per_s: float) -> str:
    return f'{key} = "{bytes_per_s * 8 / 1e9:.6f}Gbit"' if bytes_per_s else f'{key} = ""  # unknown: such as "100Gbit"'
