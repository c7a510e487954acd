"""Reading what `doctor` judges: the kernel's files, installed packages, a few commands and sockets.

Nothing is changed, nothing is sent, torch is not imported, and every command has a deadline.  Namespaces and tc are
tried in a namespace that ends with the command.
"""

import ctypes
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata, util
from pathlib import Path
from typing import Final

from byteps.doctor import BUILD_TOOLS, SUITE_TOOLS, Facts, Interface
from byteps.errors import StartError
from byteps.handshake import check_congestion_control, is_loopback, listen, resolve
from byteps.interfaces import interface_addresses, own_address
from byteps.settings import Settings

_COMMAND_SECONDS: Final = 10.0
_GPU_SECONDS: Final = 30.0  # nvidia-smi takes seconds where its daemon does not run
_SOMEWHERE: Final = "192.0.2.1"  # reserved for documentation: only the route to it is asked for
_TIME_ERROR: Final = 5  # adjtimex: the clock is not synchronised
_TIMEX_BYTES: Final = 256  # more than the kernel's struct timex
_SHAPE: Final = (
    "ip link add doctor0 type veth peer name doctor1 && ip link add doctor2 type bridge && "
    "tc qdisc add dev doctor0 root tbf rate 200mbit burst 32kb latency 10ms"
)


def examine(settings: Settings, folder: Path) -> Facts:
    """This machine, for a job with these settings; free disk is asked for in `folder`."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    tools = {name: shutil.which(name, path=path) or "" for name in (*SUITE_TOOLS, *BUILD_TOOLS, "sshd")}
    gpus, why_no_gpus = _gpus()
    why_no_namespaces = _try([tools["unshare"] or "unshare", "--net", "true"])
    chosen, why_none_chosen = _chosen(settings)
    why_no_control, why_default_control = _congestion_control(settings.congestion_control)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Facts(
        system=sys.platform,
        kernel=platform.release(),
        python=sys.version_info[:3],
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=_available_memory(),
        torch=_installed("torch"),
        torch_cuda=_torch_cuda(),
        gpus=gpus,
        why_no_gpus=why_no_gpus,
        tools=tools,
        why_no_namespaces=why_no_namespaces,
        why_no_shaping=why_no_namespaces or _try([tools["unshare"], "--net", "sh", "-c", f"PATH={path}; {_SHAPE}"]),
        open_files=(_unlimited(soft), _unlimited(hard)),
        locked_bytes=_unlimited(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        shm_bytes=_free("/dev/shm"),
        disk=str(folder),
        disk_bytes=_free(folder),
        interfaces=_interfaces(),
        chosen=chosen,
        why_none_chosen=why_none_chosen,
        host_name=socket.gethostname(),
        host_addresses=_resolved(socket.gethostname()),
        port=settings.root_port,
        why_no_port=_why_no_port(settings.root_port),
        ephemeral_ports=_ephemeral_ports(),
        congestion_controls=tuple(_read("/proc/sys/net/ipv4/tcp_available_congestion_control").split()),
        congestion_control=settings.congestion_control,
        why_no_congestion_control=why_no_control,
        why_default_congestion_control=why_default_control,
        clock_synchronised=_clock_synchronised(),
        monotonic_seconds=time.get_clock_info("monotonic").resolution,
    )


def _run(command: Sequence[str], seconds: float = _COMMAND_SECONDS) -> str:
    """What a command prints; a RuntimeError says why it failed."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{command[0]} did not end within {seconds:g} s") from None
    except OSError as error:
        raise RuntimeError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        said = (done.stderr + done.stdout).strip().splitlines()
        raise RuntimeError(f"{command[0]}: {said[0][:200] if said else f'exit code {done.returncode}'}")
    return done.stdout


def _try(command: Sequence[str]) -> str:
    """Why a command fails; "" if it does not."""
    try:
        _run(command)
    except RuntimeError as error:
        return str(error)
    return ""


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _unlimited(number: int) -> int:
    return -1 if number == resource.RLIM_INFINITY else number


def _free(folder: str | Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return -1


def _available_memory() -> int:
    found = re.search(r"^MemAvailable:\s+([0-9]+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _torch_cuda() -> str:
    """Which CUDA the installed torch was built for, from its version.py: importing it takes seconds."""
    spec = util.find_spec("torch")
    if not spec or not spec.origin:
        return ""
    found = re.search(r"^cuda\b.*=\s*'([0-9.]+)'", _read(Path(spec.origin).with_name("version.py")), re.MULTILINE)
    return found[1] if found else ""


def _gpus() -> tuple[tuple[str, ...], str]:
    """Name, memory and driver of each; or why none is known."""
    try:
        query = "--query-gpu=name,memory.total,driver_version"
        listed = _run(["nvidia-smi", query, "--format=csv,noheader"], _GPU_SECONDS).strip().splitlines()
    except RuntimeError as error:
        return (), str(error)
    return tuple(listed), "" if listed else "nvidia-smi lists none"


def _interfaces() -> tuple[Interface, ...]:
    found = []
    for name, address in interface_addresses().items():
        folder = Path("/sys/class/net", name.split(":")[0])  # eth0:1 is a further address of eth0
        mtu, megabits = _read(folder / "mtu"), _read(folder / "speed")
        found.append(
            Interface(
                name=name,
                address=address,
                mtu=int(mtu) if mtu.isdecimal() else 0,
                bytes_per_s=int(megabits) * 1e6 / 8 if megabits.isdecimal() else 0.0,  # -1 and errors: not known
            )
        )
    return tuple(found)


def _chosen(settings: Settings) -> tuple[str, str]:
    """The address that a job across hosts listens on; or why there is none."""
    scheduler = _SOMEWHERE if is_loopback(settings.root_host) else settings.root_host
    try:
        family, address = resolve(scheduler, settings.root_port)
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(address)
            towards = str(sock.getsockname()[0])
        return own_address(settings, towards), ""
    except StartError as error:
        return "", str(error)
    except OSError as error:
        return "", f"no route to {scheduler} ({error.strerror})"


def _resolved(name: str) -> tuple[str, ...]:
    """The addresses of a name, in order; by a command, since a resolver may take its time."""
    try:
        lines = _run(["getent", "ahosts", name]).splitlines()
    except RuntimeError:
        return ()
    return tuple(dict.fromkeys(line.split()[0] for line in lines if line.strip()))


def _why_no_port(port: int) -> str:
    try:
        listen("0.0.0.0", port).close()
    except StartError as error:
        return f"cannot be listened on: {error}"
    return ""


def _ephemeral_ports() -> tuple[int, int]:
    words = _read("/proc/sys/net/ipv4/ip_local_port_range").split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else (0, 0)


def _congestion_control(name: str) -> tuple[str, str]:
    """Why a job cannot have it at all; and why it gets the default instead."""
    try:
        return "", check_congestion_control(name)
    except StartError as error:
        return str(error), ""


def _clock_synchronised() -> bool | None:
    """As the kernel sees it, whoever sets it."""
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR
