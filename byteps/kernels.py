"""The CPU arithmetic of summation: element types, accumulation, and the one rounding at the end.

fp16, bf16 accumulate in fp32 and are rounded once, after the division of an average; uint8 and int32 accumulate in
int64, so that an average does not overflow.  An integer average is the floor.  numpy does the work and releases the
interpreter lock for it; torch's fp16 conversion is used only where torch is loaded already (the user's process, never
a server).
"""

import sys
from typing import Any

import ml_dtypes
import numpy as np

from byteps.wire import DTYPES, Op

Array = np.ndarray[Any, np.dtype[Any]]

NUMPY_DTYPES: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name) for name in DTYPES
)
# dtype.name costs numpy 10 microseconds.
DTYPE_NAMES = dict(zip(NUMPY_DTYPES, DTYPES, strict=True))
_WIDER = {"float16": np.float32, "bfloat16": np.float32, "uint8": np.int64, "int32": np.int64}
ACCUMULATORS: tuple[np.dtype[Any], ...] = tuple(np.dtype(_WIDER.get(name, name)) for name in DTYPES)
# Converting in pieces that stay in the cache is 1.5 to 2 times faster than in one pass.
_CHUNK = 16384


def widen(array: Array) -> Array:
    """A copy in the accumulator's type, shape (numel,)."""
    wide = np.empty(array.shape, _accumulator(array.dtype))
    _convert(array, wide)
    return wide


def accumulate(total: Array, incoming: Array) -> None:
    """total += incoming, both of shape (numel,); total in the accumulator's type of incoming's."""
    if total.dtype == incoming.dtype:
        np.add(total, incoming, out=total)
        return
    scratch = np.empty(min(_CHUNK, incoming.size), total.dtype)
    for start in range(0, incoming.size, _CHUNK):
        piece = incoming[start : start + _CHUNK]
        wide = scratch[: piece.size]
        _convert(piece, wide)
        part = total[start : start + piece.size]
        np.add(part, wide, out=part)


def finish(total: Array, op: int, num_workers: int, dtype: np.dtype[Any]) -> Array:
    """The answer in the wire's type; `total` itself, changed in place, where the types are the same.

    `num_workers` is that of the round.
    """
    if op == Op.AVERAGE and num_workers > 1:
        if total.dtype.kind == "f":
            np.divide(total, num_workers, out=total)
        else:
            np.floor_divide(total, num_workers, out=total)
    if total.dtype == dtype:
        return total
    narrow = np.empty(total.shape, dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # an fp16 sum may overflow to inf, as on any device
        _convert(total, narrow)
    return narrow


def _accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return ACCUMULATORS[NUMPY_DTYPES.index(dtype)]


def _convert(source: Array, target: Array) -> None:
    if source.dtype == NUMPY_DTYPES[3]:
        # bf16 is the upper half of an fp32: a shift is exact and several times faster than a cast.
        np.left_shift(source.view(np.uint16), 16, out=target.view(np.uint32), dtype=np.uint32)
        return
    torch = sys.modules.get("torch")
    if torch is not None and np.float16 in (source.dtype, target.dtype) and source.flags.writeable:
        torch.from_numpy(target).copy_(torch.from_numpy(source))
        return
    np.copyto(target, source, casting="unsafe")
