"""Gradients to their sums: submitted by hooks during backward(), in place, and settled once per step.

A parameter's hook hands its gradient over as soon as backward() has accumulated it for the last time before the step,
so the sums travel while earlier layers are still at work.  Once per step ranks compare what they have (`exchange`), and
contribute zeros where only others have a gradient.

Priority is the order of the forward pass: the reverse of the order in which rank 0's gradients became ready in the
first step, told to all with the first exchange.
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from byteps.coding import with_codec
from byteps.errors import BytePSError
from byteps.session import Session, current, make_spec
from byteps.torch import exchange
from byteps.torch.compression import Compressor, check_compressor, codec_of
from byteps.torch.exchange import Doing, Word, listed
from byteps.torch.tensors import Handle, begin, dtype_name, synchronize
from byteps.wire import TensorSpec


@dataclass(eq=False, slots=True)
class Slot:
    """A parameter, and its gradient since the last exchange."""

    name: str
    parameter: torch.Tensor
    dtype: torch.dtype
    spec: TensorSpec
    priority: int
    hook: RemovableHandle | None = None
    passes: int = 0  # backward passes that have added to it
    grad: torch.Tensor | None = None  # the gradient as of the last of them
    version: int = 0  # of the gradient when it was submitted: whoever changes it meanwhile is told
    sparse: bool = False
    handle: Handle | None = None  # under way
    pending: bool = False  # the last step's update is still to be made (cross_barrier)
    context: Any = None  # the compressor's


class GradientReducer:
    """The gradients of one optimiser's parameters."""

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        *,
        op: str,
        compression: Compressor,
        passes: int,
        sparse_as_dense: bool,
    ) -> None:
        """A barrier: the same parameters on every rank, or MismatchError everywhere."""
        check_compressor(compression)
        self.session: Session = current()
        self.passes = passes
        self.samples: int | None = None  # that this rank's gradients stand for; None: all ranks count alike
        self.synchronised = False  # no gradient has changed since the last exchange, whose sums are in
        self.changed = False  # a backward pass has added to gradients since the last step
        self.steps = 0
        self.slots: list[Slot] = []
        self._average = op == "average"
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._size = self.session.settings.size
        self._exchange: Handle | None = None
        self._doing = Doing.STEP
        self._factor = 1.0
        self._order: list[int] | None = []  # slots as they became ready, until the first exchange
        self._ordering: Handle | None = None
        self.taken: list[str] = []  # parameters that a later optimiser has taken over
        reducers: list[weakref.ref[GradientReducer]] = self.session.plugins.setdefault("reducers", [])
        self.name = f"optimizer {len(reducers)}"
        for position, (name, parameter) in enumerate(parameters.items()):
            sent, _ = compression.compress(torch.empty(parameter.shape, dtype=parameter.dtype, device="meta"))
            spec = make_spec(f"{self.name}/{name}", tuple(sent.shape), dtype_name(sent.dtype), None, op)
            spec = with_codec(spec, codec_of(compression, sent))
            self.slots.append(Slot(name, parameter, parameter.dtype, spec, -1 - position))
        count = len(self.slots)
        self._exchange_spec = self._integers("exchange", exchange.length(self._size, count))
        self._order_spec = self._integers("order", count)
        self.session.declare(sorted((slot.spec for slot in self.slots), key=lambda spec: spec.name))
        self.session.declare([self._exchange_spec, self._order_spec])  # apart: their shapes follow from the names
        for reference in reducers:
            if (other := reference()) is not None:
                other.release({id(slot.parameter) for slot in self.slots})
        reducers.append(weakref.ref(self))
        for index in range(count):
            self._watch(index)

    def _integers(self, name: str, length: int) -> TensorSpec:
        return make_spec(f"{self.name} {name}", (length,), "int64", None, "sum")

    # ---- hooks ----

    def _watch(self, index: int) -> None:
        """The hook must not keep the optimiser alive: the parameter may outlive it."""
        slot = self.slots[index]
        if slot.hook is None and slot.parameter.requires_grad:
            me = weakref.ref(self)

            def ready(_: torch.Tensor) -> None:
                if (reducer := me()) is not None:
                    reducer.ready(index)

            slot.hook = slot.parameter.register_post_accumulate_grad_hook(ready)  # type: ignore[no-untyped-call]
            weakref.finalize(self, slot.hook.remove).atexit = False

    def release(self, parameters: set[int]) -> None:
        """A later optimiser reduces these gradients."""
        for slot in self.slots:
            if id(slot.parameter) in parameters:
                self.taken.append(repr(slot.name))
                if slot.hook is not None:
                    slot.hook.remove()

    def ready(self, index: int) -> None:
        """A backward pass has added to this gradient."""
        slot = self.slots[index]
        grad = slot.parameter.grad
        self.synchronised, self.changed = False, True
        if self.session.trace is not None:
            self.session.trace.gradient()
        if slot.pending:
            raise BytePSError(
                f"{self.name}: {slot.name!r} was used before its update was made; cross_barrier waits where modules of "
                "its model are called (not if compiled before): call optimizer.synchronize() before any other use"
            )
        if grad is not slot.grad:  # zero_grad() of the model, not of the optimiser: what there was is dropped
            if slot.handle is not None:
                self.discard()
            slot.passes = 0
        elif slot.handle is not None:
            raise BytePSError(
                f"{self.name}: the gradient of {slot.name!r} was computed again while it is being summed; call step() "
                f"after every backward(), or give backward_passes_per_step (now {self.passes}) the number of backward "
                "passes per step (a parameter used by two torch.utils.checkpoint needs use_reentrant=False)"
            )
        slot.passes += 1
        slot.grad = grad
        if self._order is not None:
            self._order.append(index)
        if slot.passes == self.passes:
            self._submit(slot)

    def _submit(self, slot: Slot) -> None:
        grad = slot.parameter.grad
        assert grad is not None
        if grad.layout is not torch.strided:
            slot.sparse = not self._sparse_as_dense
            if slot.sparse:
                return  # told to all in the exchange
            slot.parameter.grad = grad = grad.to_dense()
        if grad.dtype is not slot.dtype:
            raise BytePSError(
                f"{self.name}: the gradient of {slot.name!r} is {grad.dtype}, the parameter was {slot.dtype} when the "
                "optimizer was made distributed; convert the model first"
            )
        slot.grad = grad
        grad = grad.detach()
        if self.samples is not None:
            grad.mul_(self.samples)
        sent, slot.context = self._compression.compress(grad)
        slot.version = slot.grad._version
        slot.handle = begin(self.session, slot.spec, sent, sent, slot.priority)

    def weigh(self, samples: int | None) -> None:
        """How many samples the gradients of the next backward passes stand for, in place of all ranks alike."""
        if samples is not None and (not isinstance(samples, int) or samples < 0):
            raise ValueError(f"batch_size={samples!r}; use the number of samples, a whole number, or None")
        if samples is not None and not self._average:
            raise BytePSError("batch_size weighs an average; this optimizer has op='sum'")
        if samples != self.samples and self.under_way:
            raise BytePSError(f"batch_size={samples} while gradients are being summed; set it before backward()")
        self.samples = samples

    # ---- the exchange ----

    @property
    def under_way(self) -> bool:
        """Whether sums have been started that no exchange has settled."""
        return any(slot.handle is not None for slot in self.slots)

    def synchronize(self) -> None:
        """All sums of this step into the gradients; does nothing if they are there."""
        if self.synchronised:
            return
        self.start(Doing.STEP)
        self.resolve()
        for slot in self.slots:
            self.collect(slot)
        self.synchronised = True

    def discard(self) -> None:
        """The gradients are to be cleared; ends what is under way, together with the other ranks."""
        if self.under_way:
            self.start(Doing.DISCARD)
            self.resolve()
            for slot in self.slots:
                slot.grad = None
                self.collect(slot)
        for slot in self.slots:
            slot.passes, slot.grad, slot.sparse = 0, None, False
        self.synchronised = self.changed = False

    def stepped(self) -> None:
        """The optimiser has used the gradients."""
        self.steps += 1
        self.synchronised = self.changed = False

    def start(self, doing: Doing) -> None:
        """Submit what the hooks have not, and begin the exchange."""
        if self.taken:
            raise BytePSError(
                f"{self.name}: {listed(self.taken)} now belong to a later DistributedOptimizer; step that one"
            )
        if doing is Doing.STEP:
            for index, slot in enumerate(self.slots):
                self._watch(index)  # frozen at first, and now not
                if slot.handle is None:
                    slot.sparse = False
                    if slot.parameter.grad is not None and slot.parameter.requires_grad:
                        self._submit(slot)
        if self._order is not None:
            self._ordering = begin(self.session, self._order_spec, table := self._forward_order(self._order), table)
            self._order = None
        self._doing = doing
        word = Word(
            doing=doing,
            steps=self.steps,
            samples=self.samples,
            submitted=[slot.handle is not None for slot in self.slots],
            sparse=[slot.sparse for slot in self.slots],
        )
        table = torch.tensor(exchange.fill(word, self.session.rank, self._size))
        self._exchange = begin(self.session, self._exchange_spec, table, table)

    def _forward_order(self, ready: list[int]) -> torch.Tensor:
        """Rank 0's word on priorities: the last gradient to become ready belongs to the first layer."""
        table = torch.zeros(len(self.slots), dtype=torch.int64)
        if self.session.rank == 0:
            first = list(dict.fromkeys(reversed(ready)))
            forward = [*first, *(index for index in range(len(self.slots)) if index not in set(first))]
            table[torch.tensor(forward, dtype=torch.int64)] = -1 - torch.arange(len(forward))
        return table

    def resolve(self) -> frozenset[int]:
        """Learn what the others do, and contribute zeros where only they have a gradient; the ranks that joined."""
        assert self._exchange is not None
        table = synchronize(self._exchange).tolist()
        self._exchange = None
        if self._ordering is not None:
            for slot, priority in zip(self.slots, synchronize(self._ordering).tolist(), strict=True):
                slot.priority = priority
            self._ordering = None
        verdict = exchange.conclude(
            table, self._size, who=self.name, names=[slot.name for slot in self.slots], average=self._average
        )
        self._factor = verdict.factor
        for slot, wanted in zip(self.slots, verdict.wanted, strict=True):
            if wanted and slot.handle is None:
                self._contribute_nothing(slot)
        return verdict.joined

    def _contribute_nothing(self, slot: Slot) -> None:
        """Zeros; in a step the sum becomes the parameter's gradient."""
        if self._doing is Doing.STEP:
            slot.parameter.grad = torch.zeros_like(slot.parameter)
            self._submit(slot)
        else:
            slot.grad, sent = (
                None,
                torch.zeros(slot.spec.shape, dtype=getattr(torch, slot.spec.dtype), device=slot.parameter.device),
            )
            slot.handle = begin(self.session, slot.spec, sent, sent, slot.priority)

    def collect(self, slot: Slot) -> None:
        """Wait for a sum, if one is under way, and put it into the gradient."""
        handle, grad = slot.handle, slot.grad
        slot.handle, slot.grad, slot.passes = None, None, 0
        if handle is None:
            return
        if grad is None:
            synchronize(handle)
            return
        if slot.parameter.grad is not grad or grad._version != slot.version:
            raise BytePSError(
                f"{self.name}: the gradient of {slot.name!r} was changed while it was being summed; call "
                "optimizer.synchronize() after backward() and before changing or clipping gradients"
            )
        total = self._compression.decompress(synchronize(handle), slot.context)
        with torch.no_grad():
            if total.data_ptr() != grad.data_ptr():
                grad.copy_(total)
            if self._factor != 1.0:
                grad.mul_(self._factor)
