"""The arithmetic of adding up slots: one pass over memory, in pieces that stay in the cache.

Floats of 16 bits are added up in fp32 and rounded once; integers whose average is still to be taken, in int64.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from byteps import kernels
from byteps.kernels import Array
from byteps.wire import DTYPE_CODES, Op

_PIECE_NBYTES: Final = 256 << 10


def add_up(sources: Sequence[Array], total: Array, divisor: int) -> None:
    """total = the sum of the sources / divisor, element by element; `total` may be of a wider type."""
    step = _PIECE_NBYTES // total.itemsize
    rounded = total.dtype == sources[0].dtype and total.dtype.itemsize == 2
    for start in range(0, total.size, step):
        piece = slice(start, start + step)
        if rounded and (len(sources) > 1 or divisor > 1):
            total[piece] = _in_fp32([source[piece] for source in sources], divisor, total.dtype)
        else:
            _add_up_piece([source[piece] for source in sources], total[piece], divisor)


def _in_fp32(sources: Sequence[Array], divisor: int, dtype: "np.dtype[np.generic]") -> Array:
    wide = kernels.widen(sources[0])
    for source in sources[1:]:
        kernels.accumulate(wide, source)
    return kernels.finish(wide, Op.AVERAGE, divisor, dtype)


def _add_up_piece(sources: Sequence[Array], total: Array, divisor: int) -> None:
    if len(sources) > 1 and sources[0].dtype == total.dtype:
        np.add(sources[0], sources[1], out=total)
        rest = sources[2:]
    else:
        np.copyto(total, sources[0])
        rest = sources[1:]
    for source in rest:
        kernels.accumulate(total, source)
    if divisor > 1:
        np.divide(total, divisor, out=total)


def divide(total: Array, divisor: int, result: Array) -> None:
    """The floor of an integer average; `total` is changed."""
    np.floor_divide(total, divisor, out=total)
    np.copyto(result, total, casting="unsafe")


def view(memory: memoryview, dtype: str) -> Array:
    """Bytes as a flat array."""
    return np.frombuffer(memory, kernels.NUMPY_DTYPES[DTYPE_CODES[dtype]])
