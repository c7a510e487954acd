"""TensorFlow with parameter servers, in the way of TensorFlow 1's SyncReplicasOptimizer.

Servers run where the cluster has CPU machines, else one on every GPU machine beside the worker.  Settings: `slice`, the
least bytes of a slice of a variable, and `partitions`, how many slices of a variable a server gets at most: the two
parameters of TensorFlow's `min_max_variable_partitioner`.
"""

import json

from baselines.environments import Environment
from baselines.launch import DRIVER, Contender, Launch, Process, driver_argv, server_nbytes

ENVIRONMENT = Environment(name="tensorflow", label="TensorFlow", distribution="tensorflow-cpu", version_wanted="2.21.0")


def knobs(launch: Launch) -> dict[str, str]:
    """All settings, checked, as plain numbers."""
    partitions = launch.settings.get("partitions", "1")
    if not partitions.isdigit() or int(partitions) < 1:
        raise ValueError(f"tensorflow: partitions = {partitions!r}; it takes a whole number of at least 1")
    return {"slice": str(launch.knob("slice", "256KiB")), "partitions": partitions}


def plan(launch: Launch) -> list[Process]:
    """The tasks of a cluster; servers and workers have ports of their own, since they may share a machine."""
    cluster = {
        "ps": [f"{machine.address}:{launch.port}" for machine in launch.servers],
        "worker": [f"{machine.address}:{launch.port + 1}" for machine in launch.gpu_machines],
    }

    def task(kind: str, index: int) -> dict[str, str]:
        return {
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}),
            "TF_CPP_MIN_LOG_LEVEL": "2",  # errors; every step ends with a warning about its own clean-up
            "TF_ENABLE_ONEDNN_OPTS": "0",
            "OMP_NUM_THREADS": "1",
        }

    settings = {**launch.settings, **knobs(launch)}
    return [
        *(
            Process(
                host=machine.host,
                name=f"server {index}",
                argv=(ENVIRONMENT.python, "-m", "baselines.adapters.tensorflow_server"),
                env=task("ps", index),
            )
            for index, machine in enumerate(launch.servers)
        ),
        *(
            Process(
                host=machine.host,
                name=f"worker {rank}",
                argv=driver_argv("tensorflow_adapter", rank, launch, settings, python=ENVIRONMENT.python),
                env=task("worker", rank),
                rank=rank,
            )
            for rank, machine in enumerate(launch.gpu_machines)
        ),
    ]


CONTENDERS = (
    Contender(
        name="tensorflow-ps",
        label="TensorFlow PS",
        colour="#8C564B",
        marker="*",
        uses_k=True,
        version=ENVIRONMENT.version,
        sources=(
            *DRIVER,
            "baselines/environments.py",
            "baselines/peers/tensorflow.py",
            "baselines/adapters/tensorflow_*.py",
            "scripts/install_tensorflow.sh",
        ),
        plan=plan,
        missing=ENVIRONMENT.missing,
        nic_nbytes=server_nbytes,
    ),
)
