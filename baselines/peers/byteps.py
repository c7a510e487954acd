"""BytePS itself.

Its scheduler has a machine of its own: on a GPU machine its few messages would share the NIC whose bytes are compared
with the plan to 1 %, and a user's scheduler often sits elsewhere too.
"""

import sys

from baselines.launch import DRIVER, Contender, Launch, Machine, Process, driver_argv
from byteps import theory
from byteps.version import VERSION

DEVICES = ("cpu", "cuda")  # where gradients are: setting `device`
PLANS_AND_PREDICTS = (
    *("allocated", "allocation", "doctor", "doctor_view", "examine", "flowsim", "hosts", "hosts_view", "lowering"),
    *("machine", "plan_view", "planner", "planning", "predict", "strategy"),
)
"""Modules that no process of a job uses."""


def plan(launch: Launch, *, forced: bool = False) -> list[Process]:
    """The processes; `forced`: with scheduler and servers also for a lone worker, which must be told to use them."""
    if (device := launch.settings.get("device", DEVICES[0])) not in DEVICES:
        raise ValueError(f"byteps: device = {device!r}; it takes one of {', '.join(DEVICES)}")
    # What BytePS chooses by itself follows from bytes and rate, which are scaled already.
    chosen = launch.settings.get("partition", "auto")
    partition = chosen if chosen == "auto" else str(launch.knob("partition", chosen))
    credit = launch.settings.get("credit", "auto")
    credit = "0" if credit == "auto" else str(launch.knob("credit", credit))

    def role_env(role: str, machine: Machine) -> dict[str, str]:
        return {
            "DMLC_ROLE": role,
            "DMLC_PS_ROOT_URI": launch.scheduler.address,
            "DMLC_PS_ROOT_PORT": str(launch.port),
            "DMLC_NUM_WORKER": str(len(launch.gpu_machines)),
            "DMLC_NUM_SERVER": str(len(launch.cpu_machines)),
            "DMLC_NODE_HOST": machine.address,
            "BYTEPS_JOB_SECRET": launch.secret,
            "BYTEPS_PARTITION_BYTES": partition,
            "BYTEPS_SCHEDULING_CREDIT": credit,
            "BYTEPS_NIC_RATE": f"{(machine.nic_bytes_per_s or launch.nic_bytes_per_s) * 8 / 1e6:g}Mbit",
        }

    start = (sys.executable, "-m", "byteps", "launch")
    processes = []
    # One worker alone is its own sum; its scheduler and servers would end at once.
    if forced or len(launch.gpu_machines) > 1:
        env = role_env("scheduler", launch.scheduler)
        processes.append(Process(host=launch.scheduler.host, name="scheduler", argv=start, env=env))
        for index, machine in enumerate(launch.cpu_machines):
            env = {**role_env("server", machine), "DMLC_SERVER_ID": str(index)}
            processes.append(Process(host=machine.host, name=f"server {index}", argv=start, env=env))
    for rank, machine in enumerate(launch.gpu_machines):
        argv = (*start, "--", *driver_argv("byteps_adapter", rank, launch, launch.settings))
        env = {**role_env("worker", machine), "DMLC_WORKER_ID": str(rank)}
        processes.append(Process(host=machine.host, name=f"worker {rank}", argv=argv, env=env, rank=rank))
    return processes


def nic_nbytes(n: int, k: int, nbytes: int) -> float:
    """M + (n - 2) M_SSgpu: what a GPU machine carries as a client and as a server."""
    return theory.byteps_seconds(nbytes, n, k, 1.0)


CONTENDERS = (
    Contender(
        name="byteps",
        label="BytePS",
        colour="#0072B2",
        marker="o",
        uses_k=True,
        version=lambda: VERSION,
        sources=(
            *("byteps/*.py", "!byteps/cli.py", "!byteps/bench.py", "!byteps/theory.py"),
            *(f"!byteps/{name}.py" for name in PLANS_AND_PREDICTS),
            *(*DRIVER, "baselines/peers/byteps.py"),
            *("baselines/adapters/byteps_adapter.py", "baselines/adapters/byteps_device.py"),
        ),
        plan=plan,
        nic_nbytes=nic_nbytes,
    ),
)
