"""What travels instead of a gradient: itself, or the same numbers in 16 bits.

A compressor has `compress(tensor)`, which returns what is sent and a context, and `decompress(tensor, context)`.  What
it returns for a tensor must have a shape and type that depend on the tensor's only.  Services add 16-bit numbers in
float32 and round once, so an average of fp16 gradients overflows only where a gradient itself does.
"""

from typing import Any, Protocol

import torch


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
