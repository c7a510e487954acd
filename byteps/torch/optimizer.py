"""DistributedOptimizer: an optimiser whose gradients are those of all workers.

The optimiser stays the object it was; its class becomes a subclass of its own class, so isinstance, schedulers,
GradScaler and checkpoints take it for what it is.  `step` first settles the gradients.  So does whoever reads
`param_groups` while sums are under way: that is what GradScaler does before it unscales, and what clipping over the
optimiser's parameters does.  Reading a parameter's `.grad` cannot be seen; `synchronize` is for that.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch

from byteps.errors import BytePSError
from byteps.session import current
from byteps.torch.asynchronous import Asynchronous, Mode, Replica, choose_mode
from byteps.torch.compression import Compression, Compressor
from byteps.torch.cross_barrier import CrossBarrier
from byteps.torch.gradients import GradientReducer
from byteps.torch.names import name_parameters

# Calls the hooks of step() and nothing else: with a cross barrier a step's updates are made one by one, later.
_announce = torch.optim.Optimizer.profile_hook_step(lambda optimizer: None)
_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)


class Distributed(torch.optim.Optimizer):
    """What DistributedOptimizer adds to an optimiser's class."""

    _reducer: GradientReducer
    _crossing: CrossBarrier | None
    _synchronizing = True  # whether step() settles the gradients

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimiser's groups; ends what is under way first, since the reader may want the gradients."""
        if self._reducer.changed and torch._C._current_graph_task_id() < 0 and self._reducer.under_way:
            self.synchronize()
        return cast(list[dict[str, Any]], self.__dict__["param_groups"])

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.__dict__["param_groups"] = groups

    @property
    def batch_size(self) -> int | None:
        """How many samples this rank's gradients stand for, if averages are to be weighted by samples.

        The loss must be a mean over them.  Set it before backward(), on every rank; it holds until it is set anew.
        """
        return self._reducer.samples

    @batch_size.setter
    def batch_size(self, samples: int | None) -> None:
        self._reducer.weigh(samples)

    def synchronize(self) -> None:
        """Wait for the sums of all gradients; step() after it does not reduce them again."""
        if self._crossing is not None and self._crossing.finish() and not self._reducer.changed:
            return
        self._reducer.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """For step() after synchronize(), as in Horovod.  Not needed: step() sees by itself what is settled."""
        self._synchronizing = False
        try:
            yield
        finally:
            self._synchronizing = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes add up before a step."""
        self._reducer.passes = _positive("backward_passes_per_step", passes)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Settle the gradients, then update the parameters.  A closure is called once, before that."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._opt_called = True  # what LR schedulers look at
        if not self._synchronizing and self._reducer.under_way:
            raise BytePSError("step() under skip_synchronize() with gradients under way; call synchronize() first")
        if self._crossing is not None and not self._reducer.synchronised:
            self._crossing.start()
            _announce(self)
        else:
            if self._synchronizing:
                self._reducer.synchronize()
            result = super().step()
            loss = result if closure is None else loss
        self._reducer.stepped()
        return loss

    # torch wraps every class's step with its profiler and hooks, unless it is marked; the inner step has them.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; what is under way is summed in vain, since the other ranks have submitted it, too."""
        if self._crossing is not None and not self._reducer.changed and self._crossing.zero_grad(set_to_none):
            return
        self._finish()
        self._reducer.discard()
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the other ranks would have to agree on the new parameters."""
        raise BytePSError(
            "add_param_group() on a distributed optimizer is not supported; add all groups before "
            "DistributedOptimizer(), with requires_grad=False for parameters that are to be trained later"
        )

    def state_dict(self) -> Any:
        """The optimiser's, up to date."""
        self._finish()
        return super().state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """As the optimiser's."""
        self._finish()
        super().load_state_dict(state_dict)

    def _finish(self) -> None:
        if self._crossing is not None:
            self._crossing.finish()


