"""What a host says about itself: its parts, its NICs and their counters, its processes' time.  Linux only."""

import contextlib
import fcntl
import ipaddress
import os
import platform
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from byteps.handshake import resolve
from byteps.interfaces import interface_addresses
from byteps.version import VERSION

_TOOL_SECONDS = 20.0
_SIOCGIFMTU = 0x8921
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class NoSuchNic(ValueError):
    """The host has no such NIC; the text lists those that it has."""


def nics(interfaces: Sequence[str], address: str) -> tuple[str, ...]:
    """Names of the NICs that are meant by names or networks; without any, the one with this address."""
    here = interface_addresses()
    return tuple(_nic(one, here) for one in interfaces or [resolve(address, 0)[1][0]])


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
    """What passed these NICs since boot, in sum, by the names of `scripts.netns.Counters` but for those of the wire.

    From /proc/net, since /sys may be mounted for another network namespace than this process is in.
    """
    seen = dict.fromkeys(("tx_bytes", "rx_bytes", "tx_packets", "rx_packets", "dropped_packets"), 0)
    rows = (line.partition(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:])
    numbers = {name.strip(): [int(number) for number in row.split()] for name, _, row in rows}
    for name in names:
        received, sent = numbers[name][:8], numbers[name][8:]  # each: bytes, packets, errors, dropped, ...
        for way, counted in (("rx", received), ("tx", sent)):
            seen[f"{way}_bytes"] += counted[0]
            seen[f"{way}_packets"] += counted[1]
            seen["dropped_packets"] += counted[3]
    return seen


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
        "mtu": ", ".join(str(_mtu(name)) for name in names),
        "gpus": _gpus(),
    }
    with contextlib.suppress(metadata.PackageNotFoundError):
        found["torch"] = metadata.version("torch")
    return {key: value for key, value in found.items() if value}


def _mtu(nic: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock.fileno(), _SIOCGIFMTU, struct.pack("16si", nic.encode()[:15], 0))
    return int(struct.unpack("16si", answer)[1])


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
