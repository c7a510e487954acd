"""What a codec is: floating-point numbers as fewer bytes, and what these bytes do not say kept for the next round.

Encoding with error feedback (Seide et al., Interspeech 2014; Stich et al., NeurIPS 2018; Karimireddy et al., ICML
2019): with g the new numbers and e what is left of earlier ones,

    payload = encode(g + e),    e = g + e - decode(payload)

so that over any number of rounds what was sent and what is left add up to what was given: nothing is lost, it is late.
Summation services do the same with their sums (Tang et al., DoubleSqueeze, ICML 2019; Zheng et al., NeurIPS 2019), so
both directions are compressed.

A codec works block by block: 65,536 numbers stay in a core's cache while they are added, chosen and packed.  Each
block has its own scale or choice (as in the block-wise codec of Zheng et al.), and the length of its bytes is a formula
of its number of elements, so that of a partition is, too.

A number that is not finite goes out in its round as something that is not finite, so that every worker sees it (loss
scaling skips such a step), and is not kept: error feedback would repeat it for ever.
Pure: no I/O, no clock; what is drawn by lot follows from a number that both ends know.
"""

import abc
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK: Final = 1 << 16
MAX_BLOCKS: Final = 1 << 14  # of a partition: 2^30 bytes at most, elements of at least 2
SUPPORTED: Final = ("float32", "float64", "float16", "bfloat16")
FLOAT32: Final = np.dtype(np.float32)


class PayloadError(ValueError):
    """Bytes that this codec does not write."""


class Codec(abc.ABC):
    """Without state: what is left is the caller's.  `left` and `total` are float32 or float64."""

    name: ClassVar[str]
    code: ClassVar[int]  # on the wire; never changes
    # Whether the sum of payloads, as float32 numbers, is the payload of the sum: then a service need not know of it.
    linear: ClassVar[bool] = False

    def __init__(self, ratio: float = 0.0) -> None:
        self.ratio = ratio

    @property
    def spelling(self) -> str:
        """What `byteps.codecs.get` takes; the same for equal codecs."""
        return self.name

    def nbytes(self, numel: int) -> int:
        """The length of the payload of so many elements."""
        blocks, rest = divmod(numel, BLOCK)
        return blocks * self.block_nbytes(BLOCK) + (self.block_nbytes(rest) if rest else 0)

    def encode(self, left: Array, payload: Array, values: Array | None = None, *, draw: int = 0) -> None:
        """Pack `left` plus `values` into `payload`; `left` is then what the payload does not say.

        `payload` are bytes, as many as `nbytes(left.size)`; `draw` is a number, 0 or more, that whoever decodes knows.
        """
        scratch = _scratch(left)
        for number, part, packed in self._blocks(left, payload):
            if values is not None:
                np.add(part, values[number * BLOCK : number * BLOCK + part.size], out=part)
            self._pack(part, packed, scratch, draw + number)

    def decode_add(self, payload: Array, total: Array, *, factor: float = 1.0, draw: int = 0) -> None:
        """Add what the payload says, times `factor`; raises PayloadError."""
        scratch = _scratch(total)
        for number, part, packed in self._blocks(total, payload):
            self._unpack_add(packed, part, factor, scratch, draw + number)

    def decode(self, payload: Array, target: Array, *, draw: int = 0) -> None:
        """Put what the payload says into `target`, of any supported type; raises PayloadError."""
        wide = target.dtype in (np.float32, np.float64)
        scratch = _scratch(target)
        zeros = np.empty(0 if wide else min(BLOCK, target.size), FLOAT32)
        for number, part, packed in self._blocks(target, payload):
            place = part if wide else zeros[: part.size]
            place.fill(0)
            self._unpack_add(packed, place, 1.0, scratch, draw + number)
            if not wide:
                with np.errstate(over="ignore", invalid="ignore"):
                    np.copyto(part, place, casting="unsafe")

    def _blocks(self, numbers: Array, payload: Array) -> Iterator[tuple[int, Array, Array]]:
        if payload.size != (expected := self.nbytes(numbers.size)):
            raise PayloadError(f"{self.spelling} of {numbers.size} elements has {expected} bytes, not {payload.size}")
        step = self.block_nbytes(BLOCK)
        for number, start in enumerate(range(0, numbers.size, BLOCK)):
            yield number, numbers[start : start + BLOCK], payload[number * step : (number + 1) * step]

    # ---- one block ----

    @abc.abstractmethod
    def block_nbytes(self, numel: int) -> int:
        """The length of the bytes of a block, of 1 to BLOCK elements."""

    @abc.abstractmethod
    def _pack(self, part: Array, packed: Array, scratch: Array, draw: int) -> None:
        """Write `packed`, subtract from `part` what it says."""

    @abc.abstractmethod
    def _unpack_add(self, packed: Array, part: Array, factor: float, scratch: Array, draw: int) -> None:
        """Add to `part` what `packed` says, times `factor`."""


def checked_ratio(name: str, ratio: float, most: float) -> float:
    """The share of elements that a codec sends."""
    if not 0.0 < ratio <= most:
        raise ValueError(
            f"{name}: ratio {ratio:g} is out of range; use more than 0 and at most {most:g}, as {name}:0.01"
        )
    return ratio


def chosen_of(numel: int, ratio: float) -> int:
    """How many of a block's elements that is; at least one."""
    return max(1, round(numel * ratio))


def _scratch(numbers: Array) -> Array:
    """A block's worth of room, of whole groups of 8 elements."""
    dtype = numbers.dtype if numbers.dtype == np.float64 else FLOAT32
    return np.empty((min(BLOCK, numbers.size) + 7) & ~7, dtype)
