"""The worker's side: the communication service that carries tensors to the summation services and back.

The user's thread submits and waits.  One thread per service reads answers straight into the result; whoever makes room
in the credit (`pipeline`) sends the next partitions at once, so no partition passes between threads on its way out.
"""

import _thread
import contextlib
import os
import socket
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from byteps import wire
from byteps.errors import KINDS, BytePSError
from byteps.net import Connection, ConnectionLost, Flusher, connect, parse_address
from byteps.pipeline import Pipeline, Task
from byteps.rendezvous import Link, log
from byteps.server import num_processes, service_command
from byteps.settings import Settings
from byteps.version import VERSION
from byteps.wire import HEADER, HEADER_NBYTES, Kind, Message, ProtocolError, TensorEntry, TensorSpec

# In flight per worker: enough partitions for pushes and pulls to overlap, few enough that nothing queues
# (semantics.md).
_CREDIT_PARTITIONS: Final = 32
_MIN_CREDIT_NBYTES: Final = 2 << 20
_MAX_CREDIT_NBYTES: Final = 16 << 20
# The kernel shares the NIC equally among the sockets that have data.  A service with twice the share of another would fall
# behind, and the credit fill up with its partitions; so no socket may hold more unsent bytes than half a partition.
_MIN_UNSENT_NBYTES: Final = 32 << 10
_VERDICT_SECONDS: Final = 5.0
_WAIT_STEP_SECONDS: Final = 1.0
_RELAX_SECONDS: Final = 0.02
_SHUTDOWN_SECONDS: Final = 10.0
# Held until the last answer is in, or the job failed: an Event costs ten times as much, and there may be 10,000.
Pending = _thread.LockType


@dataclass(eq=False, slots=True, kw_only=True)
class Transfer(Task):
    """A task with its bytes."""

    source: memoryview
    target: memoryview
    pending: Pending


@dataclass(eq=False, slots=True)
class _Tensor:
    """A registered tensor, or one whose registration is under way (entry is None)."""

    spec: TensorSpec
    entry: TensorEntry | None = None
    round: int = 0
    waiting: deque[tuple[memoryview, memoryview, int, Pending]] = field(default_factory=deque)
    active: Transfer | None = None


