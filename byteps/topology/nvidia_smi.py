"""What `nvidia-smi topo -m` (or `-mp`) prints: a matrix of how each two of the GPUs and NICs are connected.

    PIX, PXB        over PCIe switches only: they are under the same one of a CPU
    PHB, NODE       over a CPU; SYS: over two
    NV4             over 4 NVLinks, which hides how they are connected by PCIe

It names no switches and gives no rates at all.  Columns are told apart by blanks, since people paste tabs and spaces.
In virtual machines everything may be PHB, with no NUMA node: that says nothing and is refused.
Pure: no I/O, no clock, no randomness.
"""

import re
from itertools import combinations, count
from pathlib import Path

from byteps.machine import Topology
from byteps.topology.assembly import Device, assemble, groups

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RELATION = re.compile(r"X|SYS|SOC|NODE|PHB|PXB|PIX|NV[0-9]+")  # SOC: SYS, in drivers before 2017
_ROW = re.compile(r"^\s*GPU[0-9]+\s+(?:X|SYS|SOC|NODE|PHB|PXB|PIX|NV[0-9]+)(?:\s|$)", re.MULTILINE)
_LEGEND = re.compile(r"^\s*(NIC[0-9]+):\s*(\S+)\s*$", re.MULTILINE)

_Matrix = dict[tuple[str, str], str]


def looks_like_matrix(text: str) -> bool:
    return _ROW.search(_ANSI.sub("", text)) is not None


def parse_matrix(text: str, source: str) -> Topology:
    """The machine of the matrix in a text; `source` names the text in errors, which also name the line."""
    try:
        names, relations, nodes = read_matrix(text)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    gpus = [name for name in names if name.startswith("GPU")]
    pcie = {pair: relation for pair, relation in relations.items() if not relation.startswith(("NV", "X"))}
    if pcie and set(pcie.values()) == {"PHB"} and not any(node.isdigit() for node in nodes.values()):
        raise ValueError(
            f"{source}: everything is PHB and no NUMA node is known, as in virtual machines: that tells nothing; "
            "give the XML that NCCL_TOPO_DUMP_FILE writes on the host, or describe the machine in TOML"
        )
    nvlinked = [pair for pair, relation in relations.items() if relation.startswith("NV")]
    same_switch = groups(names, (pair for pair, relation in pcie.items() if relation in ("PIX", "PXB")))
    near = [pair for pair, relation in pcie.items() if relation not in ("SYS", "SOC")]
    near += [(a, b) for a, b in combinations(nodes, 2) if nodes[a] == nodes[b] != ""]
    cpu_of = _numbered(groups(names, near), nodes)
    switch_of = {
        name: ((f"P{index}", 0.0),)
        for index, members in enumerate(group for group in same_switch if len(group) > 1)
        for name in members
    }
    legend = dict(_LEGEND.findall(text))
    devices = [
        Device(
            kind="gpu" if name in gpus else "nic",
            name=legend.get(name, name),
            rank=rank if name not in gpus else int(name.removeprefix("GPU")),
            cpu=cpu_of[name],
            above=switch_of.get(name, ()),
        )
        for rank, name in enumerate(names)
    ]
    alone = [name for name in gpus if name not in switch_of]
    hidden = [(a, b) for a, b in nvlinked if a in alone and b in alone and cpu_of[a] == cpu_of[b]]
    warnings = ["NVLinks hide which GPUs share a PCIe switch; `nvidia-smi topo -mp` shows it"] if hidden else []
    return assemble(name=Path(source).stem, source=source, devices=devices, nvlinked=nvlinked, warnings=warnings)


def read_matrix(text: str) -> tuple[list[str], _Matrix, dict[str, str]]:
    """The devices, how each two are connected, and of each GPU its NUMA node, or else the list of its CPUs, or ""."""
    lines = _ANSI.sub("", text).splitlines()
    header = next((index for index, line in enumerate(lines) if _is_header(line)), None)
    if header is None:
        raise ValueError(
            "no line names the columns; expected one that begins with GPU0, as `nvidia-smi topo -m` prints"
        )
    words = lines[header].split()
    names = words[: words.index("CPU")] if "CPU" in words else words
    relations: _Matrix = {}
    nodes: dict[str, str] = {}
    for number, line in enumerate(lines[header + 1 :], start=header + 2):
        row, *cells = line.split() or [""]
        if row not in names:
            if _RELATION.fullmatch(cells[0] if cells else ""):
                raise ValueError(f"line {number}: {row!r} is none of the columns named on line {header + 1}")
            continue
        matrix, rest = cells[: len(names)], cells[len(names) :]
        fits = len(matrix) == len(names) and matrix[names.index(row)] == "X" and matrix.count("X") == 1
        if not fits or not all(map(_RELATION.fullmatch, matrix)) or any(map(_RELATION.fullmatch, rest)):
            raise ValueError(
                f"line {number}: the row of {row} does not fit the {len(names)} columns named on line {header + 1}; "
                "is a line wrapped? `nvidia-smi topo -m > file` writes it whole"
            )
        relations |= {(row, name): cell for name, cell in zip(names, matrix, strict=True) if name != row}
        if row.startswith("GPU"):
            known = [cell if cell not in ("N/A", "-1") else "" for cell in (*rest, "", "")]
            nodes[row] = known[1] or known[0]
    missing = [name for name in names if name.startswith("GPU") and name not in nodes]
    if missing:
        raise ValueError(f"there is no row of {missing[0]}, which line {header + 1} names; expected one for each GPU")
    for (a, b), relation in relations.items():
        if relations.get((b, a), relation) != relation:
            raise ValueError(f"{a} to {b} is {relation}, but {b} to {a} is {relations[b, a]}; expected the same")
    return names, relations, nodes


def _is_header(line: str) -> bool:
    words = line.split()
    return bool(words) and re.fullmatch(r"GPU[0-9]+", words[0]) is not None and not _RELATION.fullmatch((*words, "")[1])


def _numbered(near: list[list[str]], nodes: dict[str, str]) -> dict[str, int]:
    """The number of each one's CPU: its NUMA node where one of the group has one, else the next free number."""
    number_of: dict[str, int] = {}
    known = [[int(nodes[name]) for name in group if nodes.get(name, "").isdigit()] for group in near]
    free = (number for number in count() if [number] not in [numbers[:1] for numbers in known])
    for group, numbers in zip(near, known, strict=True):
        number_of |= dict.fromkeys(group, numbers[0] if numbers else next(free))
    return number_of
