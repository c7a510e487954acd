"""The next forward pass begins before all gradients are in: parameters wait where they are used (ByteScheduler).

step() starts the exchange and returns.  A module's forward pre-hook then waits for the sums of the module's own
parameters and updates these alone: the optimiser's step over groups that have nothing else in them, with the options
they had when step() was called.  That equals one step over all of them for an optimiser whose update of a parameter
depends on that parameter only, such as SGD, Adam and all others of torch.optim but LBFGS.  Sums arrive in the order of
the forward pass, since that is their priority.

A module may use parameters of a submodule without calling it (MultiheadAttention does).  Modules that were not called
before the first step therefore leave their parameters to the nearest module around them that was.  Outside of forward
passes and state_dict(), `optimizer.synchronize()` makes parameters up to date; a gradient for a parameter that was used
before its update is an error.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from byteps.errors import BytePSError
from byteps.torch.exchange import Doing
from byteps.torch.gradients import GradientReducer, Slot

_ANYWHERE = "(whoever is called first)"  # no name of a module


class CrossBarrier:
    """The updates of one step that are still to be made."""

    def __init__(
        self,
        model: torch.nn.Module,
        reducer: GradientReducer,
        optimizer: torch.optim.Optimizer,
        update: Callable[[], Any],
    ) -> None:
        """`update` makes the optimiser's own step, without hooks, with the groups it finds in its __dict__."""
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"cross_barrier is the model whose forward pass waits for parameters, not {model!r:.80}")
        owned = {id(parameter) for parameter in model.parameters()}
        if strangers := [slot.name for slot in reducer.slots if id(slot.parameter) not in owned]:
            raise BytePSError(f"cross_barrier: the optimizer's {strangers[0]!r} is no parameter of the model given")
        self._reducer = reducer
        self._optimizer = optimizer
        self._update = update
        self._slots = {id(slot.parameter): slot for slot in reducer.slots}
        self._pending: dict[int, Slot] = {}
        self._options: list[dict[str, Any]] = []  # of the groups, at the time of the step
        self._resolved = True
        self._zeroing: bool | None = None  # zero_grad(set_to_none=this) was called meanwhile
        self._modules = dict(model.named_modules())
        self._called: set[str] = set()
        self._waits: dict[str, list[int]] = {}  # parameters by the module that waits for them, from the first step on
        me = weakref.ref(self)
        for name, module in self._modules.items():
            module.register_forward_pre_hook(_pre_hook(me, name))
        model.register_state_dict_pre_hook(_finisher(me))  # type: ignore[no-untyped-call]
        reducer.session.closing.append(_finisher(me))

    def before(self, name: str) -> None:
        """A module's forward pass begins."""
        if not self._waits:
            self._called.add(name)
        elif self._pending:
            self._make([*self._waits.get(name, ()), *self._waits.get(_ANYWHERE, ())])

    def _attribute(self) -> None:
        """Which module waits for which parameters."""
        for name, module in self._modules.items():
            place = name
            while place and place not in self._called:
                place = place.rpartition(".")[0]
            if place not in self._called:
                place = _ANYWHERE
            self._waits.setdefault(place, []).extend(id(p) for p in module.parameters(recurse=False))

    def start(self) -> None:
        """Begin a step; parameters are updated when they are used, at the latest by the next step."""
        self.finish()
        if not self._waits:
            self._attribute()
        groups = self._optimizer.__dict__["param_groups"]
        self._options = [{key: _copied(value) for key, value in group.items() if key != "params"} for group in groups]
        self._reducer.start(Doing.STEP)
        self._resolved = False
        self._pending = dict(self._slots)
        for slot in self._pending.values():
            slot.pending = slot.handle is not None

    def zero_grad(self, set_to_none: bool) -> bool:
        """Whether updates are pending: these clear their gradients when they are made, the others do now."""
        if self._pending:
            self._zeroing = set_to_none
            self._clear(slot for key, slot in self._slots.items() if key not in self._pending)
        return bool(self._pending)

    def finish(self) -> bool:
        """Make all updates that are pending; whether there were any."""
        if not self._pending:
            return False
        self._make(list(self._pending))
        return True

    def _make(self, wanted: list[int]) -> None:
        slots = [slot for key in wanted if (slot := self._pending.pop(key, None)) is not None]
        if not slots:
            return
        if not self._resolved:
            self._resolved = True
            self._reducer.resolve()
        cleared = [slot for slot in slots if slot.grad is not None and slot.parameter.grad is None]
        for slot in cleared:  # by the model's zero_grad()
            slot.parameter.grad = slot.grad
        for slot in slots:
            slot.pending = False
            self._reducer.collect(slot)
        self._step_alone({id(slot.parameter) for slot in slots})
        if self._zeroing is not None:
            self._clear(slots)
        for slot in cleared:
            slot.parameter.grad = None
        if not self._pending:
            self._zeroing = None

    def _clear(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            if self._zeroing:
                slot.parameter.grad = None
            elif slot.parameter.grad is not None:
                slot.parameter.grad.zero_()

    def _step_alone(self, parameters: set[int]) -> None:
        """The optimiser's step over these parameters, with the options of the time of the step."""
        groups = self._optimizer.__dict__["param_groups"]
        self._optimizer.__dict__["param_groups"] = [
            {**options, "params": chosen}
            for group, options in zip(groups, self._options, strict=True)
            if (chosen := [parameter for parameter in group["params"] if id(parameter) in parameters])
        ]
        try:
            self._update()
        finally:
            self._optimizer.__dict__["param_groups"] = groups


def _pre_hook(reference: "weakref.ref[CrossBarrier]", name: str) -> Any:
    def before(*_: Any) -> None:
        if (crossing := reference()) is not None:
            crossing.before(name)

    return torch.compiler.disable(before)  # type: ignore[no-untyped-call]


def _finisher(reference: "weakref.ref[CrossBarrier]") -> Any:
    def finish(*_: Any) -> None:
        if (crossing := reference()) is not None:
            crossing.finish()

    return finish


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