def DistributedOptimizer(  # noqa: N802
    optimizer: _Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | Mapping[str, torch.Tensor] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    op: str = "average",
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: None = None,
    *,
    cross_barrier: torch.nn.Module | None = None,
    mode: Mode | None = None,
    staleness: int | None = None,
) -> _Optimizer:
    """Make `optimizer` a distributed one, which is returned; on every rank, in the same order if there are several.

    `named_parameters`: names for error messages and traces; without them parameters go by their place.
    `compression`: see Compression.  `backward_passes_per_step`: gradients add up over so many backward passes, as in
    torch without us (divide the loss for their mean), and are reduced in the last one.  `op`: "average" or "sum" over
    ranks.  `sparse_as_dense`: reduce sparse gradients as dense ones; otherwise they are refused.  `cross_barrier`: the
    model whose next forward pass is to begin before all gradients are in (see cross_barrier).  `num_groups` and
    `groups` are accepted for Horovod's sake: small gradients travel together anyway.

    `mode`: "bsp" (default; "async" if BYTEPS_ENABLE_ASYNC is set): all ranks make the same steps with common gradients.
    "async": each makes its own, and exchanges its weight differences for the newest weights.  "ssp": so, but no rank
    gets more than `staleness` steps ahead of the slowest.
    """
    if isinstance(optimizer, (Distributed, Asynchronous)):
        raise BytePSError("this optimizer is distributed already; call DistributedOptimizer() once")
    mode = choose_mode(mode, staleness, by_default="async" if current().settings.asynchronous else "bsp")
    if mode != "bsp":
        for name, given in (
            ("op", op != "average"),
            ("compression", compression is not Compression.none),
            ("cross_barrier", cross_barrier is not None),
            ("process_set", process_set is not None),
        ):
            if given:
                raise BytePSError(
                    f"{name} means nothing with mode={mode!r}, where no gradients are reduced; leave it out"
                )
        replica = Replica(name_parameters(optimizer.param_groups, named_parameters), staleness=staleness)
        return _extend(optimizer, Asynchronous, _replica=replica)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise BytePSError(
            "LBFGS is not supported: ranks would call its closure differently often; use an optimizer with one "
            "gradient per step, or run LBFGS on one rank and broadcast_parameters()"
        )
    if gradient_predivide_factor != 1.0:
        raise BytePSError(
            f"gradient_predivide_factor={gradient_predivide_factor} is not supported and not needed: services add "
            "16-bit numbers in float32; leave it out"
        )
    if process_set is not None:
        raise BytePSError("process sets are not supported: gradients are reduced over all workers; leave it out")
    _refuse_attributes(optimizer)
    reducer = GradientReducer(
        name_parameters(optimizer.param_groups, named_parameters),
        op=op,
        compression=compression,
        passes=_positive("backward_passes_per_step", backward_passes_per_step),
        sparse_as_dense=sparse_as_dense,
    )
    cls = type(optimizer)
    crossing = None
    if cross_barrier is not None:
        update: Any = cls.step
        if getattr(update, "hooked", False):
            update = update.__wrapped__  # without torch's hooks, which `_announce` calls
        crossing = CrossBarrier(cross_barrier, reducer, optimizer, functools.partial(update, optimizer))
    return _extend(optimizer, Distributed, _reducer=reducer, _crossing=crossing)


def _extend(optimizer: _Optimizer, extension: type[torch.optim.Optimizer], **attributes: Any) -> _Optimizer:
    """Make the optimiser's class a subclass of its own class."""
    cls = type(optimizer)
    counted = vars(optimizer).pop("step", None)
    optimizer.__dict__.update(attributes)
    optimizer.__class__ = type(cls.__name__, (extension, cls), {"__module__": cls.__module__})
    if counted is not None:  # a scheduler was there first, and tells by marks on `step` whether it still counts
        step = functools.partial(optimizer.step)
        vars(optimizer)["step"] = functools.update_wrapper(step, counted)
    return optimizer


def _refuse_attributes(optimizer: torch.optim.Optimizer) -> None:
    """The official BytePS reads codecs from attributes of parameters; ignoring them would train without."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if odd := [name for name in vars(parameter) if name.startswith("byteps_compressor")]:
                raise BytePSError(
                    f"a parameter has the attribute {odd[0]}, which means nothing here; give DistributedOptimizer "
                    "compression=Compression.onebit, Compression.topk(0.01) or Compression.randomk(0.01)"
                )


def _positive(name: str, value: int) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}; use a whole number of 1 or more")
    return value
