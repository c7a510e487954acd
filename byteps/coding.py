"""The two ends of a compressed partition: what a worker keeps of its tensor, and a service of its sums.

Both keep what their codec has not said yet (`codecs.codec`), a number per element, and add it to the next round's.  An
average is divided as it is added up, so what a service keeps is part of an average, too.  With g_i what worker i gives,
e_i what it keeps and E what the service keeps, all rounds together satisfy

    sum of all answers  =  sum of all g_i / n  -  sum of e_i / n  -  E        (a sum: without / n)

Bytes on the wire are those of `wire`: partitions of at most SMALL bytes are not worth it and travel as they are.
Pure: bytes in, bytes out; the caller does the I/O and the locking.
"""

import msgspec
import numpy as np

from byteps import codecs
from byteps.codecs import Array, PayloadError
from byteps.errors import BytePSError
from byteps.kernels import ACCUMULATORS, NUMPY_DTYPES
from byteps.summation import Push
from byteps.wire import (
    CODING,
    DTYPE_CODES,
    ENCODED,
    MAX_PARTITION_NBYTES,
    SMALL_NBYTES,
    Op,
    ProtocolError,
    TensorEntry,
    TensorSpec,
    make_key,
)

_FLOAT32 = DTYPE_CODES["float32"]


def with_codec(spec: TensorSpec, spelling: str) -> TensorSpec:
    """The same tensor, compressed by a codec such as "topk:0.01"; as it is if there is none ("")."""
    if spelling == "":
        return spec
    try:
        codec = codecs.get(str(spelling))  # whatever the user gave
    except ValueError as error:
        raise BytePSError(f"tensor {spec.name!r}: {error}") from None
    if not spec.name:
        raise BytePSError(
            f"codec {spelling!r} for a tensor without a name; give it one: what is not sent now is added to the next "
            "tensor of the same name"
        )
    if spec.dtype not in codecs.SUPPORTED:
        allowed = ", ".join(codecs.SUPPORTED)
        raise BytePSError(f"tensor {spec.name!r} is {spec.dtype}; codec {spelling!r} takes {allowed}: leave it out")
    if spec.op not in (Op.SUM, Op.AVERAGE):
        raise BytePSError(f"tensor {spec.name!r}: a codec is for sums and averages, not for op {spec.op.name.lower()}")
    return msgspec.structs.replace(spec, codec=codec.spelling)


class TensorCoding:
    """A worker's end of a tensor.  One buffer per partition: its answer comes when its push has been read."""

    def __init__(self, entry: TensorEntry) -> None:
        spec = entry.spec
        self._codec = codecs.get(spec.codec)
        self._dtype = DTYPE_CODES[spec.dtype]
        self._number = entry.number
        itemsize = NUMPY_DTYPES[self._dtype].itemsize
        self._step = entry.cut_nbytes // itemsize
        self.left = np.zeros(spec.numel, ACCUMULATORS[self._dtype])  # what no push has said yet
        self._prefixes: list[bytes] = []
        self._buffers: list[Array] = []
        for part in range(len(entry.owners)):
            numel = min(self._step, spec.numel - part * self._step)
            encoded = numel * itemsize > SMALL_NBYTES
            prefix = CODING.pack(self._codec.code, numel, self._codec.ratio) if not self._codec.linear else b""
            self._prefixes.append(prefix)
            self._buffers.append(np.empty(len(prefix) + self._codec.nbytes(numel) if encoded else 0, np.uint8))

    def push(self, part: int, source: memoryview, round_: int) -> tuple[int, int, memoryview]:
        """Element type, flags and payload of a push of these numbers."""
        buffer, prefix = self._buffers[part], self._prefixes[part]
        if not buffer.size:
            return self._dtype, 0, source
        buffer[: len(prefix)] = np.frombuffer(prefix, np.uint8)
        values = np.frombuffer(source, np.uint8).view(NUMPY_DTYPES[self._dtype])
        left = self.left[part * self._step :][: values.size]
        self._codec.encode(left, buffer[len(prefix) :], values, draw=self._draw(part, round_))
        return (self._dtype, ENCODED, buffer.data) if prefix else (_FLOAT32, 0, buffer.data)

    def place(self, part: int, target: memoryview) -> memoryview:
        """Where the partition's answer is to be received."""
        return self._buffers[part].data if self._buffers[part].size else target

    def decode(self, part: int, target: memoryview, round_: int) -> None:
        """The answer that has been received in its place, into the result; raises ProtocolError."""
        buffer, prefix = self._buffers[part], self._prefixes[part]
        if not buffer.size:
            return
        if (answered := buffer[: len(prefix)].tobytes()) != prefix:
            raise ProtocolError(f"an answer encoded as {answered.hex()} to a push encoded as {prefix.hex()}")
        values = np.frombuffer(target, np.uint8).view(NUMPY_DTYPES[self._dtype])
        try:
            self._codec.decode(buffer[len(prefix) :], values, draw=self._draw(part, round_))
        except PayloadError as error:
            raise ProtocolError(str(error)) from None

    def _draw(self, part: int, round_: int) -> int:
        """The same on all workers, and for no other partition or round."""
        return (round_ << 64 | make_key(self._number, part)) * codecs.MAX_BLOCKS


class EncodedSum:
    """A service's end of a partition: the sum under way, on top of what earlier answers have not said."""

    __slots__ = ("_codec", "_prefix", "left")

    def __init__(self, push: Push) -> None:
        """From the first push, whose form all later ones have; raises ProtocolError if it has none."""
        code, numel, ratio = CODING.unpack(push.coding)
        dtype = NUMPY_DTYPES[push.dtype]
        if dtype.name not in codecs.SUPPORTED or push.op not in (Op.SUM, Op.AVERAGE):
            raise ProtocolError(f"an encoded partition of {push.describe()}")
        if not 0 < numel * dtype.itemsize <= MAX_PARTITION_NBYTES:
            raise ProtocolError(f"an encoded partition of {numel} elements {dtype}")
        try:
            self._codec = codecs.by_code(code, ratio)
        except PayloadError as error:
            raise ProtocolError(str(error)) from None
        if push.nbytes != (expected := CODING.size + self._codec.nbytes(numel)):
            raise ProtocolError(f"{self._codec.spelling} of {numel} elements in {push.nbytes} bytes, not {expected}")
        self._prefix = np.frombuffer(push.coding, np.uint8)
        self.left = np.zeros(numel, ACCUMULATORS[push.dtype])

    def add(self, payload: Array, factor: float) -> None:
        """A worker's push; raises ProtocolError."""
        try:
            self._codec.decode_add(payload[CODING.size :], self.left, factor=factor)
        except PayloadError as error:
            raise ProtocolError(str(error)) from None

    def answer(self) -> memoryview:
        """The sum, encoded; the next round begins with what that does not say."""
        payload = np.empty(CODING.size + self._codec.nbytes(self.left.size), np.uint8)
        payload[: CODING.size] = self._prefix
        self._codec.encode(self.left, payload[CODING.size :])
        return payload.data
