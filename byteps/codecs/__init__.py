"""Codecs by name: what travels in place of a partition's numbers, each in a file of its own behind `codec.Codec`.

    onebit        a sign per element and a scale per block         32 times fewer bytes than float32
    topk:0.01     the largest 1 % of every block, with places      67 times
    randomk:0.01  1 % of every block by lot, without places       100 times

All keep what they did not send for later rounds (error feedback).  Pure.
"""

from functools import lru_cache
from typing import Final

from byteps.codecs.codec import BLOCK, MAX_BLOCKS, SUPPORTED, Array, Codec, PayloadError
from byteps.codecs.onebit import OneBit
from byteps.codecs.randomk import RandomK
from byteps.codecs.topk import TopK

__all__ = ["BLOCK", "CODECS", "MAX_BLOCKS", "SUPPORTED", "Array", "Codec", "PayloadError", "by_code", "get"]

CODECS: Final[dict[str, type[Codec]]] = {codec.name: codec for codec in (OneBit, TopK, RandomK)}
_BY_CODE: Final = {codec.code: codec for codec in CODECS.values()}
_WITH_RATIO: Final = ("topk", "randomk")


@lru_cache(maxsize=64)
def get(spelling: str) -> Codec:
    """The codec of a spelling such as "onebit" or "topk:0.01"; ValueError says what is allowed."""
    name, colon, ratio = spelling.partition(":")
    if name not in CODECS or bool(colon) != (name in _WITH_RATIO):
        raise ValueError(f"codec {spelling!r} is none; use onebit, topk:RATIO or randomk:RATIO, such as topk:0.01")
    if not colon:
        return CODECS[name]()
    try:
        share = float(ratio)
    except ValueError:
        raise ValueError(
            f"codec {spelling!r}: {ratio!r} is no number; write {name}:0.01 for 1 % of all elements"
        ) from None
    return CODECS[name](share)


@lru_cache(maxsize=64)
def by_code(code: int, ratio: float) -> Codec:
    """The codec that a frame names; PayloadError if there is none."""
    name = _BY_CODE[code].name if code in _BY_CODE else ""
    try:
        return get(f"{name}:{ratio!r}" if name in _WITH_RATIO else name)
    except ValueError as error:
        raise PayloadError(f"codec number {code} with ratio {ratio}: {error}") from None
