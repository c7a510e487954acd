"""All-reduce by torch.distributed, a ring with gloo: one tensor after the other in the order of their submission."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from baselines.adapters import torch_group
from baselines.session import Array, Tensor


class Session:
    """A rank of a process group."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._works: dict[int, Any] = {}

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        self._gradients = gradients
        self._host = [torch.from_numpy(gradient) for gradient in gradients]
        self._there = [tensor.to(self._device) for tensor in self._host]  # on a CPU, the same

    def submit(self, index: int) -> None:
        there = self._there[index]
        if there is not self._host[index]:
            there.copy_(self._host[index])
        self._works[index] = dist.all_reduce(there, op=dist.ReduceOp.SUM, async_op=True)

    def wait(self, index: int) -> Array:
        """In place."""
        self._works.pop(index).wait()
        if self._there[index] is not self._host[index]:
            self._host[index].copy_(self._there[index])
        return self._gradients[index]

    def facts(self) -> dict[str, str]:
        return torch_group.facts()

    def close(self) -> None:
        dist.destroy_process_group()


def start(*, rank: int, size: int, settings: dict[str, str]) -> Session:
    return Session(torch_group.join(rank=rank, size=size, settings=settings))
