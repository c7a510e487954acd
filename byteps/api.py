"""The numpy API: arrays in, arrays out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from byteps.coding import with_codec
from byteps.kernels import DTYPE_NAMES, Array
from byteps.session import (
    PendingTensor,
    current,
    init,
    local_rank,
    local_size,
    make_spec,
    rank,
    shutdown,
    size,
)

__all__ = [
    "Handle",
    "broadcast",
    "declare",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_inplace",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]


@dataclass(slots=True)
class Handle(PendingTensor):
    """A push_pull under way; the source array must not change before it is synchronised."""

    result: Array
    destination: Array | None  # where the result is copied, if it could not be received there


def push_pull(
    array: Array,
    name: str | None = None,
    *,
    average: bool | None = None,
    op: str | None = None,
    priority: int = 0,
    codec: str = "",
) -> Array:
    """The average (default) or sum of `array` over all workers, as a new array of the same shape and type.

    `name` identifies the tensor among workers; unnamed ones are matched by the order of the calls.  Give either
    op="average" | "sum" or average=True | False.  A higher priority is sent first.  Element types: float32, float64,
    float16, bfloat16 (ml_dtypes), int32, int64, uint8; 16-bit floats are summed in float32, an integer average is
    the floor.  A sum beyond the range of int64 wraps, one beyond that of a float is inf, as in numpy.

    With a codec, "onebit", "topk:RATIO" or "randomk:RATIO" (`byteps.codecs`), a tensor of floats travels compressed:
    the result is an approximation, and what it lacks comes in later rounds of the same name.
    """
    return synchronize(push_pull_async(array, name, average=average, op=op, priority=priority, codec=codec))


def push_pull_inplace(
    array: Array,
    name: str | None = None,
    *,
    average: bool | None = None,
    op: str | None = None,
    priority: int = 0,
    codec: str = "",
) -> Array:
    """As push_pull, with the result in `array` itself, which is returned."""
    return synchronize(push_pull_async_inplace(array, name, average=average, op=op, priority=priority, codec=codec))


def push_pull_async(
    array: Array,
    name: str | None = None,
    *,
    average: bool | None = None,
    op: str | None = None,
    priority: int = 0,
    codec: str = "",
) -> Handle:
    """Start a push_pull; `synchronize` returns its result."""
    return _start(array, name, average, op, priority, codec, inplace=False)


def push_pull_async_inplace(
    array: Array,
    name: str | None = None,
    *,
    average: bool | None = None,
    op: str | None = None,
    priority: int = 0,
    codec: str = "",
) -> Handle:
    """Start a push_pull whose result replaces the contents of `array`."""
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ValueError(f"tensor {name!r}: the array is read-only; use push_pull, which returns a new one")
    return _start(array, name, average, op, priority, codec, inplace=True)


def _start(
    array: Array, name: str | None, average: bool | None, op: str | None, priority: int, codec: str, *, inplace: bool
) -> Handle:
    session = current()
    if inplace and not isinstance(array, np.ndarray):
        raise TypeError(f"tensor {name!r} is a {type(array).__name__}; in place works on numpy arrays only")
    array = np.asarray(array)
    spec = with_codec(make_spec(name, array.shape, dtype_name(array.dtype), average, op), codec)
    if name is None:
        spec = session.claim_name(spec)
    source = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    result = source if inplace else np.empty(array.shape, array.dtype)
    pending = session.submit(spec, array_bytes(source), array_bytes(result), priority)
    return Handle(spec.name, pending, result, array if inplace and source is not array else None)


def dtype_name(dtype: Any) -> str:
    if isinstance(dtype, np.dtype):
        # Another byte order has the same name, and would be summed as garbage.
        return DTYPE_NAMES.get(dtype) or (dtype.name if dtype.isnative else f"{dtype.name} of foreign byte order")
    return str(dtype).removeprefix("torch.")


def array_bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def poll(handle: Handle) -> bool:
    """Whether `synchronize` would return at once."""
    return current().poll(handle)


def synchronize(handle: Handle) -> Array:
    """Wait for the result.

    Raises PeerLostError, MismatchError or StallError, with the same text on every rank, if the job failed.
    """
    current().finish(handle)
    if handle.destination is not None:
        np.copyto(handle.destination, handle.result)
        return handle.destination
    return handle.result


def declare(tensors: Mapping[str, Any], *, average: bool | None = None, op: str | None = None, codec: str = "") -> None:
    """Register tensors (arrays, or anything with shape and dtype) by name; a barrier, the same names on every worker.

    Optional; it compares the workers' tensors before the first push and keeps first-use costs out of the first
    iteration.
    """
    specs = [make_spec(name, tuple(t.shape), dtype_name(t.dtype), average, op) for name, t in tensors.items()]
    current().declare([with_codec(spec, codec) for spec in specs])


def broadcast(array: Array, root: int, name: str | None = None) -> Array:
    """The array of rank `root`, on every rank, as a new array."""
    check_root(root)
    contribution = array if rank() == root else np.zeros_like(array)
    return push_pull(contribution, None if name is None else f"broadcast/{name}", op="sum")


def check_root(root: int) -> None:
    if not 0 <= root < size():
        raise ValueError(f"root is {root}; with {size()} workers use 0 to {size() - 1}")
