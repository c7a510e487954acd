"""One worker of a job: joins it, submits and waits, and leaves.

`registry` knows the tensors and keeps their transfers in order, `communication` moves the bytes.
"""

import contextlib
import math
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Final

from byteps import wire
from byteps.communication import RELAX_SECONDS, CommunicationService, Pending, Transfer
from byteps.errors import KINDS, BytePSError
from byteps.handshake import connect, parse_address
from byteps.net import Connection, Flusher
from byteps.registry import Registry
from byteps.rendezvous import Link, log
from byteps.server import num_processes, service_command
from byteps.settings import Settings
from byteps.trace import Span
from byteps.version import VERSION
from byteps.wire import Message, TensorSpec

_VERDICT_SECONDS: Final = 5.0
_WAIT_STEP_SECONDS: Final = 1.0
_SHUTDOWN_SECONDS: Final = 10.0


class Worker:
    """One worker of a job, from registration to goodbye."""

    def __init__(
        self,
        settings: Settings,
        meet: Callable[["Worker"], None] = lambda worker: None,
        failed: Callable[[BytePSError], None] = lambda error: None,
    ) -> None:
        """Joins the job; returns when every worker is connected to every summation service.

        `meet` is what else this worker has to connect to when it knows the plan; `failed` is told of the job's end.
        """
        self.settings = settings
        self.rank = -1  # the machine's, as all that travels: this worker's own only if it is alone there
        self._who = "worker" if settings.rank < 0 else f"worker {settings.rank}"
        self._failed = failed
        self._communication = CommunicationService(
            credit_bytes=settings.credit_bytes, completed=self._completed, lost=self._lost, violated=self._violated
        )
        self._registry = Registry(self._communication, self._declare)
        self._barrier = threading.Event()
        self._go = threading.Event()
        self._planned = threading.Event()
        self._plan: wire.Plan | None = None
        self._children: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []  # to the own service's processes
        self._pid = os.getpid()
        self._flusher = Flusher()
        self._link = Link(settings, self._flusher, self._who)
        self._link.start(
            wire.Register(
                role="worker",
                rank=settings.worker_id,
                local_rank=settings.local_rank if settings.workers_per_machine > 1 else 0,
                local_size=settings.workers_per_machine,
                num_workers=settings.num_workers,
                num_servers=settings.num_servers,
                version=VERSION,
                nic_bytes_per_s=settings.nic_bytes_per_s,
            ),
            self._control,
        )
        self._wait(self._planned, "the plan from the scheduler")
        self._connect()
        meet(self)
        self._link.send(wire.Ready())
        self._wait(self._go, "all workers to connect")

    @property
    def local_host(self) -> str:
        """The address from which this machine reaches the scheduler."""
        return self._link.local_host

    @property
    def plan(self) -> wire.Plan:
        """The job's, once it is known."""
        assert self._plan is not None
        return self._plan

    @property
    def start_deadline(self) -> float:
        """By which the job has to be together (time.monotonic)."""
        return self._link.deadline

    # ---- joining ----

    def _wait(self, event: threading.Event, what: str) -> None:
        if not event.wait(max(self._link.deadline + _VERDICT_SECONDS - time.monotonic(), 0.0)):
            self._link.fail("start", f"{self._who} waited {self.settings.start_seconds:.0f} s for {what}, in vain")
        self._registry.check()

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
            self._communication.add(index, service.name, service.share, connection)

    # ---- the scheduler's messages, in the link's thread ----

    def _control(self, message: Message) -> None:
        match message:
            case wire.StartServices(rank=rank):
                self._place(rank)
                self._start_services()
            case wire.Plan():
                self._place(message.rank)
                self._plan = message
                self._planned.set()
            case wire.Go():
                self._go.set()
            case wire.Notice(text=text):
                log(self._who, text)
            case wire.Table(entries=entries, barrier=barrier):
                self._registry.register(entries)
                if barrier:
                    self._barrier.set()
            case wire.Failed(kind=kind, text=text):
                self._fail(KINDS.get(kind, BytePSError)(text))
            case wire.Finish():
                self._link.finished.set()

    def _place(self, machine: int) -> None:
        self.rank = machine
        self._who = f"worker {machine if self.settings.rank < 0 else self.settings.rank}"

    def _fail(self, error: BytePSError) -> None:
        """The job is over: everything pending and everything later raises this."""
        if not self._registry.fail(error):
            return
        for event in (self._planned, self._go, self._barrier):
            event.set()
        self._failed(error)

    def _declare(self, specs: tuple[TensorSpec, ...]) -> None:
        self._link.send(wire.Declare(specs=specs, barrier=False))

    # ---- the user's calls ----

    def declare(self, specs: list[TensorSpec]) -> None:
        """A barrier: registers these names, the same set on every worker, or raises MismatchError everywhere."""
        self._barrier.clear()
        self._registry.expect(specs)
        self._link.send(wire.Declare(specs=tuple(specs), barrier=True))
        while not self._barrier.wait(_WAIT_STEP_SECONDS):
            pass  # the scheduler ends a barrier that stalls
        self._registry.check()

    def announce(self, spec: TensorSpec) -> None:
        """Register a tensor whose bytes others send, or this worker later."""
        self._registry.announce(spec)

    def submit(
        self,
        spec: TensorSpec,
        source: memoryview,
        target: memoryview,
        priority: int,
        timing: Span | None = None,
        answered: Callable[[], None] | None = None,
    ) -> Pending:
        """Start one round of a tensor of at least one byte; returns what `wait` takes.

        Source and target may be NOTHING, but somebody must contribute.  `answered` is called, in a thread that receives
        answers, when the result is there.
        """
        if spec.members and self.rank not in spec.members:
            raise BytePSError(f"tensor {spec.name!r} has {spec.describe()}; this is rank {self.rank}")
        return self._registry.submit(spec, source, target, priority, timing, answered)

    def wait(self, pending: Pending, seconds: float = math.inf) -> bool:
        """Until the transfer is complete, whether it is in time; raises the job's error if it failed."""
        if pending.locked():
            self._communication.flush()
        deadline = time.monotonic() + seconds
        while not pending.acquire(timeout=RELAX_SECONDS):
            self.relax()  # a stall is ended by the scheduler, a death by its verdict; both release
            if time.monotonic() >= deadline:
                return False
        pending.release()
        self._registry.check()
        return True

    def relax(self) -> None:
        """To be called now and then by a user who polls instead of waiting."""
        self._communication.relax()

    def report(self, name: str, seconds: float, ready: tuple[int, ...]) -> None:
        """Of the ranks on this machine these have contributed to a tensor, and others have not, for so long."""
        self._link.send(wire.Waiting(name=name, seconds=seconds, ready=ready))

    def violated(self, text: str) -> None:
        """The job cannot go on, for this reason."""
        self._link.send(wire.Violation(text=text))

    @property
    def is_child(self) -> bool:
        """Whether this is a forked copy: it holds copies of the sockets, but the job is its parent's."""
        return os.getpid() != self._pid

    def shutdown(self, error: str = "", outstanding: int = 0) -> None:
        """Goodbye; waits a while for the others, whose last answers this machine's service may still be sending.

        `error` is the exception that ended the program, if one did: then the job is over at once.  `outstanding` are
        tensors under way, those here included.
        """
        if self.is_child:
            return
        outstanding = max(self._registry.leave(), outstanding)
        if self._registry.error is None:
            self._link.send(wire.Goodbye(outstanding=outstanding, error=error))
            if not self._link.finished.wait(_SHUTDOWN_SECONDS) and self._keeps_weights:
                log(self._who, "has left; its summation service keeps weights for the others: waiting for their end")
                self._link.finished.wait()  # the heartbeat ends it if the scheduler is lost
        self._link.close()
        self._communication.close()
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_VERDICT_SECONDS)
        if self._registry.error is not None:
            for child in self._children:
                child.kill()

    @property
    def _keeps_weights(self) -> bool:
        """Whether a service of this machine has weights that other workers may still change."""
        return bool(self._children) and self._registry.has_weights

    def abandon(self) -> None:
        """In a forked child: let go of the parent's sockets, without a word on them and without its locks."""
        self._link.abandon()
        self._communication.abandon()
        self._flusher.abandon()

    # ---- the communication service's word, in its threads ----

    def _completed(self, transfer: Transfer) -> None:
        self._registry.completed(transfer)

    def _violated(self, service: int, text: str) -> None:
        message = f"worker {self.rank} refused a frame of {self._service_name(service)}: {text}"
        self._link.send(wire.Violation(text=message))

    def _service_name(self, service: int) -> str:
        assert self._plan is not None
        return self._plan.services[service].name

    def _lost(self, service: int) -> None:
        """A service's connection ended.  The scheduler knows who died first; without its word, name what we saw."""
        self.lost(self._service_name(service))

    def lost(self, name: str) -> None:
        """The same of any peer."""
        if self._registry.leaving or self._link.finished.is_set():
            return
        self._link.send(wire.Lost(peer=name))
        if not self._link.finished.wait(_VERDICT_SECONDS):
            self._link.fail("peer_lost", f"lost {name}: connection closed without goodbye")
