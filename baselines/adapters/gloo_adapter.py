"""Ring all-reduce by torch.distributed's gloo back end, one tensor after the other in the order of their submission.

The contender's plan names the interface (`GLOO_SOCKET_IFNAME`): left alone, gloo binds to what the host's name resolves
to, which on many machines is loopback.  One torch thread per rank: the ranks share the cores of one machine.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from baselines.session import Array, Tensor

DEADLINE = timedelta(seconds=300)


class Session:
    """An initialised process group."""

    def __init__(self) -> None:
        self._works: dict[int, Any] = {}

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        self._gradients = gradients
        self._views = [torch.from_numpy(gradient) for gradient in gradients]

    def submit(self, index: int) -> None:
        self._works[index] = dist.all_reduce(self._views[index], op=dist.ReduceOp.SUM, async_op=True)

    def wait(self, index: int) -> Array:
        """In place."""
        self._works.pop(index).wait()
        return self._gradients[index]

    def facts(self) -> dict[str, str]:
        return {"torch": torch.__version__, "torch_threads": str(torch.get_num_threads())}

    def close(self) -> None:
        dist.destroy_process_group()


def start(*, rank: int, size: int, settings: dict[str, str]) -> Session:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=settings["rendezvous"], rank=rank, world_size=size, timeout=DEADLINE)
    return Session()
