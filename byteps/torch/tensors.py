"""push_pull and what goes with it for PyTorch tensors.

CPU tensors are sent from and received into their own memory where they are contiguous.  Tensors on a GPU are copied to
the host and back (`staging`).
"""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from byteps.coding import with_codec
from byteps.communication import NOTHING, Pending
from byteps.session import LOCAL_GROUP, PendingTensor, Session, current, make_spec
from byteps.torch.compression import Compression, Compressor, check_compressor, codec_of
from byteps.torch.device import Underway
from byteps.torch.staging import Stager
from byteps.wire import TensorSpec


@dataclass(slots=True)
class Handle(PendingTensor):
    """A sum under way; the source tensor must not change before it is synchronised."""

    received: torch.Tensor  # contiguous, on the host
    result: torch.Tensor  # what synchronize returns; the same memory where nothing has to be copied
    staged: Future[Pending | None] | None = None  # a copy from a device, on whose end it is submitted
    underway: Underway | None = None  # a sum with the other GPUs of this machine; `staged` is its end


def push_pull(
    tensor: torch.Tensor,
    average: bool | str | None = None,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Compressor = Compression.none,
    *,
    op: str | None = None,
) -> torch.Tensor:
    """The average (default) or sum of `tensor` over all workers, as a new tensor; `tensor` is not changed.

    The rules of names, operations and element types are those of `byteps.push_pull`; the second argument may be the
    name as there, or `average` as in the official plug-in (whose `version` means nothing here).  It is differentiable:
    the gradient is the average or sum of the workers' gradients.
    """
    average, name = _swap(average, name)
    check_compressor(compression)
    compressed, context = compression.compress(tensor)
    codec = codec_of(compression, compressed)
    if torch.is_grad_enabled() and isinstance(tensor, torch.Tensor) and tensor.requires_grad:
        total = _PushPull.apply(compressed, average, name, priority, op, codec)  # type: ignore[no-untyped-call]
    else:
        total = synchronize(push_pull_async(compressed, average, name, version, priority, op=op, codec=codec))
    result: torch.Tensor = compression.decompress(total, context)
    return result


