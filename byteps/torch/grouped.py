"""Horovod's names for several tensors at once, and for a rank's rows of a sum.

Nothing is packed: small tensors travel together anyway.  A group under way is one handle, whose result is a list.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from byteps.session import current
from byteps.torch.collectives import (
    Average,
    allgather,
    allgather_async,
    allreduce,
    allreduce_async,
    allreduce_async_,
)
from byteps.torch.compression import Coded, Compression, Compressor, check_compressor
from byteps.torch.tensors import Handle
from byteps.torch.tensors import poll as poll_one
from byteps.torch.tensors import synchronize as finish


@dataclass(frozen=True, slots=True)
class Group:
    """Several operations under way; what `poll` and `synchronize` take."""

    handles: tuple[Handle, ...]


def poll(handle: Handle | Group) -> bool:
    """Whether `synchronize` would return at once."""
    if isinstance(handle, Group):
        return all(poll_one(each) for each in handle.handles)
    return poll_one(handle)


def synchronize(handle: Handle | Group) -> torch.Tensor | list[torch.Tensor]:
    """Wait for the result; of a group, the list of results.

    Raises PeerLostError, MismatchError or StallError, with the same text on every rank, if the job failed.
    """
    if isinstance(handle, Group):
        return [finish(each) for each in handle.handles]
    return finish(handle)


def _names(name: str | None, count: int) -> list[str | None]:
    return [None if name is None else f"{name}.{index}" for index in range(count)]


# ---- sums ----


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
) -> list[torch.Tensor]:
    """`allreduce` of each, all under way together; one after the other where a gradient is wanted, or by a codec."""
    names = _names(name, len(tensors))
    differentiable = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if differentiable or isinstance(compression, Coded):
        return [
            allreduce(tensor, average, each, compression, op, prescale_factor, postscale_factor, process_set)
            for tensor, each in zip(tensors, names, strict=True)
        ]
    check_compressor(compression)
    packed = [compression.compress(tensor) for tensor in tensors]
    handles = [
        allreduce_async(tensor, average, each, op, prescale_factor, postscale_factor, process_set)
        for (tensor, _), each in zip(packed, names, strict=True)
    ]
    totals = [finish(handle) for handle in handles]
    return [compression.decompress(total, context) for total, (_, context) in zip(totals, packed, strict=True)]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
) -> Group:
    """Start `allreduce` of each."""
    rest = op, prescale_factor, postscale_factor, process_set
    pairs = zip(tensors, _names(name, len(tensors)), strict=True)
    return Group(tuple(allreduce_async(tensor, average, each, *rest) for tensor, each in pairs))


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
) -> list[torch.Tensor]:
    """`allreduce_` of each, all under way together."""
    group = grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    return [finish(handle) for handle in group.handles]


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
) -> Group:
    """Start `allreduce_` of each."""
    rest = op, prescale_factor, postscale_factor, process_set
    pairs = zip(tensors, _names(name, len(tensors)), strict=True)
    return Group(tuple(allreduce_async_(tensor, average, each, *rest) for tensor, each in pairs))


# ---- gathers ----


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: None = None
) -> list[torch.Tensor]:
    """`allgather` of each."""
    pairs = zip(tensors, _names(name, len(tensors)), strict=True)
    return [allgather(tensor, each, process_set) for tensor, each in pairs]


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: None = None
) -> Group:
    """Start `allgather` of each; waits for the sizes."""
    pairs = zip(tensors, _names(name, len(tensors)), strict=True)
    return Group(tuple(allgather_async(tensor, each, process_set) for tensor, each in pairs))


# ---- a rank's rows of a sum ----


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: str = Average,
    process_set: None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's rows of the average or sum; the first ranks get one more where rows do not divide evenly."""
    total = allreduce(tensor, None, name, compression, op, prescale_factor, postscale_factor, process_set)
    return _rows(total)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: str = Average,
    process_set: None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start a reducescatter."""
    handle = allreduce_async(tensor, None, name, op, prescale_factor, postscale_factor, process_set)
    handle.received, handle.result = _rows(handle.received), _rows(handle.result)
    return handle


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: str = Average,
    process_set: None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """`reducescatter` of each."""
    rest = prescale_factor, postscale_factor, process_set
    return [_rows(total) for total in grouped_allreduce(tensors, None, name, compression, op, *rest)]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: str = Average,
    process_set: None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Group:
    """Start `reducescatter` of each."""
    rest = op, process_set, prescale_factor, postscale_factor
    pairs = zip(tensors, _names(name, len(tensors)), strict=True)
    return Group(tuple(reducescatter_async(tensor, each, *rest) for tensor, each in pairs))


def _rows(total: torch.Tensor) -> torch.Tensor:
    if not total.dim():
        raise ValueError("reducescatter gives each rank its rows, and a scalar has none; use allreduce")
    return total.tensor_split(current().settings.size)[current().rank]
