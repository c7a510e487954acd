"""What travels instead of a gradient: itself, the same numbers in 16 bits, or what a codec makes of them.

A compressor has `compress(tensor)`, which returns what is sent and a context, and `decompress(tensor, context)`.  What
it returns for a tensor must have a shape and type that depend on the tensor's only.  Services add 16-bit numbers in
float32 and round once, so an average of fp16 gradients overflows only where a gradient itself does.

A codec (`byteps.codecs`) works inside the runtime, partition by partition and in both directions, and keeps what it did
not send: its compressor only names it, in an attribute `codec`.
"""

from typing import Any, Protocol

import torch

from byteps import codecs
from byteps.errors import BytePSError


class Compressor(Protocol):
    """Of one tensor; without state."""

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]: ...

    def decompress(self, tensor: torch.Tensor, context: Any) -> torch.Tensor: ...


class Identity:
    """Sends the tensor itself, from its own memory."""

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    def decompress(self, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor


class Coded(Identity):
    """Leaves floating-point numbers to a codec of the runtime, everything else as it is."""

    def __init__(self, codec: str) -> None:
        self.codec = codecs.get(codec).spelling


class Cast:
    """Sends floating-point numbers as `dtype`, everything else as it is."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor.to(self.dtype) if tensor.is_floating_point() else tensor), tensor.dtype

    def decompress(self, tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor.to(context)


class Compression:
    """The compressors there are."""

    none = Identity()
    fp16 = Cast(torch.float16)
    bf16 = Cast(torch.bfloat16)
    onebit = Coded("onebit")

    @staticmethod
    def topk(ratio: float) -> Coded:
        """The largest elements, this share of them, such as 0.01."""
        return Coded(f"topk:{ratio}")

    @staticmethod
    def randomk(ratio: float) -> Coded:
        """Elements drawn by lot, this share of them."""
        return Coded(f"randomk:{ratio}")


def check_compressor(compressor: Any) -> None:
    """An error for what cannot compress, such as a codec's spelling; Horovod's are classes with static methods."""
    if not all(callable(getattr(compressor, name, None)) for name in ("compress", "decompress")):
        raise BytePSError(
            f"compression={compressor!r} is none; use Compression.none, .fp16, .bf16, .onebit, .topk(0.01) or "
            ".randomk(0.01), or an object with compress and decompress"
        )


def codec_of(compressor: Compressor, tensor: torch.Tensor) -> str:
    """The codec that this compressor names for such a tensor; "" for none."""
    return str(getattr(compressor, "codec", "")) if torch.is_tensor(tensor) and tensor.is_floating_point() else ""
