"""topk: the elements of largest magnitude, a fixed share of every block.

Stich et al., "Sparsified SGD with memory" (NeurIPS 2018); Aji and Heafield, "Sparse communication for distributed
gradient descent" (EMNLP 2017).  A block of n elements sends k = max(1, round(ratio * n)) of them:

    k values float32 | k places in the block, uint16, ascending

The k-th largest magnitude is guessed from a sample, as both Aji and Heafield and Lin et al. (DGC, ICLR 2018) do; then
exactly k are chosen among those above the guess, of equal magnitudes the first.
"""

import math
from typing import Final

import numpy as np

from byteps.codecs.codec import FLOAT32, Array, Codec, PayloadError, checked_ratio, chosen_of

_NBYTES: Final = 6  # of a value and its place
_MAX_RATIO: Final = 0.5  # beyond it, more bytes than float32 itself has at 2/3
_PLACE: Final = np.dtype(np.uint16)
# Every 17th element is the sample: a prime, since the rows of matrices are seldom a multiple of it.
_STEP: Final = 17
_MIN_SAMPLED: Final = 4096


class TopK(Codec):
    """1.5 times the ratio in bytes."""

    name = "topk"
    code = 2

    def __init__(self, ratio: float) -> None:
        super().__init__(checked_ratio(self.name, ratio, _MAX_RATIO))

    @property
    def spelling(self) -> str:
        return f"{self.name}:{self.ratio!r}"

    def block_nbytes(self, numel: int) -> int:
        return _NBYTES * chosen_of(numel, self.ratio)

    def _pack(self, part: Array, packed: Array, scratch: Array, draw: int) -> None:
        magnitudes = scratch[: part.size]
        np.abs(part, out=magnitudes)
        if not np.isfinite(magnitudes.max()):
            magnitudes[np.isnan(magnitudes)] = math.inf
        k = chosen_of(part.size, self.ratio)
        places = _largest(magnitudes, k)
        values, offsets = packed[: 4 * k].view(FLOAT32), packed[4 * k :].view(_PLACE)
        offsets[:] = places
        with np.errstate(over="ignore", invalid="ignore"):
            values[:] = part[places]
            part[places] -= values
        if not np.isfinite(values).all():  # such numbers were given, or float64 ones that are none in float32
            part[~np.isfinite(part)] = 0

    def _unpack_add(self, packed: Array, part: Array, factor: float, scratch: Array, draw: int) -> None:
        k = packed.size // _NBYTES
        values, places = packed[: 4 * k].view(FLOAT32), packed[4 * k :].view(_PLACE)
        if places[-1] >= part.size or not (places[1:] > places[:-1]).all():
            raise PayloadError(
                f"{self.spelling}: the places of a block's {k} elements are not ascending below {part.size}"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            part[places] += np.multiply(values, part.dtype.type(factor), dtype=part.dtype)


def _largest(magnitudes: Array, k: int) -> Array:
    """The places of exactly the k largest, ascending."""
    places = _candidates(magnitudes, k)
    candidates = magnitudes if places is None else magnitudes[places]
    edge = np.partition(candidates, candidates.size - k)[candidates.size - k]
    chosen = candidates > edge
    if missing := k - int(np.count_nonzero(chosen)):
        chosen[np.flatnonzero(candidates == edge)[:missing]] = True
    return np.flatnonzero(chosen) if places is None else places[chosen]


def _candidates(magnitudes: Array, k: int) -> Array | None:
    """The places of a few more than the k largest; None: all of them."""
    if magnitudes.size < _MIN_SAMPLED:
        return None
    sample = magnitudes[::_STEP].copy()
    expected = k * sample.size / magnitudes.size
    rank = math.ceil(expected + 3 * math.sqrt(expected) + 1)  # three standard deviations: one block in a thousand fails
    if rank > sample.size // 2:
        return None
    guess = np.partition(sample, sample.size - rank)[sample.size - rank]
    places = np.flatnonzero(magnitudes >= guess if guess > 0 else magnitudes > 0)
    return places if places.size >= k else None
