"""The configuration of one process of a job: the names that users know, validated once, as one frozen value.

The launcher (and `init` without arguments) passes the environment in; nothing else in the library reads it.
Pure.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from byteps.errors import BytePSError
from byteps.partition import DEFAULT_PARTITION_BYTES
from byteps.table import Placement
from byteps.units import parse_nbytes, parse_rate, parse_seconds
from byteps.wire import MAX_PARTITION_NBYTES

Role = Literal["scheduler", "server", "worker"]
PREFIXES = ("BYTEPS_", "DMLC_")
# Names of the official BytePS (0.2.5) that mean nothing here: accepted with a notice, since scripts set them.
UNSUPPORTED = (
    "BYTEPS_BUILT_IN_HASH_COEF", "BYTEPS_DEBUG_SAMPLE_TENSOR", "BYTEPS_ENABLE_GDB",
    "BYTEPS_ENABLE_IPC", "BYTEPS_ENABLE_MIXED_MODE", "BYTEPS_LOG_HIDE_TIME", "BYTEPS_LOG_LEVEL",
    "BYTEPS_MIN_COMPRESS_BYTES", "BYTEPS_MIXED_MODE_BOUND", "BYTEPS_NCCL_GROUP_SIZE", "BYTEPS_NUMA_ON",
    "BYTEPS_OMP_THREAD_PER_GPU", "BYTEPS_SERVER_DEBUG",
    "BYTEPS_SERVER_DEBUG_KEY", "BYTEPS_SERVER_ENABLE_SCHEDULE", "BYTEPS_SERVER_ENGINE_BLOCKING",
    "BYTEPS_SERVER_ENGINE_THREAD", "BYTEPS_SOCKET_PATH", "BYTEPS_THREADPOOL_SIZE", "BYTEPS_TRACE_DIR",
    "BYTEPS_TRACE_END_STEP", "BYTEPS_TRACE_ON", "BYTEPS_TRACE_START_STEP", "DMLC_ENABLE_RDMA",
)  # fmt: skip


class SettingsError(BytePSError, ValueError):
    """A variable has a value that it cannot have; the text names both."""


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("use a whole number of 0 or more, such as 4")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ValueError("use a port from 1 to 65535, such as 9000")
    return int(text)


def _flag(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("1", "true", "on", "yes"):
        return True
    if lowered in ("0", "false", "off", "no", ""):
        return False
    raise ValueError("use 1, true, on, yes or 0, false, off, no")


def _role(text: str) -> str:
    if text not in ("scheduler", "server", "worker"):
        raise ValueError("use scheduler, server or worker")
    return text


def _partition(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    nbytes = parse_nbytes(text)
    if not 64 <= nbytes <= MAX_PARTITION_NBYTES:
        raise ValueError("use 64 bytes to 1 GiB, such as 4MB, or auto")
    return nbytes


def _key_hash(text: str) -> str:
    # The official name for choosing a hash; all its hashes are the one documented hash here.
    if text in ("naive", "built_in", "djb2", "sdbm", "mixed", "hash"):
        return "hash"
    if text == "exact":
        return "exact"
    raise ValueError("use exact (default), or hash for the paper's placement by hash")


def _seconds(text: str) -> float:
    seconds = parse_seconds(text)
    if seconds <= 0:
        raise ValueError("use more than 0 seconds")
    return seconds


class Steps(NamedTuple):
    """The steps from `first` to before `end`."""

    first: int
    end: int

    def __str__(self) -> str:
        return f"{self.first}:{self.end}"


def _steps(text: str) -> Steps:
    first, colon, end = text.partition(":")
    if not colon or not first.isdecimal() or not end.isdecimal() or int(first) >= int(end):
        raise ValueError("use FIRST:END, such as 10:20 for the steps 10 to 19")
    return Steps(int(first), int(end))


def _ranks(text: str) -> str:
    numbers = text.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise ValueError("use local ranks, such as 2,3")
    return ",".join(sorted({str(int(number)) for number in numbers}, key=int))


def _host(text: str) -> str:
    return text.strip("[]")  # [::1]


def _text(text: str) -> str:
    return text


def _from(name: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    """The variable that sets a field."""
    return {"name": name, "parse": parse}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One process's configuration.  Each field is set by the variable it names."""

    role: Role = field(default="worker", metadata=_from("DMLC_ROLE", _role))
    root_host: str = field(default="127.0.0.1", metadata=_from("DMLC_PS_ROOT_URI", _host))
    root_port: int = field(default=9000, metadata=_from("DMLC_PS_ROOT_PORT", _port))
    num_workers: int = field(default=1, metadata=_from("DMLC_NUM_WORKER", _count))
    num_servers: int = field(default=0, metadata=_from("DMLC_NUM_SERVER", _count))
    worker_id: int = field(default=-1, metadata=_from("DMLC_WORKER_ID", _count))  # -1: the scheduler chooses
    server_id: int = field(default=-1, metadata=_from("DMLC_SERVER_ID", _count))
    # Addresses to listen on; default: the one towards the scheduler
    node_host: str = field(default="", metadata=_from("DMLC_NODE_HOST", _text))
    # Interface names or CIDRs to take the addresses from
    interface: str = field(default="", metadata=_from("DMLC_INTERFACE", _text))
    local_rank: int = field(default=0, metadata=_from("BYTEPS_LOCAL_RANK", _count))
    local_size: int = field(default=1, metadata=_from("BYTEPS_LOCAL_SIZE", _count))
    # Whether the workers of a machine are summed there, and count as one of num_workers; else the two above only inform
    local_reduction: bool = field(default=True, metadata=_from("BYTEPS_LOCAL_REDUCTION", _flag))
    # GPUs of this machine: its description, a preset or a file; default: not known
    machine: str = field(default="", metadata=_from("BYTEPS_MACHINE", _text))
    # Local ranks that exchange gradients with the host for all ("": what suits the machine); workers per PCIe switch
    reduce_roots: str = field(default="", metadata=_from("BYTEPS_REDUCE_ROOTS", _ranks))
    pcie_switch_size: int = field(default=0, metadata=_from("BYTEPS_PCIE_SWITCH_SIZE", _count))
    job_secret: str = field(default="", metadata=_from("BYTEPS_JOB_SECRET", _text))
    force_distributed: bool = field(default=False, metadata=_from("BYTEPS_FORCE_DISTRIBUTED", _flag))
    # What DistributedOptimizer does where it is not told its mode
    asynchronous: bool = field(default=False, metadata=_from("BYTEPS_ENABLE_ASYNC", _flag))
    partition: int | Literal["auto"] = field(
        default=DEFAULT_PARTITION_BYTES, metadata=_from("BYTEPS_PARTITION_BYTES", _partition)
    )
    placement: Placement = field(default="exact", metadata=_from("BYTEPS_KEY_HASH_FN", _key_hash))
    # A file of the scheduler's (`plan`); default: shares by the NIC rates
    plan: str = field(default="", metadata=_from("BYTEPS_PLAN", _text))
    # 0: unknown, then taken as equal everywhere
    nic_bytes_per_s: float = field(default=0.0, metadata=_from("BYTEPS_NIC_RATE", parse_rate))
    # In flight per worker; 0: by partition.
    credit_bytes: int = field(default=0, metadata=_from("BYTEPS_SCHEDULING_CREDIT", parse_nbytes))
    # Per machine; 0: one per 4 cores
    service_processes: int = field(default=0, metadata=_from("BYTEPS_SERVICE_PROCESSES", _count))
    congestion_control: str = field(default="cubic", metadata=_from("BYTEPS_CONGESTION_CONTROL", _text))
    # A file for what happens when (`trace`); default: none
    trace: str = field(default="", metadata=_from("BYTEPS_TRACE", _text))
    trace_steps: Steps = field(default=Steps(0, 20), metadata=_from("BYTEPS_TRACE_STEPS", _steps))
    start_seconds: float = field(default=120.0, metadata=_from("BYTEPS_START_TIMEOUT", _seconds))
    heartbeat_seconds: float = field(default=30.0, metadata=_from("BYTEPS_HEARTBEAT_TIMEOUT", _seconds))
    stall_warn_seconds: float = field(default=10.0, metadata=_from("BYTEPS_STALL_WARNING", _seconds))
    stall_seconds: float = field(default=60.0, metadata=_from("BYTEPS_STALL_TIMEOUT", _seconds))

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise SettingsError("DMLC_NUM_WORKER is 0; a job has at least 1 worker")
        if not -1 <= self.worker_id < self.num_workers:
            raise SettingsError(
                f"DMLC_WORKER_ID is {self.worker_id}; with DMLC_NUM_WORKER={self.num_workers} "
                f"use 0 to {self.num_workers - 1}"
            )
        if not -1 <= self.server_id < max(self.num_servers, 1):
            raise SettingsError(
                f"DMLC_SERVER_ID is {self.server_id}; with DMLC_NUM_SERVER={self.num_servers} "
                f"use 0 to {max(self.num_servers - 1, 0)}"
            )
        if self.local_rank >= max(self.local_size, 1):
            raise SettingsError(
                f"BYTEPS_LOCAL_RANK is {self.local_rank}; with BYTEPS_LOCAL_SIZE={self.local_size} it must be lower"
            )
        if self.local_size > 1 and self.reduce_roots and int(self.reduce_roots.split(",")[-1]) >= self.local_size:
            raise SettingsError(
                f"BYTEPS_REDUCE_ROOTS is {self.reduce_roots}; with BYTEPS_LOCAL_SIZE={self.local_size} use local ranks "
                f"0 to {self.local_size - 1}"
            )
        if self.local_size > 1 and self.pcie_switch_size and self.local_size % self.pcie_switch_size:
            raise SettingsError(
                f"BYTEPS_PCIE_SWITCH_SIZE is {self.pcie_switch_size}; use one that divides "
                f"BYTEPS_LOCAL_SIZE={self.local_size}"
            )
        if self.stall_warn_seconds >= self.stall_seconds:
            raise SettingsError(
                f"BYTEPS_STALL_WARNING ({self.stall_warn_seconds:g} s) must be below "
                f"BYTEPS_STALL_TIMEOUT ({self.stall_seconds:g} s)"
            )

    @property
    def workers_per_machine(self) -> int:
        """That are summed there before the network sees them."""
        return max(self.local_size, 1) if self.local_reduction else 1

    @property
    def size(self) -> int:
        """All workers; `num_workers` are those that the network sees, the machines."""
        return self.num_workers * self.workers_per_machine

    @property
    def rank(self) -> int:
        """Among all workers; -1 if the scheduler chooses."""
        return self.worker_id if self.workers_per_machine == 1 else self.rank_of(self.local_rank)

    def rank_of(self, local_rank: int) -> int:
        """The rank of one of this machine's workers."""
        return self.worker_id * self.workers_per_machine + local_rank if self.worker_id >= 0 else -1

    @property
    def distributed(self) -> bool:
        """One worker alone is the identity and contacts nobody, unless forced."""
        return self.size > 1 or self.force_distributed

    @property
    def networked(self) -> bool:
        """Whether there are summation services: not for the workers of a single machine."""
        return self.num_workers > 1 or self.force_distributed

    @property
    def nics(self) -> list[str]:
        """The hosts or interfaces that were named to listen on; none: by the route to the scheduler."""
        return [name.strip() for name in (self.node_host or self.interface).split(",") if name.strip()]

    @property
    def secret(self) -> bytes:
        return self.job_secret.encode()

    def to_environment(self) -> dict[str, str]:
        """The variables that give these settings; the inverse of `read_settings`.

        All of them, so that none is inherited from the parent's own environment; an empty one means the default.
        """
        return {entry.metadata["name"]: _write(entry, getattr(self, entry.name)) for entry in fields(self)}


