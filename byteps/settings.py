"""The configuration of one process of a job: the names that users know, validated once, as one frozen value.

The launcher (and `init` without arguments) passes the environment in; nothing else in the library reads it.
Pure.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from byteps.errors import BytePSError
from byteps.partition import DEFAULT_PARTITION_BYTES
from byteps.table import Placement
from byteps.wire import MAX_PARTITION_NBYTES
from byteps.units import parse_nbytes, parse_rate, parse_seconds

Role = Literal["scheduler", "server", "worker"]
PREFIXES = ("BYTEPS_", "DMLC_")
# Names of the official BytePS (0.2.5) that mean nothing here: accepted with a notice, since scripts set them.
UNSUPPORTED = (
    "BYTEPS_DEBUG_SAMPLE_TENSOR", "BYTEPS_ENABLE_ASYNC", "BYTEPS_ENABLE_IPC", "BYTEPS_ENABLE_MIXED_MODE",
    "BYTEPS_MIXED_MODE_BOUND", "BYTEPS_NCCL_GROUP_SIZE", "BYTEPS_NUMA_ON", "BYTEPS_OMP_THREAD_PER_GPU",
    "BYTEPS_PCIE_SWITCH_SIZE", "BYTEPS_REDUCE_ROOTS", "BYTEPS_SERVER_ENABLE_SCHEDULE", "BYTEPS_SERVER_ENGINE_BLOCKING",
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


def _text(text: str) -> str:
    return text


def _named(name: str, parse: Callable[[str], Any], default: Any) -> Any:
    return field(default=default, metadata={"name": name, "parse": parse})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One process's configuration.  Each field is set by the variable it names."""

    role: Role = _named("DMLC_ROLE", _role, "worker")
    root_host: str = _named("DMLC_PS_ROOT_URI", _text, "127.0.0.1")
    root_port: int = _named("DMLC_PS_ROOT_PORT", _port, 9000)
    num_workers: int = _named("DMLC_NUM_WORKER", _count, 1)
    num_servers: int = _named("DMLC_NUM_SERVER", _count, 0)
    worker_id: int = _named("DMLC_WORKER_ID", _count, -1)  # -1: the scheduler chooses
    server_id: int = _named("DMLC_SERVER_ID", _count, -1)
    node_host: str = _named("DMLC_NODE_HOST", _text, "")  # this machine's address; default: the one towards the scheduler
    interface: str = _named("DMLC_INTERFACE", _text, "")  # an interface name or CIDR to take the address from
    local_rank: int = _named("BYTEPS_LOCAL_RANK", _count, 0)
    local_size: int = _named("BYTEPS_LOCAL_SIZE", _count, 1)
    job_secret: str = _named("BYTEPS_JOB_SECRET", _text, "")
    force_distributed: bool = _named("BYTEPS_FORCE_DISTRIBUTED", _flag, False)
    partition: int | Literal["auto"] = _named("BYTEPS_PARTITION_BYTES", _partition, DEFAULT_PARTITION_BYTES)
    placement: Placement = _named("BYTEPS_KEY_HASH_FN", _key_hash, "exact")
    nic_bytes_per_s: float = _named("BYTEPS_NIC_RATE", parse_rate, 0.0)  # 0: unknown, taken as equal everywhere
    credit_bytes: int = _named("BYTEPS_SCHEDULING_CREDIT", parse_nbytes, 0)  # bytes in flight per worker; 0: by partition
    service_processes: int = _named("BYTEPS_SERVICE_PROCESSES", _count, 0)  # per machine; 0: one per 4 cores
    congestion_control: str = _named("BYTEPS_CONGESTION_CONTROL", _text, "cubic")
    start_seconds: float = _named("BYTEPS_START_TIMEOUT", _seconds, 120.0)
    heartbeat_seconds: float = _named("BYTEPS_HEARTBEAT_TIMEOUT", _seconds, 30.0)
    stall_warn_seconds: float = _named("BYTEPS_STALL_WARNING", _seconds, 10.0)
    stall_seconds: float = _named("BYTEPS_STALL_TIMEOUT", _seconds, 60.0)

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise SettingsError("DMLC_NUM_WORKER is 0; a job has at least 1 worker")
        if not -1 <= self.worker_id < self.num_workers:
            raise SettingsError(
                f"DMLC_WORKER_ID is {self.worker_id}; with DMLC_NUM_WORKER={self.num_workers} use 0 to {self.num_workers - 1}"
            )
        if not -1 <= self.server_id < max(self.num_servers, 1):
            raise SettingsError(
                f"DMLC_SERVER_ID is {self.server_id}; with DMLC_NUM_SERVER={self.num_servers} use 0 to {self.num_servers - 1}"
            )
        if self.local_rank >= max(self.local_size, 1):
            raise SettingsError(f"BYTEPS_LOCAL_RANK is {self.local_rank}; with BYTEPS_LOCAL_SIZE={self.local_size} it is lower")
        if self.stall_warn_seconds >= self.stall_seconds:
            raise SettingsError(
                f"BYTEPS_STALL_WARNING ({self.stall_warn_seconds:g} s) must be below BYTEPS_STALL_TIMEOUT ({self.stall_seconds:g} s)"
            )

    @property
    def distributed(self) -> bool:
        """One worker alone is the identity and contacts nobody, unless forced."""
        return self.num_workers > 1 or self.force_distributed

    @property
    def secret(self) -> bytes:
        return self.job_secret.encode()

    def to_environment(self) -> dict[str, str]:
        """The variables that give these settings; the inverse of `read_settings`."""
        values: dict[str, str] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value == entry.default:
                continue
            if entry.metadata["parse"] is parse_rate:
                text = f"{value * 8:.0f}bit"
            else:
                text = str(int(value)) if isinstance(value, bool) else str(value)
            values[entry.metadata["name"]] = text
        return values


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
            warnings.append(f"{name} is not a variable of BytePS" + (f"; did you mean {nearest[0]}?" if nearest else ""))
    return Settings(**values), warnings
