"""NCCL's and RCCL's description of a machine: the XML that NCCL_TOPO_DUMP_FILE writes.

`cpu` elements (NUMA nodes) hold `pci` elements: bridges hold more of them, others hold a `gpu` or a `nic` with one
`net` per port; a `nic` without a bus may stand right in a `cpu`.  Bridges are those that something useful is under.
`gpu` holds `nvlink` or `xgmi` elements: so many links (`count`) to another GPU's bus or to an NVSwitch.
The order of elements means nothing: GPUs are numbered by `dev`.

PCIe rates are line rates after encoding; packet headers are not taken off.  NVLinks' rates are documented per
generation; that of another generation is unknown, as are CPUs' links and memory: none is guessed.
Pure: no I/O, no clock, no randomness.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from byteps.machine import MOST_DEEP, Topology
from byteps.topology.assembly import Device, assemble
from byteps.units import format_rate

_PCIE_SPEED = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?) ?GT/s(?: PCIe)?\s*")
_UNKNOWN_SPEEDS = ("", "Unknown", "Unknown speed")  # as sysfs says in virtual machines
_UNKNOWN_WIDTHS = ("", "0", "255")
# After 8b/10b, 128b/130b, and 236 of 256 bytes of a PCIe 6.0 flit.
_PCIE_PAYLOAD = {2.5: 0.8, 5.0: 0.8, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130, 64.0: 236 / 256}
# Bytes per second of one link, each way, by compute capability: NVIDIA's white papers on P100, V100, A100, GA102 and
# H100 (20, 25, 25, 14.0625 and 25 GB/s) and the data sheet of B200 (18 links, 1.8 TB/s both ways).
_NVLINK = {"60": 20e9, "70": 25e9, "80": 25e9, "86": 14.0625e9, "90": 25e9, "100": 50e9}
# By `gcn`, 16 lanes at 23, 25 and 32 GT/s: AMD's ROCm documentation of MI100 and MI250, and the CDNA 3 white paper.
# Missing: gfx906, of which AMD published both 184 and 200 GB/s for two links both ways.
_XGMI = {"908": 46e9, "910": 50e9, "90a": 50e9, "940": 64e9, "941": 64e9, "942": 64e9}
_NVSWITCH = "0x068000"
_MOST_LINKS = 1000  # of a GPU; there are 18 of B200
_MOST_DIGITS = 18


def pcie_bytes_per_s(link_speed: str, link_width: str) -> float:
    """Each way, of "16.0 GT/s PCIe" and "16"; 0.0 if either is unknown.  To the Mbit/s, so that it can be written."""
    match = _PCIE_SPEED.fullmatch(link_speed)
    speed = float(match[1]) if match else 0.0
    if link_speed in _UNKNOWN_SPEEDS or link_width in _UNKNOWN_WIDTHS:
        return 0.0
    if speed not in _PCIE_PAYLOAD or link_width not in ("1", "2", "4", "8", "12", "16", "32"):
        known = ", ".join(f"{rate:g}" for rate in _PCIE_PAYLOAD)
        raise ValueError(
            f"link_speed {link_speed!r}, link_width {link_width!r}; expected one of {known} GT/s, and 1 to 32 lanes"
        )
    return round(speed * int(link_width) * _PCIE_PAYLOAD[speed] * 1000) * 1e6 / 8


def parse_nccl_xml(text: str, source: str) -> Topology:
    """The machine that an XML text describes; `source` names the text in errors, which also name line or element."""
    try:
        return topology_of_system(ElementTree.fromstring(text.removeprefix("\ufeff")), source)
    except (ValueError, ElementTree.ParseError) as error:
        raise ValueError(f"{source}: {error}") from error


def topology_of_system(system: Element, source: str) -> Topology:
    """The same of a parsed `system` element."""
    if system.tag != "system" or system.find("cpu") is None:
        raise ValueError(f"{_shown(system)} is the root; expected <system> with <cpu> elements in it")
    warnings: list[str] = []
    found: dict[str, Device] = {}
    gpu_of_bus: dict[str, str] = {}
    gpus: list[tuple[str, Element]] = []
    numbers = [max(_whole(cpu, "numaid"), 0) for cpu in system.findall("cpu")]  # -1: none, in a virtual machine
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"<cpu> elements have numaid {numbers}; expected a different one each, of a single machine")
    for number, cpu in sorted(zip(numbers, system.findall("cpu"), strict=True), key=lambda pair: pair[0]):
        for device, element, bus in (each for child in cpu for each in _devices(child, number, (), warnings)):
            if device.kind == "gpu":
                gpu_of_bus[bus] = device.name
                gpus.append((device.name, element))
            elif device.name in found:
                warnings.append(f"{device.name} is listed under several CPUs; CPU{found[device.name].cpu} is taken")
                continue
            if device.name in found:
                raise ValueError(f"{_shown(element)} is there twice; expected a different dev for each GPU")
            found[device.name] = device
    if not found:
        raise ValueError("no <gpu> and no <net> in it: a hint for NCCL_TOPO_FILE? give what NCCL_TOPO_DUMP_FILE writes")
    nvlinked: list[tuple[str, str]] = []
    rates = dict.fromkeys(gpu_of_bus.values(), 0.0)
    for gpu, element in gpus:
        gcn = element.get("gcn", "").removeprefix("gfx")
        per_link = _XGMI.get(gcn, 0.0) if gcn else _NVLINK.get(element.get("sm", ""), 0.0)
        for link in (*element.iterfind("nvlink"), *element.iterfind("xgmi")):
            switch = link.get("tclass") == _NVSWITCH
            peer = "an NVSwitch" if switch else gpu_of_bus.get(link.get("target", "").lower(), "")
            count = _whole(link, "count")
            if not 1 <= count <= _MOST_LINKS:
                raise ValueError(f"{_shown(link)}: count is {count}; expected 1 to {_MOST_LINKS} links")
            if peer:
                nvlinked.append((gpu, peer))
                rates[gpu] += count * per_link
            else:
                warnings.append(f"{gpu} has {count} links to {link.get('target')}, which is no GPU here: left out")
    if max(Counter(gpu for gpu, peer in set(nvlinked) if peer in rates).values(), default=0) > 1:
        warnings.append("links between GPUs are taken as a switch: optimistic, since each pair has only some of them")
    if system.find(".//c2c") is not None:
        warnings.append("NVLink-C2C between CPU and GPU is left out: CPU and GPU are taken to be joined by PCIe only")
    return assemble(
        name=Path(source).stem,
        source=source,
        devices=found.values(),
        cpus=numbers,
        nvlinked=nvlinked,
        nvlink_bytes_per_s=rates,
        warnings=sorted(set(warnings)),
    )


def _devices(
    element: Element, cpu: int, above: tuple[tuple[str, float], ...], warnings: list[str]
) -> Iterator[tuple[Device, Element, str]]:
    """Each GPU and port at or under an element of a `cpu`, with its element and bus."""
    if len(above) > MOST_DEEP:
        raise ValueError(f"{_shown(element)} is nested in more than {MOST_DEEP} <pci> elements; PCIe has fewer buses")
    nested = element.findall("pci")
    ends = [*element.findall("gpu"), *element.findall("nic/net")] if element.tag == "pci" else element.findall("net")
    bus = element.get("busid", "").lower()
    rate = 0.0
    if element.tag == "pci":
        if not bus:
            raise ValueError(f"{_shown(element)} has no busid; expected one such as 0000:18:00.0")
        try:
            rate = pcie_bytes_per_s(element.get("link_speed", ""), element.get("link_width", ""))
        except ValueError as error:
            raise ValueError(f"{_shown(element)}: {error}") from None
        if nested and rate <= 250e6 and element.find(".//gpu") is not None:
            warnings.append(f"switch {bus} does {format_rate(rate)}: that of an emulated bridge, so taken as unknown")
            rate = 0.0
        if nested or len(ends) > 1:  # the ports of a card share its lanes
            above = (*above, (bus, rate))
    for end in ends:
        if end.tag == "gpu":
            rank = _whole(end, "dev")
            device = Device(kind="gpu", name=f"GPU{rank}", rank=rank, cpu=cpu, above=above, link_bytes_per_s=rate)
        else:
            device = Device(
                kind="nic",
                name=end.get("name") or f"NIC{_whole(end, 'dev')}",
                rank=_whole(end, "dev"),
                cpu=cpu,
                above=above,
                link_bytes_per_s=rate,
                network_bytes_per_s=_network_bytes_per_s(end, warnings),
            )
        yield device, end, bus
    for child in nested:
        yield from _devices(child, cpu, above, warnings)


def _network_bytes_per_s(net: Element, warnings: list[str]) -> float:
    """Of `speed` in Mbit/s."""
    megabits = max(_whole(net, "speed"), 0) if "speed" in net.attrib else 0  # -1: the link is down
    if megabits >= 10_000_000:
        warnings.append(f"{_shown(net)}: speed {megabits} cannot be Mbit/s; it is read as kbit/s")
        return megabits * 1e3 / 8
    return megabits * 1e6 / 8


def _whole(element: Element, key: str) -> int:
    text = element.get(key, "")
    try:
        if len(text) <= _MOST_DIGITS:
            return int(text)
    except ValueError:
        pass
    written = repr(text[:40] if key in element.attrib else None)
    raise ValueError(f"{_shown(element)}: {key} is {written}; expected a whole number of at most {_MOST_DIGITS} digits")


def _shown(element: Element) -> str:
    key = next((key for key in ("busid", "name", "dev", "numaid", "target") if key in element.attrib), "")
    return f'<{element.tag} {key}="{element.get(key)}">' if key else f"<{element.tag}>"
