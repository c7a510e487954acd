"""What this machine can do, and what each missing thing disables: the judgement of `byteps doctor`.

`examine` reads the facts, `findings` judges them, `doctor_view` shows both.  Essential is what even a job of numpy
arrays on this machine alone needs; whatever else is missing disables something, and the finding says what.
Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from byteps.units import format_nbytes, format_rate

LEAST_PYTHON = (3, 11)
LEAST_TORCH = (2, 2)
SUITE_TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux", "make": "make"}
BUILD_TOOLS = {"cmake": "cmake", "g++": "g++"}
"""What builds Horovod, by package."""
_LEAST_OPEN_FILES, _ENOUGH_OPEN_FILES = 64, 1024
_ENOUGH_SHM_BYTES = 2**30
_ENOUGH_DISK_BYTES = 6 * 2**30  # .venv and .peers take 4.4 GiB, without CUDA
_ENOUGH_MEMORY_BYTES = 3 * 2**30
_COARSE_SECONDS = 1e-3


@dataclass(frozen=True, kw_only=True)
class Interface:
    """A network interface that has an IPv4 address."""

    name: str
    address: str
    mtu: int  # 0: not known
    bytes_per_s: float  # 0.0: not known, as of virtual ones


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What `examine` saw.  Fields that begin with "why" say why something is not possible; "" where it is."""

    system: str  # "linux"
    kernel: str
    python: tuple[int, int, int]
    cores: int  # that this process may use
    memory_bytes: int  # available
    torch: str  # version; "": not installed
    torch_cuda: str  # version that torch was built for; "": none
    gpus: tuple[str, ...]
    why_no_gpus: str
    tools: dict[str, str]  # path by name; "": not found
    why_no_namespaces: str
    why_no_shaping: str
    open_files: tuple[int, int]  # soft and hard limit; -1: none
    locked_bytes: int  # soft limit of locked memory; -1: none
    shm_bytes: int  # free in /dev/shm; -1: it is not there
    disk: str  # the folder asked about
    disk_bytes: int  # free there
    interfaces: tuple[Interface, ...]
    chosen: str  # the address that a job across hosts listens on; "": none
    why_none_chosen: str
    host_name: str
    host_addresses: tuple[str, ...]  # that its name resolves to
    port: int  # the scheduler's
    why_no_port: str
    ephemeral_ports: tuple[int, int]  # first and last; (0, 0): not known
    congestion_controls: tuple[str, ...]  # loaded ones
    congestion_control: str  # the one that a job asks for
    why_no_congestion_control: str
    why_default_congestion_control: str  # only root may ask for it here
    clock_synchronised: bool | None  # None: not known
    monotonic_seconds: float  # resolution


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was checked."""

    check: str
    state: Literal["ok", "missing"]
    found: str
    disables: str = ""  # what does not work without it
    do: str = ""
    essential: bool = False  # nothing works without it


def fit(found: Sequence[Finding]) -> bool:
    """Whether a job can run here at all."""
    return not any(one.essential and one.state == "missing" for one in found)


def findings(facts: Facts) -> list[Finding]:
    """Every check, in the order in which people would look."""
    return [*_software(facts), *_processor(facts), *_limits(facts), *_network(facts), *_lab(facts)]


def _finding(
    check: str, problem: bool, found: str, disables: str = "", do: str = "", *, essential: bool = False
) -> Finding:
    if not problem:
        return Finding(check=check, state="ok", found=found)
    return Finding(check=check, state="missing", found=found, disables=disables, do=do, essential=essential)


def _software(facts: Facts) -> list[Finding]:
    version = ".".join(map(str, facts.python))
    least_python, least_torch = ".".join(map(str, LEAST_PYTHON)), ".".join(map(str, LEAST_TORCH))
    found = [
        _finding(
            "system",
            facts.system != "linux",
            f"{facts.system}, kernel {facts.kernel}",
            "everything: sockets, processes and clocks are used as Linux has them",
            "use Linux, maybe in a virtual machine",
            essential=True,
        ),
        _finding(
            "python",
            facts.python < LEAST_PYTHON,
            version,
            "everything",
            f"use Python {least_python} or later",
            essential=True,
        ),
    ]
    if not facts.torch:
        lacking = "byteps.torch, and so all training with PyTorch; jobs of numpy arrays, servers and schedulers work"
        found.append(_finding("torch", True, "not installed", lacking, "pip install '.[torch]'"))
    else:
        built = f"{facts.torch}, for {f'CUDA {facts.torch_cuda}' if facts.torch_cuda else 'CPUs only'}"
        old = _version(facts.torch) < LEAST_TORCH
        do = f"pip install 'torch>={least_torch}'"
        found.append(_finding("torch", old, built, "byteps.torch, which was never tried with one so old", do))
    if facts.gpus:
        shown = ", ".join(facts.gpus)
        unused = bool(facts.torch and not facts.torch_cuda)
        do = "install a torch that is built for CUDA"
        found.append(_finding("GPUs", unused, shown, "training on the GPUs: this torch is for CPUs only", do))
    else:
        why = f"none: {facts.why_no_gpus}"
        lacking = "training on GPUs; everything else works on CPUs"
        found.append(_finding("GPUs", True, why, lacking, "if there are some, make `nvidia-smi` work first"))
    return found


def _version(text: str) -> tuple[int, ...]:
    """(2, 13) of "2.13.0+cpu"."""
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


def _processor(facts: Facts) -> list[Finding]:
    resolution = f"{facts.monotonic_seconds * 1e9:g} ns"
    synchronised = {True: "synchronised", False: "not synchronised", None: "not known whether it is synchronised"}
    return [
        _finding(
            "cores",
            facts.cores < 2,
            str(facts.cores),
            "the emulated cluster: its hosts share the cores, and one core starves them (runs are marked unfaithful)",
            "use a machine with 2 or more",
        ),
        _finding(
            "memory",
            facts.memory_bytes < _ENOUGH_MEMORY_BYTES,
            f"{format_nbytes(facts.memory_bytes)} available",
            "`make reproduce`, whose 16 machines together take 2 GB, and training of large models",
            "free some, or run fewer workers",
        ),
        _finding(
            "clock",
            facts.clock_synchronised is not True,
            synchronised[facts.clock_synchronised],
            "comparing moments in the logs and traces of several hosts; jobs themselves do not mind",
            "start chrony or systemd-timesyncd (in a container: on its host)",
        ),
        _finding(
            "timer",
            not 0 < facts.monotonic_seconds <= _COARSE_SECONDS,
            f"monotonic, resolution {resolution}",
            "measuring anything that takes milliseconds",
            "use a kernel with high-resolution timers",
        ),
    ]


def _limits(facts: Facts) -> list[Finding]:
    soft, hard = facts.open_files
    files = _finding(
        "open files",
        0 <= soft < _ENOUGH_OPEN_FILES,
        f"{_limit(soft)} (at most {_limit(hard)})",
        "everything: a job of one worker needs more"
        if 0 <= soft < _LEAST_OPEN_FILES
        else f"jobs of more than about {soft // 4} workers and servers: each takes several sockets",
        f"ulimit -n {hard if hard >= _ENOUGH_OPEN_FILES else 65536}",
        essential=0 <= soft < _LEAST_OPEN_FILES,
    )
    locked = _finding(
        "locked memory",
        bool(facts.gpus) and 0 <= facts.locked_bytes < 2**30,
        "unlimited" if facts.locked_bytes < 0 else format_nbytes(facts.locked_bytes),
        "RDMA of NCCL and Open MPI, where there is any; BytePS over TCP locks nothing",
        "ulimit -l unlimited, as root or in /etc/security/limits.conf",
    )
    shm = _finding(
        "/dev/shm",
        facts.shm_bytes < _ENOUGH_SHM_BYTES,
        "not there" if facts.shm_bytes < 0 else f"{format_nbytes(facts.shm_bytes)} free",
        "PyTorch's DataLoader with workers, and NCCL and Open MPI on one host: they die of SIGBUS when it is full",
        "mount -o remount,size=2G /dev/shm; in a container: --shm-size=2g",
    )
    disk = _finding(
        "disk",
        facts.disk_bytes < _ENOUGH_DISK_BYTES,
        f"{format_nbytes(facts.disk_bytes)} free in {facts.disk}",
        "`make reproduce`: the suite's environment and the peers' take 4.4 GiB, with CUDA several more",
        "free some; without peers, `make smoke` needs 2 GiB",
    )
    return [files, locked, shm, disk]


def _limit(number: int) -> str:
    return "unlimited" if number < 0 else str(number)


def _network(facts: Facts) -> list[Finding]:
    first, last = facts.ephemeral_ports
    loopback = any(one.address.startswith("127.") for one in facts.interfaces)
    trap = bool(facts.host_addresses) and all(_is_loopback(address) for address in facts.host_addresses)
    resolved = ", ".join(facts.host_addresses) or "nothing"
    user = next((one for one in facts.interfaces if one.address == facts.chosen), None)
    used = f"{user.name} ({_interface(user)})" if user else facts.chosen or "none"
    others = [f"{one.name} ({_interface(one)})" for one in facts.interfaces if one is not user]
    return [
        _finding(
            "loopback",
            not loopback,
            "up" if loopback else "no address of 127.0.0.0/8",
            "everything on one machine: `byteps launch --workers`, `byteps bench`, the tests",
            "ip link set lo up",
            essential=True,
        ),
        _finding(
            "interface",
            not facts.chosen,
            f"{used} for jobs across hosts; others: {', '.join(others) or 'none'}"
            if facts.chosen
            else f"none: {facts.why_none_chosen}",
            "jobs across hosts; those on this machine use loopback",
            "set DMLC_INTERFACE (a name or a CIDR) or DMLC_NODE_HOST, or add a route",
        ),
        _finding(
            "host name",
            trap or not facts.host_addresses,
            f"{facts.host_name} resolves to {resolved}",
            "what binds to the host's name, across hosts: gloo (DDP, Horovod), Open MPI; BytePS uses the route instead",
            f"put the host's own address for {facts.host_name} into /etc/hosts, or set GLOO_SOCKET_IFNAME",
        ),
        _finding(
            "scheduler port",
            bool(facts.why_no_port) or first <= facts.port <= last,
            f"{facts.port} {facts.why_no_port or 'is free'}"
            + (f", inside the ephemeral range {first}-{last}" if first <= facts.port <= last else ""),
            "a scheduler on it, here: any connection may have taken the port"
            if not facts.why_no_port
            else "a scheduler on it, here; `byteps launch --workers` takes a free one by itself",
            "set DMLC_PS_ROOT_PORT to another one, the same for all roles",
        ),
        _finding(
            "ephemeral ports",
            last - first < 1000,
            f"{first}-{last}" if last else "not known",
            "large jobs: every service and connection takes one",
            "sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
        ),
        _finding(
            "congestion control",
            bool(facts.why_no_congestion_control or facts.why_default_congestion_control),
            facts.why_no_congestion_control
            or facts.why_default_congestion_control
            or f"{facts.congestion_control}; this kernel has {' '.join(facts.congestion_controls)}",
            "every job, until it is there or another is asked for"
            if facts.why_no_congestion_control
            else "full speed where the default is bbr: many-to-one traffic reached 0.57 to 0.81 of the optimum",
            f"modprobe tcp_{facts.congestion_control}, or set BYTEPS_CONGESTION_CONTROL"
            if facts.why_no_congestion_control
            else f"as root: sysctl net.ipv4.tcp_allowed_congestion_control='reno {facts.congestion_control}'",
            essential=bool(facts.why_no_congestion_control),
        ),
    ]


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _interface(one: Interface) -> str:
    rate = format_rate(one.bytes_per_s) if one.bytes_per_s else "rate not known"
    return f"{one.address}, MTU {one.mtu or 'not known'}, {rate}"


def _lab(facts: Facts) -> list[Finding]:
    lacking = [name for name in SUITE_TOOLS if not facts.tools.get(name)]
    unbuilt = [name for name in BUILD_TOOLS if not facts.tools.get(name)]
    emulated = (
        "the emulated cluster, and with it Figures 4, 12, 15 and 16 on this machine; simulations and figures work"
    )
    return [
        _finding(
            "tools",
            bool(lacking),
            f"without {', '.join(lacking)}" if lacking else ", ".join(SUITE_TOOLS),
            emulated,
            f"apt-get install {' '.join(sorted({SUITE_TOOLS[name] for name in lacking}))}",
        ),
        _finding(
            "namespaces",
            bool(facts.why_no_namespaces),
            facts.why_no_namespaces or "can be made",
            emulated,
            "run as root (sudo); in a container: --privileged",
        ),
        _finding(
            "tc",
            bool(facts.why_no_shaping),
            facts.why_no_shaping or "can shape a NIC",
            "shaped NICs: " + emulated,
            "run as root (sudo), on a kernel with sch_tbf and veth",
        ),
        _finding(
            "sshd",
            not facts.tools.get("sshd"),
            facts.tools.get("sshd") or "not found",
            "the tests of an emulated cluster that is reached by ssh",
            "make sshd",
        ),
        _finding(
            "compiler",
            bool(unbuilt),
            f"without {', '.join(unbuilt)}" if unbuilt else ", ".join(BUILD_TOOLS),
            "Horovod as an opponent, which is built from source; all else is Python or comes as wheels",
            f"apt-get install {' '.join(BUILD_TOOLS[name] for name in unbuilt)}",
        ),
    ]
