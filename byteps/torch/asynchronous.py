"""Training without a common step: differences of weights to the services, the newest weights back (paper, section 5).

Every worker keeps its optimiser and its own gradients.  `step` updates the parameters as in one process, pushes what
changed, and puts the services' newest weights in place; with a staleness bound it waits there for workers that are too
far behind (`byteps.staleness`).  A parameter takes two more copies of itself on its device: the weights as they came,
and the difference.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from byteps.errors import BytePSError
from byteps.session import current
from byteps.shared import shared_spec
from byteps.torch.tensors import Handle, begin, begin_receiving, dtype_name, synchronize
from byteps.wire import TensorSpec

Mode = Literal["bsp", "async", "ssp"]


def choose_mode(mode: Mode | None, staleness: int | None, *, by_default: Mode) -> Mode:
    """The mode that was asked for; errors name what was given and what is allowed."""
    if mode not in (None, "bsp", "async", "ssp"):
        raise BytePSError(f"mode={mode!r} is none; use 'bsp', 'async', or 'ssp' with a staleness")
    if mode == "ssp" and staleness is None:
        raise BytePSError(
            "mode='ssp' needs a staleness: how many steps the fastest rank may be ahead of the slowest, such as "
            "staleness=3; mode='async' sets no bound"
        )
    if mode != "ssp" and staleness is not None:
        raise BytePSError(f"staleness={staleness!r} goes with mode='ssp'; give both, or none")
    return mode or by_default


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """A parameter, the services' weights as of the last answer, and room for a difference."""

    parameter: torch.Tensor
    spec: TensorSpec
    priority: int
    base: torch.Tensor
    difference: torch.Tensor


class Replica:
    """This worker's copy of the weights of one optimiser."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], *, staleness: int | None) -> None:
        """A barrier: the same parameters on every rank, or MismatchError everywhere.  Rank 0's values are the first."""
        self._session = current()
        replicas: list[weakref.ref[Replica]] = self._session.plugins.setdefault("replicas", [])
        self._slots: list[Slot] = []
        for position, (name, parameter) in enumerate(parameters.items()):
            full_name = f"weights of optimizer {len(replicas)}/{name}"
            dtype = dtype_name(parameter.dtype)
            spec = shared_spec(full_name, tuple(parameter.shape), dtype, root=0, staleness=staleness)
            base = parameter.detach().clone()
            slot = Slot(
                parameter=parameter, spec=spec, priority=-position, base=base, difference=torch.empty_like(base)
            )
            if spec.nbytes and self._session.worker is not None:  # alone there is nobody to exchange with
                self._slots.append(slot)
        replicas.append(weakref.ref(self))
        self._session.declare(sorted((slot.spec for slot in self._slots), key=lambda spec: spec.name))
        if self._session.rank == 0:
            self.finish([begin(self._session, slot.spec, slot.base, slot.difference) for slot in self._slots])
        else:
            self.finish(self.pull())

    def exchange(self) -> None:
        """What the parameters have changed by, for the newest weights."""
        handles = []
        with torch.no_grad():
            for slot in self._slots:
                torch.sub(slot.parameter, slot.base, out=slot.difference)
                handles.append(begin(self._session, slot.spec, slot.difference, slot.base, slot.priority))
        self.finish(handles)

    def pull(self) -> list[Handle]:
        """Contribute nothing: at the start, or out of steps; `finish` waits for the first, or the final weights."""
        return [begin_receiving(self._session, slot.spec, slot.base) for slot in self._slots]

    def finish(self, handles: list[Handle]) -> None:
        """Wait for the weights, and put them in place."""
        with torch.no_grad():
            for slot, handle in zip(self._slots, handles, strict=True):
                synchronize(handle)
                slot.parameter.copy_(slot.base)


class Asynchronous(torch.optim.Optimizer):
    """What DistributedOptimizer adds to an optimiser's class if workers have no common step."""

    _replica: Replica

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters with this rank's gradients, then exchange the differences for the newest weights."""
        self._opt_called = True  # what LR schedulers look at
        loss = super().step() if closure is None else super().step(closure)
        self._replica.exchange()
        return loss

    # torch wraps every class's step with its profiler and hooks, unless it is marked; the inner step has them.
    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Nothing: the gradients are this rank's own.  For scripts that clip them after it."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """As `synchronize`."""
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Nothing: a step uses the gradients that there are."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the services would have to know the new parameters."""
        raise BytePSError(
            "add_param_group() on a distributed optimizer is not supported; add all groups before "
            "DistributedOptimizer(), with requires_grad=False for parameters that are to be trained later"
        )
