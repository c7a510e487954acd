"""DistributedDataParallel as in training: a module whose backward pass has a gradient ready when it is submitted.

The module's parameters are the workload's tensors.  Its forward pass links one node per tensor into a chain, so that
the backward pass goes through them in gradient-ready order; each node waits until its tensor was submitted and returns
the driver's array as the gradient.  All else is DDP's own: its hooks notice the gradient, copy it into a bucket, reduce
full buckets while the backward pass goes on, and put the sums where the gradients were.  The backward pass returns when
all buckets are through, which is what every `wait` waits for: DDP has no earlier moment for a single tensor.

DDP fills its buckets again, in the order in which gradients became ready, before the second forward pass: the first
iteration of a workload, a warm-up, is not yet like the others.  Its default sizes (25 MiB, the first 1 MiB) are passed
as any others are: left out, its first iteration would have one bucket for everything.
It divides by the number of ranks; a communication hook, DDP's own means, reduces without, since thirds are not exact.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from baselines.adapters import torch_group
from baselines.session import Array, Tensor

MIB = 2**20
GradientOf = Callable[[int], torch.Tensor]


class _Node(torch.autograd.Function):
    """One tensor's place in the chain."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, parameter: torch.Tensor, index: int, source: GradientOf) -> torch.Tensor:
        ctx.index, ctx.source = index, source
        return token.clone()

    @staticmethod
    def backward(ctx: Any, *tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        return tokens[0], ctx.source(ctx.index), None, None


class _Model(torch.nn.Module):
    def __init__(self, tensors: Sequence[Tensor], device: torch.device, source: GradientOf) -> None:
        super().__init__()
        forward = reversed(range(len(tensors)))  # the last gradient to be ready is that of the first layer
        self._source = source
        self._layers = [
            (index, torch.nn.Parameter(_empty(tensors[index], device)))  # never read: it takes no memory on a CPU
            for index in forward
        ]
        for index, parameter in self._layers:
            self.register_parameter(f"gradient_{index}", parameter)

    def forward(self) -> torch.Tensor:
        token = torch.zeros(())
        for index, parameter in self._layers:
            token = _Node.apply(token, parameter, index, self._source)  # type: ignore[no-untyped-call]
        return token

    def gradients(self) -> list[torch.Tensor]:
        """In gradient-ready order."""
        return [parameter.grad for _, parameter in reversed(self._layers) if parameter.grad is not None]


def _empty(tensor: Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty(tensor.numel, dtype=getattr(torch, tensor.dtype), device=device)


def _sum(
    group: dist.ProcessGroup,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch says nothing about its extension's types
) -> torch.futures.Future[torch.Tensor]:
    """`allreduce_hook` of torch.distributed's `default_hooks`, but for the division."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    done: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0])
    return done


class _Training:
    """One workload: iteration after iteration in a thread of its own, which lives as long as the workload."""

    def __init__(
        self, tensors: Sequence[Tensor], gradients: Sequence[Array], device: torch.device, knobs: dict[str, Any]
    ) -> None:
        self._gradients = gradients
        self._device = device
        self._changed = threading.Condition()  # guards the next five
        self._submitted: set[int] = set()
        self._sums: list[Array] = []  # of the iteration that is over; empty during one
        self._failure: BaseException | None = None
        self._ended = False
        self._model = _Model(tensors, device, self._gradient)
        # The ranks' parameters need not be made equal: nobody reads them.
        self._ddp = DistributedDataParallel(self._model, init_sync=False, **knobs)
        self._ddp.register_comm_hook(dist.group.WORLD, _sum)
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)
        self._thread.start()

    def submit(self, index: int) -> None:
        with self._changed:
            self._sums = []
            self._submitted.add(index)
            self._changed.notify_all()

    def wait(self, index: int) -> Array:
        with self._changed:
            self._changed.wait_for(lambda: self._sums or self._failure)
            if self._failure is not None:
                raise RuntimeError(f"backward pass: {self._failure}") from self._failure
            return self._sums[index]

    def end(self) -> None:
        """Between two iterations."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    def _gradient(self, index: int) -> torch.Tensor:
        """When it is ready.  A new view each time: DDP takes over what nobody else holds, and copies the rest."""
        with self._changed:
            self._changed.wait_for(lambda: index in self._submitted)
        return torch.from_numpy(self._gradients[index]).to(self._device)

    def _run(self) -> None:
        try:
            while True:
                token = self._ddp()  # before the first gradient: its time is in the replay's computation
                with self._changed:
                    self._changed.wait_for(lambda: self._submitted or self._ended)
                    if self._ended:
                        return
                self._ddp.zero_grad()
                token.backward()
                sums = [gradient.cpu().numpy() for gradient in self._model.gradients()]
                with self._changed:
                    self._submitted = set()
                    self._sums = sums
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()


class Session:
    """A rank of a process group."""

    def __init__(self, device: torch.device, settings: dict[str, str]) -> None:
        self._device = device
        self._knobs = bucket_sizes(settings)
        self._training: _Training | None = None

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        self._end()
        self._training = _Training(tensors, gradients, self._device, self._knobs)

    def submit(self, index: int) -> None:
        assert self._training is not None
        self._training.submit(index)

    def wait(self, index: int) -> Array:
        assert self._training is not None
        return self._training.wait(index)

    def facts(self) -> dict[str, str]:
        return {**torch_group.facts(), **{name: str(value) for name, value in self._knobs.items()}}

    def close(self) -> None:
        self._end()
        dist.destroy_process_group()

    def _end(self) -> None:
        if self._training is not None:
            self._training.end()
            self._training = None


def bucket_sizes(settings: dict[str, str]) -> dict[str, Any]:
    """DDP's arguments, in MiB."""
    return {"bucket_cap_mb_list": [int(settings["first"]) / MIB, int(settings["bucket"]) / MIB]}


def start(*, rank: int, size: int, settings: dict[str, str]) -> Session:
    return Session(torch_group.join(rank=rank, size=size, settings=settings), settings)
