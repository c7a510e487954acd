"""What there is to plan for: GPU machines, CPU machines and the rate of each one's NIC.

As TOML, where `count` stands for so many machines of one kind, named name0, name1, ...:

    [[machine]]
    name = "gpu"
    role = "gpu"
    nic = "25Gbit"
    count = 8

Rates are full duplex, per direction, and raw: headers are not counted here (see `theory.TCP_PAYLOAD_FRACTION`).
Pure but for `load_cluster`, which reads the file it is given.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from byteps.units import parse_rate

Role = Literal["gpu", "cpu"]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One host with one NIC."""

    name: str
    role: Role  # "gpu": a worker; "cpu": a summation service only
    nic_bytes_per_s: float  # each way

    def __post_init__(self) -> None:
        if not 0 < self.nic_bytes_per_s < float("inf"):
            raise ValueError(f"nic_bytes_per_s of {self.name!r} is {self.nic_bytes_per_s}; it must be above 0")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The machines.  Owner indices of `assign` count the GPU machines first, then the CPU machines, in this order."""

    machines: tuple[Machine, ...]

    def __post_init__(self) -> None:
        if not self.gpu_machines:
            raise ValueError('a cluster has at least 1 machine of role "gpu"; add one')
        twice = sorted(name for name, count in Counter(m.name for m in self.machines).items() if count > 1)
        if twice:
            raise ValueError(f"machine name {twice[0]!r} is used more than once; give every machine its own")

    @property
    def gpu_machines(self) -> tuple[Machine, ...]:
        return tuple(machine for machine in self.machines if machine.role == "gpu")

    @property
    def cpu_machines(self) -> tuple[Machine, ...]:
        return tuple(machine for machine in self.machines if machine.role == "cpu")

    @property
    def n(self) -> int:
        return len(self.gpu_machines)

    @property
    def k(self) -> int:
        return len(self.cpu_machines)

    @property
    def equal_nics(self) -> bool:
        return len({machine.nic_bytes_per_s for machine in self.machines}) == 1


def uniform_cluster(n: int, k: int, nic_bytes_per_s: float) -> Cluster:
    """n GPU machines gpu0, gpu1, ... and k CPU machines cpu0, cpu1, ... with equal NICs."""
    gpu = (Machine(name=f"gpu{i}", role="gpu", nic_bytes_per_s=nic_bytes_per_s) for i in range(n))
    cpu = (Machine(name=f"cpu{i}", role="cpu", nic_bytes_per_s=nic_bytes_per_s) for i in range(k))
    return Cluster(machines=(*gpu, *cpu))


class _MachineTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    role: Role
    nic: str
    count: int | None = None

    def machines(self) -> list[Machine]:
        if not self.name:
            raise ValueError("name is empty; a machine needs one")
        if self.count is not None and self.count < 1:
            raise ValueError(f"count is {self.count}; use 1 or more, or leave it out for one machine of that name")
        try:
            nic_bytes_per_s = parse_rate(self.nic)
        except ValueError as error:
            raise ValueError(f"nic: {error}") from None
        names = [self.name] if self.count is None else [f"{self.name}{i}" for i in range(self.count)]
        return [Machine(name=name, role=self.role, nic_bytes_per_s=nic_bytes_per_s) for name in names]


class _ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    machine: list[_MachineTable]


def parse_cluster(text: str, source: str) -> Cluster:
    """The cluster that a TOML text describes; `source` names the text in errors, which also name the key."""
    try:
        tables = msgspec.toml.decode(text, type=_ClusterFile).machine
    except msgspec.DecodeError as error:  # also not TOML at all
        raise ValueError(f"{source}: {error}") from error
    machines: list[Machine] = []
    for index, table in enumerate(tables):
        try:
            machines += table.machines()
        except ValueError as error:
            raise ValueError(f"{source}: machine[{index}].{error}") from None
    try:
        return Cluster(machines=tuple(machines))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def load_cluster(path: str | Path) -> Cluster:
    """The cluster described by a TOML file."""
    return parse_cluster(Path(path).read_text(encoding="utf-8"), str(path))