def _write(entry: "Field[Any]", value: Any) -> str:
    parse = entry.metadata["parse"]
    if parse is parse_rate:
        text = f"{Decimal(value * 8):f}bit"
    elif isinstance(value, float):
        text = f"{Decimal(value):f}"
    else:
        text = str(int(value)) if isinstance(value, bool) else str(value)
    try:
        parse(text)
    except ValueError:  # a default that stands for "not given"
        return ""
    return text


def read_settings(environment: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Settings from variables, and warnings about names that are unknown or have no effect here."""
    known = {entry.metadata["name"]: entry for entry in fields(Settings)}
    values: dict[str, Any] = {}
    warnings: list[str] = []
    for name in sorted(environment):
        if not name.startswith(PREFIXES):
            continue
        if name in known:
            text = environment[name].strip()
            if not text:
                continue
            try:
                values[known[name].name] = known[name].metadata["parse"](text)
            except ValueError as error:
                raise SettingsError(f"{name}={text!r} is not valid: {error}") from None
        elif name in UNSUPPORTED:
            warnings.append(f"{name} has no effect in this implementation")
        else:
            nearest = difflib.get_close_matches(name, [*known, *UNSUPPORTED], n=1, cutoff=0.6)
            advice = f"; did you mean {nearest[0]}?" if nearest else ""
            warnings.append(f"{name} is not a variable of BytePS{advice}")
    return Settings(**values), warnings
