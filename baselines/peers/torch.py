"""torch.distributed: its all-reduce, which is a ring with gloo, and DistributedDataParallel on top of it.

Settings: `backend` ("gloo", or "nccl" where every rank has a GPU); of DDP, `bucket` and `first`, the bytes of a bucket
and of the one that is reduced first (DDP's own: 25 MiB and 1 MiB; `bucket` alone holds for all).
DDP is a strategy itself and takes no other.
"""

import importlib.metadata

from baselines.launch import DRIVER, Contender, Launch, Process, driver_argv, ring_nbytes

BACKENDS = ("gloo", "nccl")


def _version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


BUCKET, FIRST = "25MiB", "1MiB"  # DDP's defaults


def knobs(launch: Launch) -> dict[str, str]:
    """The settings, checked, as plain numbers."""
    settings = {"backend": BACKENDS[0], **launch.settings}
    if settings["backend"] not in BACKENDS:
        raise ValueError(f"torch: backend = {settings['backend']!r}; it takes one of {', '.join(BACKENDS)}")
    return settings


def ddp_knobs(launch: Launch) -> dict[str, str]:
    settings = knobs(launch)
    if settings.get("strategy", "plain") != "plain":
        raise ValueError(f"ddp: strategy = {settings['strategy']!r}; DDP is a strategy itself and takes no other")
    first = settings.get("bucket", FIRST)
    return {**settings, "bucket": str(launch.knob("bucket", BUCKET)), "first": str(launch.knob("first", first))}


def processes(launch: Launch, adapter: str, settings: dict[str, str]) -> list[Process]:
    """One rank per GPU machine; the first one's machine holds the store in which they meet."""
    told = {**settings, "rendezvous": f"tcp://{launch.gpu_machines[0].address}:{launch.port}"}
    return [
        Process(
            host=machine.host,
            name=f"worker {rank}",
            argv=driver_argv(adapter, rank, launch, told),
            env={
                "GLOO_SOCKET_IFNAME": machine.interface,
                "NCCL_SOCKET_IFNAME": machine.interface,
                "OMP_NUM_THREADS": "1",
            },
            rank=rank,
        )
        for rank, machine in enumerate(launch.gpu_machines)
    ]


_SOURCES = (*DRIVER, "baselines/peers/torch.py", "baselines/adapters/torch_group.py")

CONTENDERS = (
    Contender(
        name="gloo-ring",
        label="Ring all-reduce (gloo)",
        colour="#D55E00",
        marker="s",
        uses_k=False,
        version=_version,
        sources=(*_SOURCES, "baselines/adapters/gloo_adapter.py"),
        plan=lambda launch: processes(launch, "gloo_adapter", knobs(launch)),
        nic_nbytes=ring_nbytes,
    ),
    Contender(
        name="ddp",
        label="PyTorch DDP (gloo)",
        colour="#B8860B",
        marker="v",
        uses_k=False,
        version=_version,
        sources=(*_SOURCES, "baselines/adapters/ddp_adapter.py"),
        plan=lambda launch: processes(launch, "ddp_adapter", ddp_knobs(launch)),
        nic_nbytes=ring_nbytes,
    ),
)
