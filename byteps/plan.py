"""The plan as a file: what `byteps plan` found best for a cluster, for people to read and for the scheduler to follow.

JSON, with the machines in the order in which the runtime counts them: GPU machines by rank (DMLC_WORKER_ID), CPU
machines by number (DMLC_SERVER_ID).  The runtime takes the shares and the partition size from it.  What a GPU machine
does inside is recorded beside them; so are the NICs and the predicted time, to compare with what is then measured.
Pure but for `load_plan` and `write_plan`, which read and write the file they are given.
"""

import math
from collections import Counter
from pathlib import Path
from typing import Literal

import msgspec

from byteps.assign import Shares
from byteps.expected import expected
from byteps.wire import MAX_PARTITION_NBYTES

SHARES_TOLERANCE = 1e-6  # of their sum; people round


class LocalStrategy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a machine sums the gradients of its GPUs, and gives them the result."""

    name: str
    roots: tuple[str, ...] = ()
    reason: str = ""


class PlannedMachine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine of the cluster."""

    name: str
    share: float  # of every gradient: what its summation service sums
    nics_bytes_per_s: tuple[float, ...]  # of each NIC, each way
    local: LocalStrategy | None = None  # null: there is nothing to sum inside

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share of {self.name!r} is {self.share}; use a fraction from 0 to 1")
        if not self.nics_bytes_per_s or not all(0 < rate < math.inf for rate in self.nics_bytes_per_s):
            rates = list(self.nics_bytes_per_s)
            raise ValueError(f"nics_bytes_per_s of {self.name!r} is {rates}; give each NIC's rate, above 0")


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who sums what, in partitions of what size, on one cluster."""

    schema: Literal[1] = 1
    cluster: str  # the name of the cluster's file
    n: int
    k: int
    partition_bytes: int
    predicted_seconds: float  # of one iteration
    gpu_machines: tuple[PlannedMachine, ...]
    cpu_machines: tuple[PlannedMachine, ...]

    def __post_init__(self) -> None:
        machines = self.gpu_machines + self.cpu_machines
        if self.n != len(self.gpu_machines):
            raise ValueError(f"n is {self.n}, but gpu_machines has {len(self.gpu_machines)}; list each of them")
        if self.k != len(self.cpu_machines):
            raise ValueError(f"k is {self.k}, but cpu_machines has {len(self.cpu_machines)}; list each of them")
        if not self.gpu_machines:
            raise ValueError("gpu_machines is empty; a job has at least 1")
        name, times = Counter(machine.name for machine in machines).most_common(1)[0]
        if times > 1:
            raise ValueError(f"name {name!r} is used {times} times; give every machine its own")
        total = math.fsum(machine.share for machine in machines)
        if abs(total - 1) > SHARES_TOLERANCE:
            raise ValueError(f"share sums to {total:.9g} over all machines; make it 1")
        if not 64 <= self.partition_bytes <= MAX_PARTITION_NBYTES:
            raise ValueError(f"partition_bytes is {self.partition_bytes}; use 64 to {MAX_PARTITION_NBYTES}")
        if not 0 <= self.predicted_seconds < math.inf:
            raise ValueError(f"predicted_seconds is {self.predicted_seconds}; use 0 or more")

    @property
    def shares(self) -> Shares:
        return Shares(
            gpu=tuple(machine.share for machine in self.gpu_machines),
            cpu=tuple(machine.share for machine in self.cpu_machines),
            notice=f"shares are those planned for {self.cluster}",
        )


def parse_plan(text: str | bytes, source: str) -> Plan:
    """The plan that a JSON text describes; `source` names the text in errors, which also name key and value."""
    try:
        return msgspec.json.decode(text, type=Plan)
    except msgspec.ValidationError as error:
        raise ValueError(f"{source}: {error}{expected(error, Plan)}") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"{source}: {error}; a plan is JSON, as `byteps plan` writes it") from error


def load_plan(path: str | Path) -> Plan:
    """The plan that `write_plan` wrote, or somebody by hand."""
    return parse_plan(Path(path).read_bytes(), str(path))


def write_plan(plan: Plan, path: str | Path) -> None:
    """As indented JSON, every number exact."""
    Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n")
