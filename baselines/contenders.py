"""The one table of contenders: what each is called, how it looks in figures, and which processes it needs where.

A contender is a name and a function from a `Launch` (machines, sizes, settings) to the processes to start.  The
orchestrator (`experiments.launch`) starts them, talks with those that run `baselines.driver`, and ends them all; it
knows nothing about any contender.  To add one (Horovod, MXNet), write an adapter and add a line to `CONTENDERS`.

The scheduler of BytePS has a machine of its own: on a GPU machine its few messages would share the NIC whose bytes are
compared with the plan to 1 %, and a user's scheduler often sits elsewhere too.
Pure: plans are data; nothing is started here.
"""

import importlib.metadata
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from byteps.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
PORT = 29_400  # every launch has fresh namespaces' worth of ports to itself, since contenders are never up together


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A host of the cluster as a contender sees it."""

    host: str  # the back end's name for it
    address: str
    interface: str


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a contender must know to plan its processes."""

    gpu_machines: tuple[Machine, ...]  # n of them, one worker each
    cpu_machines: tuple[Machine, ...]  # k of them
    scheduler: Machine
    nic_bytes_per_s: float
    nbytes: int  # per worker
    settings: Mapping[str, str]
    secret: str  # hexadecimal, fresh for every launch
    port: int = PORT


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
    spins: bool = False  # keeps a core busy while waiting; its CPU-bound points are drawn hollow instead of refused


_DRIVER = (
    "baselines/driver.py",
    "baselines/data.py",
    "baselines/contenders.py",
    "experiments/launch.py",
    "experiments/crew.py",
)
_LAB = ("scripts/lab.py", "scripts/netns.py")
_BYTEPS = ("byteps/*.py", "!byteps/cli.py", "!byteps/bench.py", "!byteps/theory.py", "!byteps/torch.py")


def driver_argv(adapter: str, rank: int, launch: Launch, settings: Mapping[str, str]) -> tuple[str, ...]:
    """The command line of a worker that runs the driver with an adapter."""
    return (
        *(sys.executable, "-m", "baselines.driver", "--adapter", f"baselines.adapters.{adapter}"),
        *("--rank", str(rank), "--size", str(len(launch.gpu_machines)), "--nbytes", str(launch.nbytes)),
        *("--settings", json.dumps(dict(settings), sort_keys=True)),
    )


def _plan_byteps(launch: Launch) -> list[Process]:
    def role_env(role: str, machine: Machine) -> dict[str, str]:
        return {
            "DMLC_ROLE": role,
            "DMLC_PS_ROOT_URI": launch.scheduler.address,
            "DMLC_PS_ROOT_PORT": str(launch.port),
            "DMLC_NUM_WORKER": str(len(launch.gpu_machines)),
            "DMLC_NUM_SERVER": str(len(launch.cpu_machines)),
            "DMLC_NODE_HOST": machine.address,
            "BYTEPS_JOB_SECRET": launch.secret,
            "BYTEPS_PARTITION_BYTES": launch.settings.get("partition", "auto"),
            "BYTEPS_NIC_RATE": f"{launch.nic_bytes_per_s * 8 / 1e6:g}Mbit",
        }

    start = (sys.executable, "-m", "byteps", "launch")
    processes = [
        Process(host=launch.scheduler.host, name="scheduler", argv=start, env=role_env("scheduler", launch.scheduler))
    ]
    for index, machine in enumerate(launch.cpu_machines):
        env = {**role_env("server", machine), "DMLC_SERVER_ID": str(index)}
        processes.append(Process(host=machine.host, name=f"server {index}", argv=start, env=env))
    for rank, machine in enumerate(launch.gpu_machines):
        argv = (*start, "--", *driver_argv("byteps_adapter", rank, launch, launch.settings))
        env = {**role_env("worker", machine), "DMLC_WORKER_ID": str(rank)}
        processes.append(Process(host=machine.host, name=f"worker {rank}", argv=argv, env=env, rank=rank))
    return processes


def _plan_gloo(launch: Launch) -> list[Process]:
    rendezvous = f"tcp://{launch.gpu_machines[0].address}:{launch.port}"
    return [
        Process(
            host=machine.host,
            name=f"worker {rank}",
            argv=driver_argv("gloo_adapter", rank, launch, {**launch.settings, "rendezvous": rendezvous}),
            env={"GLOO_SOCKET_IFNAME": machine.interface, "OMP_NUM_THREADS": "1"},
            rank=rank,
        )
        for rank, machine in enumerate(launch.gpu_machines)
    ]


def _version_of(distribution: str) -> Callable[[], str]:
    def version() -> str:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            return "not installed"

    return version


CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender(
            name="byteps",
            label="BytePS",
            colour="#0072B2",
            marker="o",
            uses_k=True,
            version=lambda: VERSION,
            sources=(*_BYTEPS, *_DRIVER, *_LAB, "baselines/adapters/byteps_adapter.py"),
            plan=_plan_byteps,
        ),
        Contender(
            name="gloo-ring",
            label="Ring all-reduce (gloo)",
            colour="#D55E00",
            marker="s",
            uses_k=False,
            version=_version_of("torch"),
            sources=(*_DRIVER, *_LAB, "baselines/adapters/gloo_adapter.py"),
            plan=_plan_gloo,
        ),
        Contender(
            name="cpu-adder",
            label="CPU adder",
            colour="#009E73",
            marker="D",
            uses_k=False,
            version=_version_of("numpy"),
            sources=("byteps/kernels.py", "experiments/adder.py"),
            plan=None,
        ),
    )
}

USES_K = {name: contender.uses_k for name, contender in CONTENDERS.items()}


def get(name: str) -> Contender:
    """The contender of that name."""
    if name not in CONTENDERS:
        raise ValueError(f"contender {name!r} is not registered; registered are {', '.join(sorted(CONTENDERS))}")
    return CONTENDERS[name]


def source_files(contender: Contender) -> list[Path]:
    """The files that its sources name; a pattern that matches nothing is an error in the table."""
    files: set[Path] = set()
    for pattern in (p for p in contender.sources if not p.startswith("!")):
        found = set(ROOT.glob(pattern))
        if not found:
            raise FileNotFoundError(f"contender {contender.name}: no file matches {pattern} under {ROOT}")
        files |= found
    for pattern in (p[1:] for p in contender.sources if p.startswith("!")):
        files -= set(ROOT.glob(pattern))
    return sorted(files)
