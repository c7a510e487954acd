"""The process group of torch.distributed, which its contenders share.

Setting `backend`: "gloo" (default), or "nccl" on machines with a GPU for every rank; gradients are then copied to the
GPU when they are submitted and back when they are waited for, since the driver keeps them on the host.
The plan names the interface: left alone, gloo binds to what the host's name resolves to, which is loopback on many
machines.  One torch thread per rank: the ranks share the cores of one machine.
"""

from datetime import timedelta

import torch
import torch.distributed as dist

DEADLINE = timedelta(seconds=300)


def join(*, rank: int, size: int, settings: dict[str, str]) -> torch.device:
    """Become a rank; returns where tensors have to be."""
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if settings["backend"] == "nccl":
        if not torch.cuda.is_available():
            raise RuntimeError("backend = 'nccl' needs a CUDA device and a torch that can use it; use backend = 'gloo'")
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(
        settings["backend"], init_method=settings["rendezvous"], rank=rank, world_size=size, timeout=DEADLINE
    )
    return device


def facts() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "torch_threads": str(torch.get_num_threads()),
        "backend": dist.get_backend(),
    }
