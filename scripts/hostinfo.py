"""What a host says about itself: its parts, its NICs and their counters, its processes' time.  Linux only."""

import contextlib
import ipaddress
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from byteps.interfaces import interface_addresses
from byteps.version import VERSION

_TOOL_SECONDS = 20.0
_NICS = Path("/sys/class/net")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# in the order of `scripts.netns.Counters`, without those that only an emulated switch can know
COUNTERS = ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets")


class NoSuchNic(ValueError):
    """The host has no such NIC; the text lists those that it has."""


def nics(interfaces: Sequence[str], address: str) -> tuple[str, ...]:
    """Names of the NICs that are meant by names or networks; without any, the one with this address."""
    here = interface_addresses()
    return tuple(_nic(one, here) for one in interfaces or [f"{address}/32"])


def _nic(meant: str, here: dict[str, str]) -> str:
    if meant in here:
        return meant
    with contextlib.suppress(ValueError):
        network = ipaddress.ip_network(meant, strict=False)
        for name, address in here.items():
            if ipaddress.ip_address(address) in network:
                return name
    listed = ", ".join(f"{name} ({address})" for name, address in here.items())
    raise NoSuchNic(f"no NIC here is {meant!r} or on that network; this host has {listed}: correct `interface`")


def counters(names: Iterable[str]) -> dict[str, int]:
    """What passed these NICs since boot, in sum."""
    folders = [_NICS / name / "statistics" for name in names]
    seen = {key: sum(int((folder / key).read_text()) for folder in folders) for key in COUNTERS}
    dropped = sum(int((folder / f"{way}_dropped").read_text()) for folder in folders for way in ("tx", "rx"))
    return seen | {"dropped_packets": dropped}


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of these processes and of their finished children."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(value) for value in fields[11:15])
    return ticks / _TICKS_PER_SECOND


def facts(names: Sequence[str]) -> dict[str, str]:
    """What records say about a host."""
    found = {
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count() or 0),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "byteps": VERSION,
        "congestion control": _text(Path("/proc/sys/net/ipv4/tcp_congestion_control")),
        "mtu": ", ".join(_text(_NICS / name / "mtu") for name in names),
        "gpus": _gpus(),
    }
    with contextlib.suppress(metadata.PackageNotFoundError):
        found["torch"] = metadata.version("torch")
    return {key: value for key, value in found.items() if value}


def _cpu_model() -> str:
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpus() -> str:
    """ "8 x NVIDIA H200, driver 550.54", or "" without nvidia-smi or a GPU."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return ""
    query = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
    kinds = sorted(set(lines))
    return "; ".join(f"{lines.count(kind)} x {kind.replace(', ', ', driver ')}" for kind in kinds)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
