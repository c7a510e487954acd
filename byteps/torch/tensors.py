"""push_pull and what goes with it for PyTorch tensors.

CPU tensors are sent from and received into their own memory.  Tensors on a device are copied to the host and back.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from byteps.api import check_root
from byteps.session import PendingTensor, current, make_spec, rank


@dataclass(slots=True)
class Handle(PendingTensor):
    """A push_pull under way; the source tensor must not change before it is synchronised."""

    received: torch.Tensor  # contiguous, on the host
    result: torch.Tensor  # what synchronize returns; the same tensor where nothing has to be copied


def push_pull(
    tensor: torch.Tensor,
    name: str | None = None,
    *,
    average: bool | None = None,
    op: str | None = None,
    priority: int = 0,
) -> torch.Tensor:
    """The average (default) or sum of `tensor` over all workers, as a new tensor; `tensor` is not changed.

    The rules of names, operations and element types are those of `byteps.push_pull`.
    """
    return synchronize(push_pull_async(tensor, name, average=average, op=op, priority=priority))


def push_pull_inplace(
    tensor: torch.Tensor,
    name: str | None = None,
    *,
    average: bool | None = None,
    op: str | None = None,
    priority: int = 0,
) -> torch.Tensor:
    """As push_pull, with the result in `tensor` itself, which is returned."""
    return synchronize(push_pull_async_inplace(tensor, name, average=average, op=op, priority=priority))


def push_pull_async(
    tensor: torch.Tensor,
    name: str | None = None,
    *,
    average: bool | None = None,
    op: str | None = None,
    priority: int = 0,
) -> Handle:
    """Start a push_pull; `synchronize` returns its result."""
    return _start(tensor, name, average, op, priority, inplace=False)


def push_pull_async_inplace(
    tensor: torch.Tensor,
    name: str | None = None,
    *,
    average: bool | None = None,
    op: str | None = None,
    priority: int = 0,
) -> Handle:
    """Start a push_pull whose result replaces the contents of `tensor`."""
    return _start(tensor, name, average, op, priority, inplace=True)


def _start(
    tensor: torch.Tensor, name: str | None, average: bool | None, op: str | None, priority: int, *, inplace: bool
) -> Handle:
    session = current()
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"tensor {name!r} is a {type(tensor).__name__}; byteps.torch takes torch tensors, byteps numpy arrays"
        )
    original = tensor
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.layout is not torch.strided:
        raise ValueError(f"tensor {name!r} is sparse ({tensor.layout}), which is not supported; pass tensor.to_dense()")
    spec = make_spec(name, tuple(tensor.shape), _dtype_name(tensor.dtype), average, op)
    if name is None:
        spec = session.claim_name(spec)
    source = tensor.to("cpu").contiguous()
    received = source if inplace else torch.empty_like(source)
    pending = session.submit(spec, _bytes(source), _bytes(received), priority)
    result = original if inplace else received if tensor.device.type == "cpu" else torch.empty_like(tensor)
    return Handle(spec.name, pending, received, result)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def poll(handle: Handle) -> bool:
    """Whether `synchronize` would return at once."""
    return current().poll(handle)


def synchronize(handle: Handle) -> torch.Tensor:
    """Wait for the result.

    Raises PeerLostError, MismatchError or StallError, with the same text on every rank, if the job failed.
    """
    current().finish(handle)
    if handle.result.data_ptr() != handle.received.data_ptr():
        with torch.no_grad():
            handle.result.copy_(handle.received)
    return handle.result


def declare(tensors: Mapping[str, torch.Tensor], *, average: bool | None = None, op: str | None = None) -> None:
    """Register tensors such as `dict(model.named_parameters())`; a barrier, the same names on every worker."""
    current().declare(
        [make_spec(name, tuple(t.shape), _dtype_name(t.dtype), average, op) for name, t in tensors.items()]
    )


def broadcast(tensor: torch.Tensor, root: int, name: str | None = None) -> torch.Tensor:
    """The tensor of rank `root`, on every rank, as a new tensor."""
    check_root(root)
    contribution = tensor if rank() == root else torch.zeros_like(tensor)
    return push_pull(contribution, None if name is None else f"broadcast/{name}", op="sum")
