"""The machine at hand: PCIe, NICs and NUMA nodes from the kernel's /sys, NVLinks from nvidia-smi.

The path of a PCI device in /sys names what it hangs under: a root port of the CPU, then the upstream and the downstream
port of each switch.  /sys and not `nvidia-smi topo -m` is asked for PCIe: it has rates, and works where that fails.
"""

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from byteps.machine import Topology
from byteps.topology.assembly import Device, assemble
from byteps.topology.nccl_xml import pcie_bytes_per_s
from byteps.topology.nvidia_smi import read_matrix

_BUS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")  # VGA, 3D, other display, accelerator
_NVIDIA, _AMD = "0x10de", "0x1002"
_TIMEOUT_SECONDS = 30.0  # nvidia-smi takes seconds where its daemon does not run


def _run(command: Sequence[str]) -> str:
    """What a command prints; a RuntimeError says why it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(str(error)) from error
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}, {(done.stdout + done.stderr).strip()[:200]}")
    return done.stdout


def detect(root: Path = Path("/"), run: Callable[[Sequence[str]], str] = _run) -> Topology:
    """What can be seen from here; what cannot is in the warnings."""
    warnings: list[str] = []
    gpus, nics = _gpus(root), _nics(root)
    nvlinked: list[tuple[str, str]] = []
    rates: dict[str, float] = {}
    source = "/sys of this machine"
    if any(_read(path / "vendor") == _NVIDIA for path in gpus):
        try:
            gpus = _as_numbered(run(["nvidia-smi", "--query-gpu=index,pci.bus_id", "--format=csv,noheader"]), gpus)
            _, relations, _ = read_matrix(run(["nvidia-smi", "topo", "-m"]))
            nvlinked = [pair for pair, relation in relations.items() if relation.startswith("NV")]
            if nvlinked:
                rates = _nvlink_rates(run(["nvidia-smi", "nvlink", "-s"]))
            source += "; NVLinks from nvidia-smi"
        except (RuntimeError, ValueError) as error:
            warnings.append(f"nvidia-smi failed, so NVLinks or their rates are missing; all else is from /sys: {error}")
    if any(_read(path / "vendor") == _AMD for path in gpus):
        warnings.append("xGMI links are not detected; give the XML that RCCL writes to NCCL_TOPO_DUMP_FILE")
    devices = [_device(path, kind="gpu", name=f"GPU{index}", rank=index) for index, path in enumerate(gpus)]
    for index, (name, (path, rate)) in enumerate(sorted(nics.items())):
        devices.append(replace(_device(path, kind="nic", name=name, rank=index), network_bytes_per_s=rate))
    return assemble(
        name="this machine",
        source=source,
        devices=devices,
        cpus=[int(p.name[4:]) for p in (root / "sys/devices/system/node").glob("node[0-9]*") if _read(p / "cpulist")],
        nvlinked=nvlinked,
        nvlink_bytes_per_s=rates,
        warnings=warnings,
    )


def _gpus(root: Path) -> list[Path]:
    """By bus."""
    paths = [link.resolve() for link in (root / "sys/bus/pci/devices").glob("*")]
    kept = [p for p in paths if _read(p / "class")[:6] in _GPU_CLASSES and _read(p / "vendor") in (_NVIDIA, _AMD)]
    return sorted(kept, key=lambda path: path.name)


def _as_numbered(listing: str, gpus: Sequence[Path]) -> list[Path]:
    """Those GPUs that nvidia-smi lists, by its index: in a container, these may be fewer."""
    path_of = {path.name: path for path in gpus}
    numbered = {}
    for line in listing.strip().splitlines():
        index, bus = line.lower().split(",")
        domain, rest = bus.strip().split(":", 1)
        numbered[int(index)] = f"{int(domain, 16):04x}:{rest}"
    if missing := set(numbered.values()) - path_of.keys():
        raise ValueError(f"it lists a GPU on bus {min(missing)}, which /sys has not")
    return [path_of[numbered[index]] for index in sorted(numbered)]


def _nics(root: Path) -> dict[str, tuple[Path, float]]:
    """Device and rate of those that are up, one per PCI function; by the name of the RDMA device if it is one."""
    found: dict[Path, tuple[str, float]] = {}
    for port in sorted((root / "sys/class/net").glob("*")):
        real = (port / "device").exists() and not (port / "device/physfn").exists()  # neither virtual nor SR-IOV's
        if real and _read(port / "operstate") != "down":
            speed = _read(port / "speed")
            found[(port / "device").resolve()] = (port.name, int(speed) * 1e6 / 8 if speed.isdigit() else 0.0)
    for port in sorted((root / "sys/class/infiniband").glob("*")):
        rate = re.match(r"([0-9.]+) Gb/sec", _read(port / "ports/1/rate"))
        if rate and "ACTIVE" in _read(port / "ports/1/state") and (port / "device").exists():  # software RDMA has none
            found[(port / "device").resolve()] = (port.name, float(rate[1]) * 1e9 / 8)
    return {name: (path, rate) for path, (name, rate) in found.items()}


def _nvlink_rates(text: str) -> dict[str, float]:
    """The sum of each GPU's links, each way, of "GPU 0: ..." and " Link 0: 25 GB/s" below it."""
    rates: dict[str, float] = {}
    for gpu, link in re.findall(r"^GPU ([0-9]+):|Link [0-9]+: ([0-9.]+) GB/s", text, re.MULTILINE):
        if gpu:
            name = f"GPU{gpu}"
        else:
            rates[name] = rates.get(name, 0.0) + float(link) * 1e9
    return rates


def _device(path: Path, *, kind: Literal["gpu", "nic"], name: str, rank: int) -> Device:
    functions = [part for part in (path, *path.parents) if _BUS.fullmatch(part.name)][::-1]
    if not functions:  # not on PCI
        return Device(kind=kind, name=name, rank=rank, cpu=0)
    *ports, function = functions
    return Device(
        kind=kind,
        name=name,
        rank=rank,
        cpu=max(int(_read(function / "numa_node") or 0), 0),  # -1: not known, as in virtual machines
        above=tuple((port.name, _link_rate(port)) for port in ports[1::2]),
        link_bytes_per_s=_link_rate(function),
    )


def _link_rate(function: Path) -> float:
    """What both ends of a link can do; the speed of the moment is lower while a GPU idles."""
    ends = [end for end in (function, function.parent) if _BUS.fullmatch(end.name)]
    rates = [_pcie_rate(_read(end / "max_link_speed"), _read(end / "max_link_width")) for end in ends]
    return min((rate for rate in rates if rate), default=0.0)


def _pcie_rate(speed: str, width: str) -> float:
    try:
        return pcie_bytes_per_s(speed, width)
    except ValueError:  # newer than this code: not known
        return 0.0


def _read(path: Path) -> str:
    """The text of a file; "" where the kernel has none."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
