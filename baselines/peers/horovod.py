"""Horovod with gloo: ring all-reduce behind its own negotiation, fusion and background thread.

Settings: `fusion` (bytes of Horovod's fusion buffer), `cycle` (milliseconds between two negotiations), `wait` ("poll":
ask, then sleep; "spin": Horovod's own wait, which yields the processor without pause and leaves no core idle).
The ranks are started here and not by horovodrun: it starts them over ssh and keeps their standard input.  What it would
tell them stands in the environment, and the server in which they meet is a process of its own on the first machine.
"""

from baselines.environments import Environment
from baselines.launch import DRIVER, Contender, Launch, Machine, Process, driver_argv, ring_nbytes

FUSION = "128MiB"  # Horovod's default, as is the next
CYCLE_MS = "1"
TIMEOUT_SECONDS = 120  # of one wait for a peer; its default of 30 s is short for a large tensor on a slow link
WAITS = ("poll", "spin")

ENVIRONMENT = Environment(name="horovod", label="Horovod", distribution="horovod", version_wanted="0.28.1")


def _rank_env(launch: Launch, rank: int, machine: Machine) -> dict[str, str]:
    size = str(len(launch.gpu_machines))
    return {
        # The name of this host among the others: ranks of the same name would be taken for processes of one machine.
        "HOROVOD_HOSTNAME": machine.address,
        **{"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": size},
        **{"HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1"},
        **{"HOROVOD_CROSS_RANK": str(rank), "HOROVOD_CROSS_SIZE": size},
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": launch.gpu_machines[0].address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(launch.port),
        "HOROVOD_GLOO_IFACE": machine.interface,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(TIMEOUT_SECONDS),
        "HOROVOD_FUSION_THRESHOLD": str(launch.knob("fusion", FUSION)),
        "HOROVOD_CYCLE_TIME": str(float(launch.settings.get("cycle", CYCLE_MS))),
        "HOROVOD_AUTOTUNE": "0",  # it needs hundreds of iterations; the suite's own sweep tunes all contenders alike
        "HOROVOD_LOG_LEVEL": "warning",
        "OMP_NUM_THREADS": "1",
    }


def plan(launch: Launch) -> list[Process]:
    wait = launch.settings.get("wait", WAITS[0])
    if wait not in WAITS:
        raise ValueError(f"horovod: wait is {wait!r}; allowed are {', '.join(WAITS)}")
    meeting = launch.gpu_machines[0]
    server = (ENVIRONMENT.python, "-m", "baselines.adapters.horovod_rendezvous", meeting.address, str(launch.port))
    processes = [
        Process(
            host=meeting.host,
            name="rendezvous",
            argv=(*server, *(machine.address for machine in launch.gpu_machines)),
            env={},
        )
    ]
    for rank, machine in enumerate(launch.gpu_machines):
        settings = {**launch.settings, "wait": wait}
        processes.append(
            Process(
                host=machine.host,
                name=f"worker {rank}",
                argv=driver_argv("horovod_adapter", rank, launch, settings, python=ENVIRONMENT.python),
                env=_rank_env(launch, rank, machine),
                rank=rank,
            )
        )
    return processes


CONTENDERS = (
    Contender(
        name="horovod",
        label="Horovod (gloo)",
        colour="#CC79A7",
        marker="^",
        uses_k=False,
        version=ENVIRONMENT.version,
        sources=(
            *(*DRIVER, "baselines/peers/horovod.py", "baselines/environments.py", "scripts/install_horovod.sh"),
            *("baselines/adapters/horovod_adapter.py", "baselines/adapters/horovod_rendezvous.py"),
        ),
        plan=plan,
        missing=ENVIRONMENT.missing,
        nic_nbytes=ring_nbytes,
    ),
)
