"""Horovod's names over push_pull, and the broadcasts and gathers that the plug-in itself needs.

Everything is a sum.  To a broadcast all but the root contribute the zero of their type, to a gather every worker its
own rows of a larger tensor and zeros elsewhere.  The zero of floating-point addition is -0.0 (x + -0.0 is x for every
x, +0.0 included), so the copies are exact, signs of zeros included.  Types that services do not add travel as wider
ones that hold all their values.  A broadcast carries M bytes each way per worker, a gather the whole result each way:
right for parameters at the start and for metrics, not for a loop over large tensors.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch

from byteps.api import check_root
from byteps.errors import MismatchError
from byteps.session import current, make_spec
from byteps.torch.compression import Compression, Compressor
from byteps.torch.tensors import (
    Handle,
    begin,
    dtype_name,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    synchronize,
)
from byteps.wire import DTYPES, TensorSpec

Average: Final = "average"
Sum: Final = "sum"
# Named by scripts that offer them; using one is an error that lists what there is.
Adasum: Final = "adasum"
Min: Final = "min"
Max: Final = "max"
Product: Final = "product"

_WIDER: Final = {  # by name, since not every torch has all of them
    "bool": torch.uint8,
    "int8": torch.int32,
    "int16": torch.int32,
    "uint16": torch.int32,
    "uint32": torch.int64,
    "uint64": torch.int64,
    "float8_e4m3fn": torch.float16,
    "float8_e5m2": torch.float16,
}
_DTYPES: Final = (*DTYPES, *_WIDER)  # by position, on the wire of `gather_shapes`
_MAX_DIMENSIONS: Final = 8


# ---- the job ----


def not_built() -> bool:
    """Whether one of Horovod's libraries is in use: none is."""
    return False


def cross_size() -> int:
    """The number of machines, if all have equally many workers."""
    return current().settings.size // current().settings.local_size


def cross_rank() -> int:
    """This machine's number."""
    return current().rank // current().settings.local_size


# ---- sums ----


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
) -> torch.Tensor:
    """push_pull in Horovod's words."""
    tensor = _scaled(tensor, prescale_factor * postscale_factor, process_set)
    return push_pull(tensor, average, name, compression=compression, op=op)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
) -> Handle:
    """push_pull_async in Horovod's words."""
    tensor = _scaled(tensor, prescale_factor * postscale_factor, process_set)
    return push_pull_async(tensor, average, name, op=op)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
) -> torch.Tensor:
    """push_pull_inplace in Horovod's words."""
    return synchronize(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set))


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: None = None,
) -> Handle:
    """push_pull_async_inplace in Horovod's words."""
    scaled = _scaled(tensor, prescale_factor * postscale_factor, process_set)
    if scaled is not tensor:
        with torch.no_grad():
            tensor.copy_(scaled)
    return push_pull_async_inplace(tensor, average, name, op=op)


def _scaled(tensor: torch.Tensor, factor: float, process_set: None = None) -> torch.Tensor:
    """A sum is linear: scaling before it and after it is the same."""
    if process_set is not None:
        raise ValueError("process sets are not supported: every operation is over all workers; leave process_set out")
    return tensor if factor == 1.0 else (tensor * factor).to(tensor.dtype)


