"""onebit: the sign of every element, and one magnitude for all of a block, their mean one.

Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training of speech
DNNs" (Interspeech 2014); the scale is that of EF-signSGD (Karimireddy et al., ICML 2019), per block as in Zheng et al.
(NeurIPS 2019).  A block of n elements:  scale float32 | n sign bits, the first element's in the lowest bit.
"""

from typing import Any, Final

import numpy as np

from byteps.codecs.codec import FLOAT32, Array, Codec

_SCALE_NBYTES: Final = 4
# The 8 signs of each byte.
_BYTES: Final = np.arange(256, dtype=np.uint8)[:, None]
_SIGNS: Final[Array] = 1 - 2 * np.unpackbits(_BYTES, axis=1, bitorder="little").astype(np.int8)


class OneBit(Codec):
    """32 times fewer bytes than float32."""

    name = "onebit"
    code = 1

    def block_nbytes(self, numel: int) -> int:
        return _SCALE_NBYTES + (numel + 7) // 8

    def _pack(self, part: Array, packed: Array, scratch: Array, draw: int) -> None:
        magnitudes = scratch[: part.size]
        np.abs(part, out=magnitudes)
        with np.errstate(over="ignore", invalid="ignore"):
            scale = magnitudes.mean().astype(FLOAT32)
        packed[:_SCALE_NBYTES].view(FLOAT32)[0] = scale
        word = np.int32 if part.dtype == FLOAT32 else np.int64
        signed: Any = part.view(word)
        packed[_SCALE_NBYTES:] = np.packbits(signed < 0, bitorder="little")
        if not np.isfinite(scale):
            part.fill(0)
            return
        # The scale with each element's sign: bits, since copysign is ten times slower.
        sent = magnitudes.view(word)
        np.bitwise_and(signed, np.iinfo(signed.dtype).min, out=sent)
        np.bitwise_or(sent, scale.astype(part.dtype).view(word), out=sent)
        np.subtract(part, magnitudes, out=part)

    def _unpack_add(self, packed: Array, part: Array, factor: float, scratch: Array, draw: int) -> None:
        scale = packed[:_SCALE_NBYTES].view(FLOAT32)[0]
        with np.errstate(over="ignore", invalid="ignore"):
            table = np.multiply(_SIGNS, scale * part.dtype.type(factor), dtype=part.dtype)
            bits = packed[_SCALE_NBYTES:]
            rows = scratch[: bits.size * 8].reshape(bits.size, 8)
            np.take(table, bits, axis=0, out=rows, mode="clip")
            np.add(part, rows.reshape(-1)[: part.size], out=part)