class Worker:
    """One worker of a job, from registration to goodbye."""

    def __init__(self, settings: Settings) -> None:
        """Joins the job; returns when every worker is connected to every summation service."""
        self.settings = settings
        self.rank = -1
        self.size = settings.num_workers
        self._who = "worker" if settings.worker_id < 0 else f"worker {settings.worker_id}"
        self._lock = threading.Lock()  # guards all that follows down to _outstanding, and the transfers
        self._pipeline = Pipeline(settings.credit_bytes or _MAX_CREDIT_NBYTES)
        self._tensors: dict[str, _Tensor] = {}
        self._by_number: dict[int, _Tensor] = {}
        self._unregistered: list[TensorSpec] = []
        self._registering = False
        self._error: BytePSError | None = None
        self._outstanding = 0
        self._next_relax = 0.0
        self._pumping = threading.Lock()
        self._untaken: list[int] = []  # the service of each frame that the kernel has not taken as a whole
        self._barrier = threading.Event()
        self._go = threading.Event()
        self._planned = threading.Event()
        self._plan: wire.Plan | None = None
        self._leaving = False
        self._connections: dict[int, Connection] = {}
        self._children: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []  # to the own service's processes
        self._pid = os.getpid()
        self._flusher = Flusher()
        self._link = Link(settings, self._flusher, self._who)
        self._link.start(
            wire.Register(
                role="worker",
                rank=settings.worker_id,
                num_workers=settings.num_workers,
                num_servers=settings.num_servers,
                version=VERSION,
                nic_bytes_per_s=settings.nic_bytes_per_s,
            ),
            self._control,
        )
        self._wait(self._planned, "the plan from the scheduler")
        self._connect()
        self._link.send(wire.Ready())
        self._wait(self._go, "all workers to connect")

    # ---- joining ----

    def _wait(self, event: threading.Event, what: str) -> None:
        if not event.wait(max(self._link.deadline + _VERDICT_SECONDS - time.monotonic(), 0.0)):
            self._link.fail("start", f"{self._who} waited {self.settings.start_seconds:.0f} s for {what}, in vain")
        if self._error is not None:
            raise self._error

    def _start_services(self) -> None:
        """The summation service of this machine: a process, since the user's code holds the interpreter lock."""
        environment = {**os.environ, **self.settings.to_environment()}
        processes = num_processes(self.settings)
        for process in range(processes):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            command = service_command(
                rank=self.rank, process=process, processes=processes, machine=f"worker {self.rank}", fd=theirs.fileno()
            )
            self._children.append(subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()]))
            theirs.close()
            self._sockets.append(ours)

    def _connect(self) -> None:
        """A connection to every service that has a share; to the own one over the socket pair."""
        assert self._plan is not None
        own = iter(self._sockets)
        for index, service in enumerate(self._plan.services):
            if service.share == 0:
                continue
            if service.worker == self.rank:
                connection = Connection(next(own), self._flusher)
            else:
                host, port = parse_address(service.address)
                sock = connect(host, port, self.settings.secret, self._link.deadline, what=service.name)
                connection = Connection(sock, self._flusher, congestion_control=self.settings.congestion_control)
                connection.send_message(wire.Hello(rank=self.rank, job=self._plan.job))
            self._connections[index] = connection
            threading.Thread(target=self._read, args=(index, connection), name=service.name, daemon=True).start()

    # ---- the scheduler's messages, in the link's thread ----

    def _control(self, message: Message) -> None:
        match message:
            case wire.StartServices(rank=rank):
                self.rank, self._who = rank, f"worker {rank}"
                self._start_services()
            case wire.Plan():
                self.rank, self._who = message.rank, f"worker {message.rank}"
                self._plan = message
                self._planned.set()
            case wire.Go():
                self._go.set()
            case wire.Notice(text=text):
                log(self._who, text)
            case wire.Table(entries=entries, barrier=barrier):
                self._register(entries)
                if barrier:
                    self._barrier.set()
            case wire.Failed(kind=kind, text=text):
                self._fail(KINDS.get(kind, BytePSError)(text))
            case wire.Finish():
                self._link.finished.set()

    def _fail(self, error: BytePSError) -> None:
        """The job is over: everything pending and everything later raises this."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            transfers = [tensor.active for tensor in self._tensors.values() if tensor.active is not None]
            waiting = [pending for tensor in self._tensors.values() for *_, pending in tensor.waiting]
        for pending in [transfer.pending for transfer in transfers] + waiting:
            pending.release()
        for event in (self._planned, self._go, self._barrier):
            event.set()

    def _register(self, entries: tuple[TensorEntry, ...]) -> None:
        with self._lock:
            for entry in entries:
                if not self._by_number:
                    self._tune(entry.cut_nbytes)
                tensor = self._tensors.setdefault(entry.spec.name, _Tensor(entry.spec))
                self._by_number[entry.number] = tensor
                if tensor.spec != entry.spec:
                    continue  # the scheduler has our declaration too, and its verdict is on the way
                tensor.entry = entry
                self._activate(tensor)
            self._registering = False
            self._send_declarations()
        self._pump()

    def _tune(self, cut_nbytes: int) -> None:
        """Fit the credit, and what a socket may hold back, to the size of the partitions."""
        if not self.settings.credit_bytes:
            credit = min(max(_CREDIT_PARTITIONS * cut_nbytes, _MIN_CREDIT_NBYTES), _MAX_CREDIT_NBYTES)
            self._pipeline.credit_bytes = max(credit, cut_nbytes)
        for connection in self._connections.values():
            connection.limit_unsent(max(cut_nbytes // 2, _MIN_UNSENT_NBYTES))

    def _send_declarations(self) -> None:
        """New names go out together, one batch under way at a time.  Under the lock."""
        if self._unregistered and not self._registering:
            self._registering = True
            self._link.send(wire.Declare(specs=tuple(self._unregistered), barrier=False))
            self._unregistered.clear()

    # ---- the user's calls ----

    def declare(self, specs: list[TensorSpec]) -> None:
        """A barrier: registers these names, the same set on every worker, or raises MismatchError everywhere."""
        self._barrier.clear()
        with self._lock:
            if self._error is not None:
                raise self._error
            for spec in specs:
                self._tensors.setdefault(spec.name, _Tensor(spec))
        self._link.send(wire.Declare(specs=tuple(specs), barrier=True))
        while not self._barrier.wait(_WAIT_STEP_SECONDS):
            pass  # the scheduler ends a barrier that stalls
        if self._error is not None:
            raise self._error

    def submit(self, spec: TensorSpec, source: memoryview, target: memoryview, priority: int) -> Pending:
        """Start one push_pull of at least one byte; returns what `wait` and `done` take."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._leaving:
                raise BytePSError("push_pull after shutdown(); call init() again first")
            tensor = self._tensors.get(spec.name)
            if tensor is None:
                tensor = self._tensors[spec.name] = _Tensor(spec)
            self._outstanding += 1
            pending = _thread.allocate_lock()
            pending.acquire()
            tensor.waiting.append((source, target, priority, pending))
            if tensor.entry is None or tensor.spec != spec:
                self._unregistered.append(spec)
                self._send_declarations()
            else:
                self._activate(tensor)
        self._pump()
        return pending

    def wait(self, pending: Pending) -> None:
        """Until the transfer is complete; raises the job's error if it failed."""
        if pending.locked():
            with self._lock:
                self._pipeline.flush()
            self._pump()
        while not pending.acquire(timeout=_RELAX_SECONDS):
            self.relax()  # a stall is ended by the scheduler, a death by its verdict; both release
        pending.release()
        if self._error is not None:
            raise self._error

    def relax(self) -> None:
        """Called again and again while the user waits: workers must not hold back what others wait for."""
        now = time.monotonic()
        if now < self._next_relax:
            return
        self._next_relax = now + _RELAX_SECONDS
        with self._lock:
            self._pipeline.relax()
        self._pump()

    def shutdown(self, error: str = "") -> None:
        """Goodbye; waits a while for the others, whose last answers this machine's service may still be sending.

        `error` is the exception that ended the program, if one did: then the job is over at once.
        """
        if os.getpid() != self._pid:
            return  # a forked child holds copies of the sockets, but the job is its parent's
        with self._lock:
            self._leaving = True
            outstanding = self._outstanding
        if self._error is None:
            self._link.send(wire.Goodbye(outstanding=outstanding, error=error))
            self._link.finished.wait(_SHUTDOWN_SECONDS)
        self._link.close()
        for connection in self._connections.values():
            connection.close()
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_VERDICT_SECONDS)
        if self._error is not None:
            for child in self._children:
                child.kill()

    # ---- moving bytes ----

    def _activate(self, tensor: _Tensor) -> None:
        """Start the tensor's next waiting transfer, if none is under way.  Under the lock."""
        if tensor.active is None and tensor.entry is not None and tensor.waiting:
            source, target, priority, pending = tensor.waiting.popleft()
            tensor.active = Transfer(
                entry=tensor.entry,
                nbytes=len(source),
                priority=priority,
                round=tensor.round,
                source=source,
                target=target,
                pending=pending,
            )
            tensor.round += 1
            self._pipeline.submit((tensor.active,))

    def _pump(self) -> None:
        """Send what the credit allows, in order: nothing overtakes a frame that the kernel has not taken yet.

        One thread at a time; one that finds it busy leaves its work to the other.
        """
        while self._pipeline.ready and not self._untaken:
            if not self._pumping.acquire(blocking=False):
                return
            try:
                while not self._untaken:
                    with self._lock:
                        frames = self._pipeline.take()
                    if not frames:
                        break
                    for frame in frames:
                        self._send(frame.service, frame.parts)
            finally:
                self._pumping.release()
            # Work that came between the last take and the release is seen by the loop's condition.

    def _send(self, service: int, parts: list[tuple[Task, int]]) -> None:
        connection = self._connections[service]
        headers: list[bytes | memoryview] = []
        payloads: list[bytes | memoryview] = []
        for task, part in parts:
            assert isinstance(task, Transfer)
            start, end = task.span(part)
            spec = task.entry.spec
            key = wire.make_key(task.entry.number, part)
            headers.append(
                HEADER.pack(Kind.PUSH, wire.DTYPE_CODES[spec.dtype], spec.op, task.round & 0xFFFFFFFF, key, end - start)
            )
            payloads.append(task.source[start:end])
        self._untaken.append(service)
        if len(parts) == 1:
            connection.send(headers[0], payloads[0], done=self._taken)
            return
        body = b"".join(headers + payloads)
        connection.send(HEADER.pack(Kind.PUSH_BATCH, 0, 0, len(parts), 0, len(body)) + body, done=self._taken)

    def _taken(self) -> None:
        """The kernel has taken a frame, maybe a while after it was sent; called by whichever thread sent the end of it."""
        self._untaken.pop()
        if not self._untaken:
            self._pump()

    def _read(self, service: int, connection: Connection) -> None:
        """Receive one service's answers into the results."""
        header = bytearray(HEADER_NBYTES)
        view = memoryview(header)
        try:
            while True:
                connection.receive_exactly(view)
                kind, _, _, round_, key, nbytes = HEADER.unpack(header)
                if kind == Kind.PULL:
                    connection.receive_exactly(self._place(key, nbytes))
                    self._complete((key,))
                elif kind == Kind.PULL_BATCH and nbytes <= wire.MAX_BATCH_BODY_NBYTES:
                    body = bytearray(nbytes)
                    connection.receive_exactly(memoryview(body))
                    self._complete(self._unpack(round_, memoryview(body)))
                else:
                    raise ProtocolError(f"a frame of kind {kind} and {nbytes} bytes")
        except ConnectionLost:
            if not self._leaving and not self._link.finished.is_set():
                self._lost(service)
        except (ProtocolError, KeyError) as error:
            text = f"worker {self.rank} refused a frame of {self._service_name(service)}: {error}"
            self._link.send(wire.Violation(text=text))

    def _place(self, key: int, nbytes: int) -> memoryview:
        """Where an answer goes."""
        transfer = self._by_number[key >> 32].active
        if transfer is None:
            raise ProtocolError(f"an answer for key {key:#x}, which is not under way")
        start, end = transfer.span(key & 0xFFFFFFFF)
        if nbytes != end - start:
            raise ProtocolError(f"an answer of {nbytes} bytes for key {key:#x}, which has {end - start}")
        return transfer.target[start:end]

    def _unpack(self, count: int, body: memoryview) -> list[int]:
        offset = count * HEADER_NBYTES
        keys = []
        for _, _, _, _, key, nbytes in HEADER.iter_unpack(body[:offset]):
            self._place(key, nbytes)[:] = body[offset : offset + nbytes]
            offset += nbytes
            keys.append(key)
        return keys

    def _complete(self, keys: tuple[int, ...] | list[int]) -> None:
        finished = []
        with self._lock:
            if self._error is not None:
                return
            for key in keys:
                self._pipeline.answer(key)
                tensor = self._by_number[key >> 32]
                transfer = tensor.active
                assert transfer is not None
                transfer.answered += 1
                if transfer.finished:
                    tensor.active = None
                    self._outstanding -= 1
                    finished.append(transfer)
                    if tensor.waiting:
                        self._activate(tensor)
        self._pump()
        for transfer in finished:
            transfer.pending.release()

    def _service_name(self, service: int) -> str:
        assert self._plan is not None
        return self._plan.services[service].name

    def _lost(self, service: int) -> None:
        """A service's connection ended.  The scheduler knows who died first; without its word, name what we saw."""
        name = self._service_name(service)
        self._link.send(wire.Lost(peer=name))
        if not self._link.finished.wait(_VERDICT_SECONDS):
            self._link.fail("peer_lost", f"lost {name}: connection closed without goodbye")
