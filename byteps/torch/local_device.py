"""Gradients on the GPUs of one machine to their sums over all workers: the steps of `device_plan`, carried out.

Each local rank is a process with its GPU.  A gradient's way, with the stream that each part is queued on:

    collect   waits for the gradient; collectives inside the groups
    out       copies to the slots in shared host memory
              - the host takes over: CPUs add up the slots, the network, the result in shared host memory -
    back      copies from the result
    collect   collectives that hand it on; then whoever waits for the sum may use it

Nothing waits on the host's side but threads that watch events; the user's stream waits for an event when it needs the
sum.  The copies out, those back, the collectives and the user's kernels all run at the same time.

*Order.*  Collectives of a group must be started in one order on all its members, or they wait for each other for ever.
Gradients become ready, and results come, in different orders on different ranks.  So local rank 0 decides: it takes a
turn (name, half) when it could start it itself, tells the others, and they start theirs in that order, each when it
can.  Both halves are in one sequence: collectives of two groups that run at the same time may block each other, too.

*Reuse.*  A tensor's next round may be submitted while one is under way; it gets its turn when the second half of the
one before was started.  Its copies out come after its collectives, and these after the copies back of the round before,
so a rank that has contributed has read the last result.  A gradient is referred to until an event says that nothing
queued uses it any more, so that its memory is not reused too early, whatever stream it was allocated on.

Whatever fails on a GPU is told to the job, whose verdict is the error of every sum under way and of all that follow,
the same on all ranks.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as _Late
from dataclasses import dataclass, field
from functools import partial

from byteps.device_plan import Copy, DevicePlan
from byteps.errors import BytePSError, StallError
from byteps.torch.device import Device, DeviceError, Done, Event, Half, Host, Memory

_WAIT_STEP_SECONDS = 0.5
_VERDICT_SECONDS = 5.0


@dataclass(eq=False)
class Sum:
    """One gradient under way; `finished` has the event after which `memory` is the sum."""

    name: str
    memory: Memory
    ready: Event
    kept: tuple[object, ...]  # what must live as long
    finished: "Future[Event]" = field(default_factory=Future)
    stage: str = "waits for its turn, which local rank 0 gives when it has the tensor itself"
    overdue: float = 0.0  # when it is, if it can be; 0.0: its gradient is not computed yet
    contributed: bool = False


@dataclass(eq=False)
class _Tensor:
    """What stays from round to round."""

    plan: DevicePlan
    slots: list[Memory]
    result: Memory
    waiting: deque[Sum] = field(default_factory=deque)
    active: Sum | None = None
    summed: bool = False  # the host has the result of the active one


class LocalDevice:
    """One local rank's part in the sums of its machine."""

    def __init__(self, device: Device, host: Host, *, stall_seconds: float) -> None:
        self._device = device
        self._host = host
        self._stall_seconds = stall_seconds
        self._lock = threading.RLock()  # guards all below, and the order in which work is queued
        self._tensors: dict[str, _Tensor] = {}
        self._turns: deque[tuple[str, Half]] = deque()
        self._refused: list[Sum] = []  # they get the job's verdict
        self._broken: tuple[BytePSError, float] | None = None  # what failed here, and how long the verdict may take
        self._error: BytePSError | None = None  # the verdict
        self._collect, self._out, self._back = (device.stream(name) for name in ("collect", "out", "back"))

    # ---- the user's calls ----

    def submit(self, name: str, plan: DevicePlan, memory: Memory, *kept: object) -> Sum:
        """Sum up `memory` in place.  The caller's stream has queued what computes it."""
        with self._lock:
            if self._error is not None:
                raise self._error
            one = Sum(name, memory, self._device.record(self._device.current()), kept)
            if self._broken is not None:
                self._refused.append(one)
                return one
            tensor = self._tensors.get(name)
            if tensor is None:
                try:
                    tensor = self._open(name, plan, memory)
                except DeviceError as error:  # memory that cannot be pinned
                    self._break(error)
                    self._refused.append(one)
                    return one
            tensor.waiting.append(one)
            self._try(name, 1)
            self._advance()
        return one

    def wait(self, one: Sum) -> None:
        """Until the rest is queued; the caller's stream then waits for the sum.  Raises what went wrong."""
        while True:
            try:
                event = one.finished.result(timeout=_WAIT_STEP_SECONDS)
                break
            except _Late:
                if one.finished.done():
                    raise  # an error of that class
                self._check(one)
        self._device.wait(self._device.current(), event)

    def refused(self, name: str, memory: Memory, ask: Callable[[Done], None]) -> Sum:
        """A sum that cannot be: `ask` is told why, and tells."""
        with self._lock:
            one = Sum(name, memory, self._device.record(self._device.current()), (), contributed=True)
            self._refused.append(one)
        ask(self._answered(lambda: None))
        return one

    def look(self) -> None:
        """Called again and again: whoever waits for a sum elsewhere than in `wait` learns of a failure, too."""
        with self._lock:
            tensors = list(self._tensors.values())
            under_way = [one for t in tensors for one in (t.active, *t.waiting) if one is not None] + self._refused
        for one in under_way:
            if not one.finished.done():
                self._check(one)

    def _check(self, one: Sum) -> None:
        """What a sum waits for may never come: the job is over, or others on this machine do not submit it."""
        now = time.monotonic()
        try:
            self._host.check(one.name)
        except BytePSError as verdict:
            self.fail(verdict)
        if self._broken is not None:
            error, until = self._broken
            if now >= until:
                self.fail(error)
        elif not one.contributed and (one.overdue or self._device.reached(one.ready)):
            one.overdue = one.overdue or now + self._stall_seconds
            if now >= one.overdue:
                text = (
                    f"tensor {one.name!r} on local rank {self._host.rank} {one.stage}, for "
                    f"{self._stall_seconds:.0f} s; do all workers of this machine submit it?"
                )
                self._break(StallError(text))

    # ---- what is told, by other ranks, the host and the device ----

    def turn(self, name: str, half: Half) -> None:
        """Local rank 0 says what comes next."""
        with self._lock:
            self._turns.append((name, half))
            self._advance()

    def fail(self, error: BytePSError) -> None:
        """The job's verdict: every sum under way raises this, and whatever follows."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            failed = [one for t in self._tensors.values() for one in (*t.waiting, *([t.active] if t.active else []))]
            self._turns.clear()
            for one in (*failed, *self._refused):
                if not one.finished.done():
                    one.finished.set_exception(error)
        self._device.abort()

    def _break(self, error: BaseException) -> None:
        """Something failed here: nothing more is started, the job is told, and its verdict counts if it comes soon."""
        with self._lock:
            if self._broken is not None or self._error is not None:
                return
            named = error if isinstance(error, BytePSError) else _named(error)
            self._broken = named, time.monotonic() + _VERDICT_SECONDS
            self._turns.clear()
        self._host.fail(named)
        self._device.abort()

    def close(self) -> None:
        """Let go of memory and group; what is under way is an error."""
        with self._lock:
            under_way = any(tensor.active or tensor.waiting for tensor in self._tensors.values())
            self._error = self._error or (None if under_way else _left())
        if under_way:
            self.fail(_left())
        self._tensors.clear()
        self._device.close()

    # ---- under the lock ----

    def _open(self, name: str, plan: DevicePlan, memory: Memory) -> _Tensor:
        slots, result = self._host.memory(name)
        pinned = [self._device.pin(slot, memory) for slot in slots]
        tensor = self._tensors[name] = _Tensor(plan, pinned, self._device.pin(result, memory))
        return tensor

    def _try(self, name: str, half: Half) -> None:
        """Rank 0: take the turn if it can be taken."""
        if self._host.rank == 0 and self._possible(name, half):
            self._host.announce(name, half)
            self._turns.append((name, half))

    def _possible(self, name: str, half: Half) -> bool:
        tensor = self._tensors.get(name)
        if tensor is None:
            return False
        if half == 1:
            return tensor.active is None and bool(tensor.waiting)
        return tensor.active is not None and tensor.summed

    def _advance(self) -> None:
        """Start what has its turn."""
        while self._turns and self._going and self._possible(*self._turns[0]):
            name, half = self._turns.popleft()
            tensor = self._tensors[name]
            try:
                if half == 1:
                    self._start(tensor)
                else:
                    self._finish(tensor)
                    self._try(name, 1)
            except Exception as error:  # the device's; the other ranks must not wait for this one
                self._break(error)

    def _start(self, tensor: _Tensor) -> None:
        """Collectives, and copies to the slots behind them."""
        one = tensor.active = tensor.waiting.popleft()
        one.stage = "is being added up on the GPUs and copied out"
        device, plan, behind = self._device, tensor.plan, False
        device.wait(self._collect, one.ready)
        for step in plan.steps(self._host.rank, plan.before):
            place = slice(step.span.start, step.span.end)
            if isinstance(step, Copy):
                if not behind:
                    device.wait(self._out, device.record(self._collect))
                device.copy(self._out, one.memory[place], tensor.slots[step.slot][place])
            else:
                device.collect(self._collect, step, one.memory[place])
            behind = isinstance(step, Copy)
        if not behind:
            device.wait(self._out, device.record(self._collect))
        device.watch(device.record(self._out), self._reached(partial(self._copied, one)))

    def _copied(self, one: Sum) -> None:
        one.contributed = True  # from here on the host's rules say how long it may take
        self._host.contribute(one.name, self._answered(partial(self._summed, one.name)))

    def _summed(self, name: str) -> None:
        self._tensors[name].summed = True
        self._try(name, 2)
        self._advance()

    def _finish(self, tensor: _Tensor) -> None:
        """Copies from the result, and collectives behind them."""
        one, tensor.active, tensor.summed = tensor.active, None, False
        assert one is not None
        device, plan, behind = self._device, tensor.plan, True
        for step in plan.steps(self._host.rank, plan.after):
            place = slice(step.span.start, step.span.end)
            if isinstance(step, Copy):
                device.copy(self._back, tensor.result[place], one.memory[place])
            else:
                if not behind:
                    device.wait(self._collect, device.record(self._back))
                device.collect(self._collect, step, one.memory[place])
            behind = not isinstance(step, Copy)
        device.wait(self._collect, device.record(self._back))
        finished = device.record(self._collect)
        device.watch(finished, self._reached(partial(self._ended, one)))
        one.finished.set_result(finished)

    def _ended(self, one: Sum) -> None:
        """Nothing queued uses its memory any more; until now the watched event referred to it."""
        one.kept = ()

    @property
    def _going(self) -> bool:
        return self._error is None and self._broken is None

    def _reached(self, then: Callable[[], None]) -> Done:
        """What follows an event of the device's, or its error."""

        def done(error: BaseException | None) -> None:
            with self._lock:
                if error is not None:
                    self._break(error)
                elif self._going:
                    self._do(then)

        return done

    def _answered(self, then: Callable[[], None]) -> Done:
        """What follows a result of the host's, or the job's verdict."""

        def done(error: BaseException | None) -> None:
            with self._lock:
                if error is not None:
                    self.fail(error if isinstance(error, BytePSError) else _named(error))
                elif self._going:
                    self._do(then)

        return done

    def _do(self, then: Callable[[], None]) -> None:
        try:
            then()
        except DeviceError as error:
            self._break(error)
        except BytePSError as verdict:  # of a call to the host
            self.fail(verdict)
        except Exception as error:
            self._break(error)


def _left() -> BytePSError:
    return BytePSError("push_pull after shutdown(), with which this worker has left its job")


def _named(error: BaseException) -> BytePSError:
    named = DeviceError(f"summing on this machine's GPUs failed: {type(error).__name__}: {error}")
    named.__cause__ = error
    return named
