"""randomk: a fixed share of every block, drawn by lot.

Stich et al., "Sparsified SGD with memory" (NeurIPS 2018).  A block of n elements is cut into k = max(1, round(ratio *
n)) runs of as equal length as possible, and of each run one element is sent: every element is drawn with the same
probability up to a run's rounding, none twice, and the places are in order, which a cache likes.

The lot follows from the tensor's key and the round alone, by the generator splitmix64 (Steele et al., OOPSLA 2014).  So
places need not travel, all workers send the same ones, and the sum of their payloads is the payload of the sum: the
service adds k float32 numbers as if they were the tensor, and has no error of its own.  A block:  k values float32.
"""

from functools import lru_cache
from typing import Final

import numpy as np

from byteps.codecs.codec import FLOAT32, Array, Codec, checked_ratio, chosen_of

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


class RandomK(Codec):
    """The ratio in bytes."""

    name = "randomk"
    code = 3
    linear = True

    def __init__(self, ratio: float) -> None:
        super().__init__(checked_ratio(self.name, ratio, 1.0))

    @property
    def spelling(self) -> str:
        return f"{self.name}:{self.ratio!r}"

    def block_nbytes(self, numel: int) -> int:
        return 4 * chosen_of(numel, self.ratio)

    def _pack(self, part: Array, packed: Array, scratch: Array, draw: int) -> None:
        values = packed.view(FLOAT32)
        places = _drawn(part.size, values.size, draw)
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.isfinite(part.sum()) and not (finite := np.isfinite(part)).all():
                values.fill(np.nan)
                part[~finite] = 0
                return
            sent = part[places]
            values[:] = sent
            left = sent - values
            left[~np.isfinite(left)] = 0  # a float64 number that is none in float32
            part[places] = left

    def _unpack_add(self, packed: Array, part: Array, factor: float, scratch: Array, draw: int) -> None:
        values = packed.view(FLOAT32)
        with np.errstate(over="ignore", invalid="ignore"):
            part[_drawn(part.size, values.size, draw)] += np.multiply(values, part.dtype.type(factor), dtype=part.dtype)


@lru_cache(maxsize=64)
def _runs(numel: int, k: int) -> tuple[Array, Array, Array]:
    """Where each run begins, its length, and its number in the generator's sequence."""
    edges = np.arange(k + 1, dtype=np.uint64) * np.uint64(numel) // np.uint64(k)
    steps = np.arange(1, k + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    return edges[:-1], edges[1:] - edges[:-1], steps


def _drawn(numel: int, k: int, draw: int) -> Array:
    """The places of draw number `draw`, ascending."""
    starts, lengths, steps = _runs(numel, k)
    state = steps + np.uint64(_mixed(draw))
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    high = (state ^ (state >> np.uint64(31))) >> np.uint64(32)
    places: Array = (starts + (high * lengths >> np.uint64(32))).astype(np.intp)
    return places


def _mixed(number: int) -> int:
    """Draws in sequence begin at places of the generator's sequence that have nothing to do with each other."""
    state = 0
    while number:
        state = (state ^ (number & _MASK)) + _GOLDEN & _MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
        number >>= 64
    return state