# ---- broadcasts ----


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: None = None) -> torch.Tensor:
    """The tensor of rank `root_rank`, on every rank, as a new tensor."""
    return synchronize(broadcast_async(tensor, root_rank, name, process_set))


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: None = None) -> Handle:
    """Start a broadcast; `synchronize` returns its result."""
    _scaled(tensor, 1.0, process_set)
    return broadcast_async_(tensor.detach().clone(), root_rank, name)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: None = None) -> torch.Tensor:
    """The values of rank `root_rank` in every rank's `tensor`, which is returned."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: None = None) -> Handle:
    """Start a broadcast into `tensor`."""
    _scaled(tensor, 1.0, process_set)
    session = current()
    spec = broadcast_spec(tensor, root_rank, name)
    spec = session.claim_name(spec) if name is None else spec
    with torch.no_grad():
        if session.rank != root_rank:
            tensor.fill_(_zero(tensor.dtype))
        source = tensor.detach().to(_wire_dtype(tensor))
    return begin(session, spec, source, tensor)


def broadcast_spec(tensor: torch.Tensor, root_rank: int, name: str | None) -> TensorSpec:
    """What a broadcast is to the job; two roots are two names, so ranks that disagree stall and are told."""
    check_root(root_rank)
    dtype = dtype_name(_wire_dtype(tensor))
    full_name = None if name is None else f"broadcast from {root_rank}/{name}"
    return make_spec(full_name, tuple(tensor.shape), dtype, False, None)


def _wire_dtype(tensor: torch.Tensor) -> torch.dtype:
    return _WIDER.get(dtype_name(tensor.dtype), tensor.dtype)


def _zero(dtype: torch.dtype) -> float:
    return -0.0 if dtype.is_floating_point else 0


# ---- gathers ----


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: None = None) -> torch.Tensor:
    """The tensors of all ranks, in rank order, joined along the first dimension, which may differ between ranks.

    Differentiable: a rank's gradient is its rows of the sum of the workers' gradients.
    """
    _scaled(tensor, 1.0, process_set)
    if torch.is_grad_enabled() and tensor.requires_grad:
        result: torch.Tensor = _Allgather.apply(tensor, name)  # type: ignore[no-untyped-call]
        return result
    return synchronize(allgather_async(tensor, name))


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None) -> torch.Tensor:
        counts = gather_shapes(tensor)
        ctx.start, ctx.rows = sum(counts[: current().rank]), tensor.shape[0]
        ctx.name = None if name is None else f"gradient of {name}"
        return synchronize(allgather_async_of(tensor, name, counts))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return push_pull(gradients[0], None, ctx.name, op=Sum)[ctx.start : ctx.start + ctx.rows], None


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: None = None) -> Handle:
    """Start an allgather; waits for the sizes, `synchronize` for the rows."""
    _scaled(tensor, 1.0, process_set)
    return allgather_async_of(tensor, name, gather_shapes(tensor))


def allgather_async_of(tensor: torch.Tensor, name: str | None, counts: list[int]) -> Handle:
    """With the ranks' numbers of rows, as `gather_shapes` found them."""
    session = current()
    rows, dtype = sum(counts), _wire_dtype(tensor)
    # A name has one shape.  Where rows differ between ranks they differ between calls: a power of two bounds how many
    # shapes there are.
    room = rows if len(set(counts)) == 1 else 1 << (rows - 1).bit_length()
    shape = (room, *tensor.shape[1:])
    spec = make_spec(None if name is None else f"allgather {room}/{name}", shape, dtype_name(dtype), False, None)
    spec = session.claim_name(spec) if name is None else spec
    buffer = torch.full(shape, _zero(dtype), dtype=dtype)
    start = sum(counts[: session.rank])
    buffer[start : start + tensor.shape[0]] = tensor.detach()
    handle = begin(session, spec, buffer, buffer)
    handle.received = buffer[:rows]
    handle.result = handle.received.to(tensor.dtype).to(tensor.device)
    return handle


def gather_integers(values: Sequence[int]) -> list[list[int]]:
    """Every rank's integers, by rank; all ranks give equally many."""
    session = current()
    table = torch.zeros(session.settings.size, len(values), dtype=torch.int64)
    table[session.rank] = torch.tensor(values)
    return push_pull(table, op=Sum).tolist()


def gather_shapes(tensor: torch.Tensor) -> list[int]:
    """The first extents of all ranks' tensors; an error, the same on every rank, if they cannot be joined."""
    if not 0 < tensor.dim() <= _MAX_DIMENSIONS:
        raise ValueError(
            f"allgather joins along the first dimension and takes tensors of 1 to {_MAX_DIMENSIONS} dimensions, not "
            f"shape {tuple(tensor.shape)}; give a scalar as tensor.reshape(1)"
        )
    dtype = dtype_name(tensor.dtype)
    if dtype not in _DTYPES:
        raise ValueError(f"allgather: element type {dtype} is not supported; use one of {', '.join(_DTYPES)}")
    padding = [-1] * (_MAX_DIMENSIONS - tensor.dim())
    table = gather_integers([_DTYPES.index(dtype), *tensor.shape, *padding])
    if any(row[:1] + row[2:] != table[0][:1] + table[0][2:] for row in table):
        said = ", ".join(
            f"rank {rank} has shape {tuple(n for n in row[1:] if n >= 0)} {_DTYPES[row[0]]}"
            for rank, row in enumerate(table)
        )
        raise MismatchError(f"allgather: {said}; types, and all dimensions but the first, must be the same")
    return [row[1] for row in table]


def barrier(process_set: None = None) -> None:
    """Until every worker is here."""
    _scaled(torch.empty(0), 1.0, process_set)
    current().declare([])