class _PushPull(torch.autograd.Function):
    """The sum is linear: its gradient is the same sum of the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        average: bool | None,
        name: str | None,
        priority: int,
        op: str | None,
        codec: str,
    ) -> torch.Tensor:
        ctx.arguments = average, None if name is None else f"gradient of {name}", 0, priority
        ctx.op = op
        return synchronize(push_pull_async(tensor, average, name, 0, priority, op=op, codec=codec))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return push_pull(gradients[0], *ctx.arguments, op=ctx.op), None, None, None, None, None


def push_pull_inplace(
    tensor: torch.Tensor,
    average: bool | str | None = None,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    op: str | None = None,
) -> torch.Tensor:
    """As push_pull, with the result in `tensor` itself, which is returned."""
    return synchronize(push_pull_async_inplace(tensor, average, name, version, priority, op=op))


def push_pull_async(
    tensor: torch.Tensor,
    average: bool | str | None = None,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    op: str | None = None,
    codec: str = "",
) -> Handle:
    """Start a push_pull; `synchronize` returns its result.  `codec` is as in `byteps.push_pull`."""
    session, spec = _claim(tensor, *_swap(average, name), op, codec)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return begin(session, spec, tensor, torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device), priority)


def push_pull_async_inplace(
    tensor: torch.Tensor,
    average: bool | str | None = None,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    op: str | None = None,
    codec: str = "",
) -> Handle:
    """Start a push_pull whose result replaces the contents of `tensor`."""
    session, spec = _claim(tensor, *_swap(average, name), op, codec)
    handle = begin(session, spec, tensor.detach().resolve_conj().resolve_neg(), tensor, priority)
    handle.result = tensor
    return handle


def _swap(average: bool | str | None, name: str | None) -> tuple[bool | None, str | None]:
    """The second argument is the name in `byteps.push_pull`, and `average` in the official plug-in."""
    if isinstance(average, str) and name is None:
        return None, average
    return average, name  # type: ignore[return-value]  # make_spec refuses what is no bool


def _claim(
    tensor: torch.Tensor, average: bool | None, name: str | None, op: str | None, codec: str
) -> tuple[Session, TensorSpec]:
    """What the tensor is to the job; errors say what is wrong with it."""
    session = current()
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"tensor {name!r} is a {type(tensor).__name__}; byteps.torch takes torch tensors, byteps numpy arrays"
        )
    if tensor.layout is not torch.strided:
        raise ValueError(f"tensor {name!r} is sparse ({tensor.layout}), which is not supported; pass tensor.to_dense()")
    spec = with_codec(make_spec(name, tuple(tensor.shape), dtype_name(tensor.dtype), average, op), codec)
    return session, session.claim_name(spec) if name is None else spec


def begin(session: Session, spec: TensorSpec, source: torch.Tensor, result: torch.Tensor, priority: int = 0) -> Handle:
    """Start the sum of a dense tensor that fits its spec; `synchronize` puts it into `result`.

    `result` may be `source` itself, and may have another type, to which the sum is then converted.
    """
    if source.device.type == "cuda" and LOCAL_GROUP in session.plugins:
        from byteps.torch import device_session  # it needs torch.distributed

        if device_session.takes(spec):
            underway = device_session.gpu_of(session).begin(spec, source, result, priority)
            return Handle(spec.name, None, result, result, underway.over, underway)
    if source.device.type == "cuda":
        host = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        view = _bytes(host)
        staged = _stager().stage(source, host, partial(session.submit, spec, view, view, priority))
        return Handle(spec.name, None, host, result, staged)
    if source is result and source.device.type == "cpu" and source.is_contiguous():
        view = _bytes(source)
        return Handle(spec.name, session.submit(spec, view, view, priority), source, source)
    host = source.to("cpu").contiguous()
    received = result.detach()
    alike = received.dtype == host.dtype and received.device == host.device
    if not alike or not received.is_contiguous() or received.is_neg():
        received = torch.empty_like(host) if host is source else host
    pending = session.submit(spec, _bytes(host), _bytes(received), priority)
    return Handle(spec.name, pending, received, result)


def begin_receiving(session: Session, spec: TensorSpec, result: torch.Tensor) -> Handle:
    """Contribute nothing to a tensor of at least one byte; `synchronize` puts what it is into `result`."""
    received = result.detach()
    if received.device.type != "cpu" or not received.is_contiguous():
        received = torch.empty(received.shape, dtype=received.dtype)
    return Handle(spec.name, session.submit(spec, NOTHING, _bytes(received), 0), received, result)


@cache
def _stager() -> Stager:
    return Stager()


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def poll(handle: Handle) -> bool:
    """Whether `synchronize` would return at once."""
    if handle.staged is not None:
        if not handle.staged.done():
            return False
        handle.pending, handle.staged = handle.staged.result(), None
    return current().poll(handle)


def synchronize(handle: Handle) -> torch.Tensor:
    """Wait for the result.

    Raises PeerLostError, MismatchError or StallError, with the same text on every rank, if the job failed.
    """
    if handle.underway is not None:
        handle.underway.wait()
        handle.underway = None
    if handle.staged is not None:
        handle.pending, handle.staged = handle.staged.result(), None
    current().finish(handle)
    if handle.result.data_ptr() != handle.received.data_ptr():
        with torch.no_grad():
            handle.result.copy_(handle.received, non_blocking=True)
    return handle.result


def declare(tensors: Mapping[str, torch.Tensor] | str, *, average: bool | None = None, op: str | None = None) -> None:
    """Register tensors such as `dict(model.named_parameters())`; a barrier, the same names on every worker.

    A name alone, as in the official plug-in, is checked; its tensor is registered when it is first pushed.
    """
    if isinstance(tensors, str):
        current()
        make_spec(tensors, (), "float32", average, op)
        return
    current().declare(
        [make_spec(name, tuple(t.shape), dtype_name(t.dtype), average, op) for name, t in tensors.items()]
    )
