"""torch.distributed: gloo's ring all-reduce."""

import importlib.metadata

from baselines.launch import DRIVER, Contender, Launch, Process, driver_argv, ring_nbytes


def _version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def processes(launch: Launch, adapter: str) -> list[Process]:
    """One rank per GPU machine; the first one's machine holds the store in which they meet."""
    rendezvous = f"tcp://{launch.gpu_machines[0].address}:{launch.port}"
    return [
        Process(
            host=machine.host,
            name=f"worker {rank}",
            argv=driver_argv(adapter, rank, launch, {**launch.settings, "rendezvous": rendezvous}),
            env={"GLOO_SOCKET_IFNAME": machine.interface, "OMP_NUM_THREADS": "1"},
            rank=rank,
        )
        for rank, machine in enumerate(launch.gpu_machines)
    ]


CONTENDERS = (
    Contender(
        name="gloo-ring",
        label="Ring all-reduce (gloo)",
        colour="#D55E00",
        marker="s",
        uses_k=False,
        version=_version,
        sources=(*DRIVER, "baselines/peers/torch.py", "baselines/adapters/gloo_adapter.py"),
        plan=lambda launch: processes(launch, "gloo_adapter"),
        nic_nbytes=ring_nbytes,
    ),
)
