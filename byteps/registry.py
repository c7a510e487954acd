"""The tensors that a worker has named: declared once, and the transfers of each one after the other.

A name's first use is declared to the scheduler, which answers with where its partitions go; until then transfers wait.
New names go out together, one batch under way at a time.  A use that contradicts the first is never sent: the scheduler
has both, and its verdict ends the job.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from byteps import wire
from byteps.coding import TensorCoding
from byteps.communication import Pending, Transfer, make_pending
from byteps.errors import BytePSError
from byteps.trace import Span
from byteps.wire import TensorEntry, TensorSpec


class Mover(Protocol):
    """What this needs of the communication service."""

    def tune(self, cut_nbytes: int) -> None: ...

    def submit(self, transfer: Transfer) -> None: ...

    def pump(self) -> None: ...

    def stop(self) -> list[Transfer]: ...


@dataclass(eq=False, slots=True)
class _Tensor:
    """A registered tensor, or one whose registration is under way (entry is None)."""

    spec: TensorSpec
    entry: TensorEntry | None = None
    round: int = 0
    waiting: deque[tuple[memoryview, memoryview, int, Span | None, Pending]] = field(default_factory=deque)
    active: bool = False
    coding: TensorCoding | None = None  # from its first transfer on, if it has a codec


class Registry:
    """Everything that a worker has named and not finished."""

    def __init__(self, mover: Mover, declare: Callable[[tuple[TensorSpec, ...]], None]) -> None:
        """`declare` sends names to the scheduler, which answers by `register`."""
        self._mover = mover
        self._declare = declare
        self._lock = threading.Lock()  # guards everything here; taken before the communication service's own
        self._tensors: dict[str, _Tensor] = {}
        self._unregistered: list[TensorSpec] = []
        self._contradictions: list[Pending] = []
        self._registering = False
        self._tuned = False
        self._leaving = False
        self._outstanding = 0
        self._callbacks: dict[Pending, Callable[[], None]] = {}
        self.error: BytePSError | None = None

    # ---- names ----

    def expect(self, specs: list[TensorSpec]) -> None:
        """These are declared in another way; raises the job's error if it is over."""
        with self._lock:
            self.check()
            for spec in specs:
                self._tensors.setdefault(spec.name, _Tensor(spec))

    def announce(self, spec: TensorSpec) -> None:
        """Declare a tensor whose bytes others send, or this worker later."""
        with self._lock:
            self._check_open()
            tensor = self._tensors.get(spec.name)
            if tensor is None:
                self._tensors[spec.name] = _Tensor(spec)
            elif tensor.spec == spec:
                return
            self._unregistered.append(spec)
            self._send_declarations()

    def register(self, entries: tuple[TensorEntry, ...]) -> None:
        """The scheduler's answer, to us or to another worker."""
        with self._lock:
            for entry in entries:
                if not self._tuned:
                    self._tuned = True
                    self._mover.tune(entry.cut_nbytes)
                tensor = self._tensors.setdefault(entry.spec.name, _Tensor(entry.spec))
                if tensor.spec != entry.spec:
                    continue  # the scheduler has our declaration too, and its verdict is on the way
                tensor.entry = entry
                self._activate(tensor)
            self._registering = False
            self._send_declarations()
        self._mover.pump()

    def _send_declarations(self) -> None:
        """Under the lock."""
        if self._unregistered and not self._registering:
            self._registering = True
            self._declare(tuple(self._unregistered))
            self._unregistered.clear()

    @property
    def has_weights(self) -> bool:
        """Whether any tensor is changed by every worker on its own."""
        return any(tensor.spec.op is wire.Op.ADD for tensor in self._tensors.values())

    # ---- transfers ----

    def submit(
        self,
        spec: TensorSpec,
        source: memoryview,
        target: memoryview,
        priority: int,
        timing: Span | None = None,
        answered: Callable[[], None] | None = None,
    ) -> Pending:
        """Start one round of a tensor, or let it wait its turn; `answered` is called when the result is there."""
        with self._lock:
            self._check_open()
            tensor = self._tensors.get(spec.name)
            if tensor is None:
                tensor = self._tensors[spec.name] = _Tensor(spec)
            self._outstanding += 1
            pending = make_pending()
            if answered is not None:
                self._callbacks[pending] = answered
            if tensor.spec == spec:
                tensor.waiting.append((source, target, priority, timing, pending))
            else:
                self._contradictions.append(pending)  # it is never sent; the scheduler's verdict releases it
            if tensor.entry is None or tensor.spec != spec:
                self._unregistered.append(spec)
                self._send_declarations()
            else:
                self._activate(tensor)
        self._mover.pump()
        return pending

    def completed(self, transfer: Transfer) -> None:
        """The communication service's word, in one of its threads."""
        with self._lock:
            tensor = self._tensors[transfer.entry.spec.name]
            tensor.active = False
            self._outstanding -= 1
            answered = self._callbacks.pop(transfer.pending, None)
            more = self._activate(tensor)
        if transfer.timing is not None:
            transfer.timing.answered()
        transfer.pending.release()
        if answered is not None:
            answered()
        if more:
            self._mover.pump()

    def _activate(self, tensor: _Tensor) -> bool:
        """Start the tensor's next waiting transfer, if none is under way; whether it did.  Under the lock."""
        if tensor.active or tensor.entry is None or not tensor.waiting or self.error is not None:
            return False
        source, target, priority, timing, pending = tensor.waiting.popleft()
        tensor.active = True
        if tensor.spec.codec and tensor.coding is None:
            tensor.coding = TensorCoding(tensor.entry)
        self._mover.submit(
            Transfer(
                entry=tensor.entry,
                nbytes=tensor.spec.nbytes,
                priority=priority,
                round=tensor.round,
                source=source,
                target=target,
                pending=pending,
                timing=timing,
                coding=tensor.coding,
            )
        )
        tensor.round += 1
        return True

    # ---- the end ----

    def check(self) -> None:
        """Raise the job's error if it is over."""
        if self.error is not None:
            raise self.error

    def _check_open(self) -> None:
        """Raise why nothing can be submitted."""
        self.check()
        if self._leaving:
            raise BytePSError("push_pull after shutdown(), with which this worker has left its job")

    def leave(self) -> int:
        """Nothing is submitted any more; how many transfers are not complete."""
        with self._lock:
            self._leaving = True
            return self._outstanding

    @property
    def leaving(self) -> bool:
        return self._leaving

    def fail(self, error: BytePSError) -> bool:
        """The job is over: everything pending and everything later raises this; False if it was over already."""
        with self._lock:
            if self.error is not None:
                return False
            self.error = error
            released = [transfer.pending for transfer in self._mover.stop()]
            released += self._contradictions
            released += [pending for tensor in self._tensors.values() for *_, pending in tensor.waiting]
        for pending in released:
            pending.release()
        return True
