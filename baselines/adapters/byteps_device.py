"""BytePS with gradients on a GPU, through its PyTorch API.

As with the other contenders that take tensors on a GPU, the driver's gradients are on the host: they are copied to the
GPU when they are submitted and back when they are waited for.
"""

from collections.abc import Sequence

import torch

import byteps.torch as bps
from baselines.session import Array, Tensor


def device_of(rank: int) -> torch.device:
    """The GPU that a rank uses; RuntimeError where torch has none."""
    if not torch.cuda.is_available():
        raise RuntimeError("device = 'cuda' needs a CUDA device and a torch that can use it; use device = 'cpu'")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


class Session:
    """An initialised job whose tensors are on `device`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._handles: dict[int, bps.Handle] = {}

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        """All of a workload in one batch."""
        self._tensors, self._gradients = tensors, gradients
        self._host = [torch.from_numpy(gradient) for gradient in gradients]
        self._there = [tensor.to(self._device) for tensor in self._host]  # on a CPU, the same
        pairs = zip(tensors, self._there, strict=True)
        bps.declare({tensor.name: there for tensor, there in pairs}, op="sum")

    def submit(self, index: int) -> None:
        tensor, there = self._tensors[index], self._there[index]
        if there is not self._host[index]:
            there.copy_(self._host[index])
        self._handles[index] = bps.push_pull_async_inplace(there, name=tensor.name, op="sum", priority=tensor.priority)

    def wait(self, index: int) -> Array:
        """In place."""
        bps.synchronize(self._handles.pop(index))
        if self._there[index] is not self._host[index]:
            self._host[index].copy_(self._there[index])
        return self._gradients[index]

    def facts(self) -> dict[str, str]:
        return {
            "rank": str(bps.rank()),
            "size": str(bps.size()),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else str(self._device),
        }

    def close(self) -> None:
        bps.shutdown()
