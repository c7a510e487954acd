"""What there is to plan for: GPU machines, CPU machines, and the network between them.

As TOML, where `count` stands for so many machines of one kind, named name0, name1, ...; the keys from `gpus` on, and
the network, may be left out:

    [[machine]]
    name = "gpu"
    role = "gpu"
    nic = "25Gbit"                # or ["100Gbit", "100Gbit"]
    count = 8
    gpus = 8                      # default: 1 in a GPU machine
    machine = "nvlink"            # its inside: a preset, or the path of a description, as seen from this file
    price = 24.5                  # per hour
    rack = "r1"                   # default: directly at a network that is never the limit

    [network]
    oversubscription = 2.0        # of the racks' uplinks

The same file takes what running on these machines needs, such as their addresses; see `byteps.hosts`.

Rates are full duplex, per direction, and raw: headers are not counted here (see `theory.TCP_PAYLOAD_FRACTION`).
A machine sums its own GPUs' gradients before it sends, so the network carries M per machine however many those are.
Pure but for `load_cluster`, which reads the file it is given.
"""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from byteps.cluster_file import ClusterFile, MachineTable, must_be, parse_file, read_text, where
from byteps.machine import PRESETS

Role = Literal["gpu", "cpu"]
_MOST_APART = 1e6  # of rates: beyond it the linear programme's tolerances no longer tell them apart


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One host."""

    name: str
    role: Role  # "gpu": a worker; "cpu": a summation service only
    nic_bytes_per_s: float  # each way, of all its NICs together
    nics: tuple[float, ...] = ()  # the same of each NIC; not given: there is one
    gpus: int = -1  # not given: 1 in a GPU machine, 0 in a CPU machine
    machine: str = ""  # name of a preset or path of a description; "": its inside is not known
    price: float = 0.0  # per hour, in any currency; 0: not given
    rack: str = ""  # "": at the network's core, behind no uplink

    def __post_init__(self) -> None:
        if not 0 < self.nic_bytes_per_s < math.inf:
            raise ValueError(f"nic_bytes_per_s of {self.name!r} is {self.nic_bytes_per_s}; it must be above 0")
        if not self.nics:
            object.__setattr__(self, "nics", (self.nic_bytes_per_s,))
        if not math.isclose(sum(self.nics), self.nic_bytes_per_s):
            raise ValueError(f"nics of {self.name!r} are {self.nics}; they must sum to {self.nic_bytes_per_s}")
        if self.gpus == -1:
            object.__setattr__(self, "gpus", int(self.role == "gpu"))
        if (self.gpus > 0) != (self.role == "gpu"):
            raise ValueError(f"gpus of {self.name!r} is {self.gpus}; a GPU machine has 1 or more, a CPU machine 0")
        if not 0 <= self.price < math.inf:
            raise ValueError(f"price of {self.name!r} is {self.price}; use 0 or more per hour, or leave it out")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The machines.  Owner indices of `assign` count the GPU machines first, then the CPU machines, in this order."""

    machines: tuple[Machine, ...]
    oversubscription: float = 1.0  # what the machines of a rack could send, over what its uplink carries

    def __post_init__(self) -> None:
        if not self.gpu_machines:
            raise ValueError('a cluster has at least 1 machine of role "gpu"; add one')
        twice = sorted(name for name, count in Counter(m.name for m in self.machines).items() if count > 1)
        if twice:
            raise ValueError(f"machine name {twice[0]!r} is used more than once; give every machine its own")
        if not 1 <= self.oversubscription < math.inf:
            raise ValueError(
                f"oversubscription is {self.oversubscription}; use 1.0 (none) or more, such as 4.0 for 4:1"
            )
        rates = [machine.nic_bytes_per_s for machine in self.machines]
        if self.oversubscription > _MOST_APART or max(rates) > _MOST_APART * min(rates):
            raise ValueError(
                f"NICs from {min(rates) * 8:g} to {max(rates) * 8:g} bit/s, oversubscription {self.oversubscription:g} "
                f"is a factor of more than {_MOST_APART:g}; check the units"
            )
        if self.oversubscription > 1 and not any(machine.rack for machine in self.machines):
            raise ValueError(f"oversubscription is {self.oversubscription}, but no machine has a rack; give them one")

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

    @property
    def uplinks(self) -> dict[str, float]:
        """By rack: bytes per second each way between it and the rest of the network."""
        racks = dict.fromkeys(machine.rack for machine in self.machines if machine.rack)
        sums = {rack: sum(m.nic_bytes_per_s for m in self.machines if m.rack == rack) for rack in racks}
        return {rack: rate / self.oversubscription for rack, rate in sums.items()}


def uniform_cluster(n: int, k: int, nic_bytes_per_s: float) -> Cluster:
    """n GPU machines gpu0, gpu1, ... and k CPU machines cpu0, cpu1, ... with equal NICs."""
    gpu = (Machine(name=f"gpu{i}", role="gpu", nic_bytes_per_s=nic_bytes_per_s) for i in range(n))
    cpu = (Machine(name=f"cpu{i}", role="cpu", nic_bytes_per_s=nic_bytes_per_s) for i in range(k))
    return Cluster(machines=(*gpu, *cpu))


def parse_cluster(text: str, source: str) -> Cluster:
    """The cluster that a TOML text describes; a ValueError names `source`, the machine, the key, and what is allowed.

    The paths of descriptions are taken as relative to the folder of `source`.
    """
    return cluster_of(parse_file(text, source), source)


def cluster_of(file: ClusterFile, source: str) -> Cluster:
    """The same, of the tables of a text."""
    machines: list[Machine] = []
    for index, table in enumerate(file.machine):
        try:
            machines += _machines(table, Path(source).parent)
        except ValueError as error:
            raise ValueError(f"{source}: machine[{index}].{error}") from None
    try:
        return Cluster(machines=tuple(machines), oversubscription=file.network.oversubscription)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def load_cluster(path: str | Path) -> Cluster:
    """The cluster described by a TOML file, whose machines' descriptions are there."""
    file = parse_file(read_text(path), str(path))
    for index, table in enumerate(file.machine):
        description = table.machine and _inside(table.machine, Path(path).parent)
        if description and description not in PRESETS and not Path(description).is_file():
            place = where(table, index, "machine")
            allowed = f"a preset ({', '.join(PRESETS)}) or the path of a description, as seen from {path}"
            raise ValueError(f"{path}: {must_be(place, table.machine, allowed, f'there is no file {description}')}")
    return cluster_of(file, str(path))


def _machines(table: MachineTable, folder: Path) -> list[Machine]:
    return [
        Machine(
            name=name,
            role=table.role,
            nic_bytes_per_s=sum(table.rates),
            nics=table.rates,
            gpus=-1 if table.gpus is None else table.gpus,
            machine=table.machine and _inside(table.machine, folder),
            price=table.price,
            rack=table.rack,
        )
        for name in table.names
    ]


def _inside(machine: str, folder: Path) -> str:
    return machine if machine in PRESETS else str(folder / Path(machine).expanduser())
