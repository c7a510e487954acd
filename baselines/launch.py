"""What a launch of a contender needs to know, and what it consists of: plain data, nothing is started here."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from baselines import strategies
from byteps.units import parse_nbytes

ROOT = Path(__file__).resolve().parent.parent
PORT = 29_400  # every launch has fresh namespaces' worth of ports to itself, since contenders are never up together
SWITCH = "switch"  # the back end's name for where processes of the switch run
LEADER_PORT_DISTANCE = 1500  # beyond the ports of launches, below those that the kernel hands out


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A host of the cluster as a contender sees it."""

    host: str  # the back end's name for it
    address: str
    interface: str
    nic_bytes_per_s: float = 0.0  # each way; 0 where no NIC is involved
    more_addresses: tuple[str, ...] = ()  # of further NICs

    @property
    def addresses(self) -> tuple[str, ...]:
        """By NIC."""
        return (self.address, *self.more_addresses)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a contender must know to plan its processes."""

    gpu_machines: tuple[Machine, ...]  # n of them, one worker each
    cpu_machines: tuple[Machine, ...]  # k of them
    scheduler: Machine
    nic_bytes_per_s: float
    nbytes: int  # per worker; of the largest workload
    settings: Mapping[str, str]
    scale: float = 1.0  # divides the tensors of a replayed model, and every size among the settings
    secret: str  # hexadecimal, fresh for every launch
    port: int = PORT
    switch_address: str = ""  # of the switch that all machines are on, for those that run a process in it

    def knob(self, name: str, default: str) -> int:
        """A size among the settings, of full-size tensors, as it is for scaled ones: bytes or elements."""
        return max(1, round(parse_nbytes(self.settings.get(name, default)) / self.scale))

    @property
    def servers(self) -> tuple[Machine, ...]:
        """Where a parameter server's processes belong: on the CPU machines, or colocated where there are none."""
        return self.cpu_machines or self.gpu_machines


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process to start on one host."""

    host: str
    name: str  # unique in the launch, e.g. "worker 3"; names its log
    argv: tuple[str, ...]
    env: Mapping[str, str]  # on top of the orchestrator's own
    rank: int = -1  # >= 0: it runs the driver and takes part in the lock-step


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A line of the table."""

    name: str
    label: str  # in legends
    colour: str
    marker: str
    uses_k: bool  # False: it makes no use of CPU machines and runs once per block
    version: Callable[[], str]
    sources: tuple[str, ...]  # globs under the repository: the code that a launch of it exercises
    plan: Callable[[Launch], list[Process]] | None  # None: it has no processes (measured inside the orchestrator)
    missing: Callable[[], str] = str  # why it cannot run here and how to install it; "" if it can
    uses_switch: bool = False  # a process of it runs in the switch (host `SWITCH`); such are only emulated
    only_emulated: str = ""  # why it cannot run where hosts are machines of their own; "" if it can
    # (n, k, M) -> payload bytes that a GPU machine's NIC sends per iteration, the algorithm's formula
    nic_nbytes: Callable[[int, int, int], float] | None = None


def ring_nbytes(n: int, _k: int, nbytes: int) -> float:
    """What ring all-reduce sends from every machine: 2(n-1)M/n."""
    return 2 * (n - 1) * nbytes / n


def server_nbytes(n: int, k: int, nbytes: int) -> float:
    """What a parameter server's workers send: M to the CPU machines; colocated, as much as a ring."""
    return float(nbytes) if k else ring_nbytes(n, k, nbytes)


# The code of a launch that does not depend on the contender.
DRIVER = (
    "baselines/driver.py",
    "baselines/replay.py",
    "baselines/strategies.py",
    "baselines/window.py",
    "baselines/order.py",
    "baselines/session.py",
    "baselines/data.py",
    "baselines/launch.py",
    "experiments/launch.py",
    "experiments/crew.py",
    "experiments/emulated.py",
    "experiments/catalogue.py",
    "experiments/workloads.py",
    "experiments/layers.py",
    "experiments/models/*.toml",
    "scripts/lab.py",
    "scripts/netns.py",
)


def driver_argv(
    adapter: str, rank: int, launch: Launch, settings: Mapping[str, str], python: str = sys.executable
) -> tuple[str, ...]:
    """The command line of a worker that runs the driver with an adapter of `baselines.adapters`."""
    told = dict(settings)
    if told.get("strategy", "plain") != "plain":
        told |= {name: str(launch.knob(name, default)) for name, default in strategies.DEFAULTS.items()}
        told["leader"] = f"{launch.gpu_machines[0].address}:{launch.port + LEADER_PORT_DISTANCE}"
    return (
        *(python, "-m", "baselines.driver", "--adapter", f"baselines.adapters.{adapter}"),
        *("--rank", str(rank), "--size", str(len(launch.gpu_machines))),
        *("--settings", json.dumps(told, sort_keys=True)),
    )
