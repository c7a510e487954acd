"""The scheduler process, and every other role's link to it.

The scheduler is the `Coordinator` with sockets: one thread reads each control connection into one queue, and one loop
takes events from it, so that decisions are made one after the other.
"""

import contextlib
import itertools
import queue
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from byteps.assign import Shares
from byteps.coordinator import Coordinator, Exit, Log, Refuse, Send, Step
from byteps.errors import StartError
from byteps.handshake import Acceptor, check_congestion_control, connect, is_loopback, listen
from byteps.net import Connection, ConnectionLost, Flusher
from byteps.settings import Settings
from byteps.version import VERSION
from byteps.wire import Failed, Heartbeat, Message, ProtocolError, Register

_TICK_SECONDS: Final = 0.5
_DRAIN_SECONDS: Final = 5.0
_LATECOMERS_SECONDS: Final = 10.0


def log(who: str, text: str) -> None:
    """One line on stderr; the launcher's readers rely on lines staying whole."""
    sys.stderr.write(f"byteps {who}: {text}\n")
    sys.stderr.flush()


def check_secret(settings: Settings, host: str) -> None:
    """Without a job secret only loopback is allowed."""
    if not settings.job_secret and not is_loopback(host):
        raise StartError(
            f"{host} is not a loopback address and there is no job secret; set BYTEPS_JOB_SECRET to the same random "
            "text for every role, such as the output of `openssl rand -hex 16`"
        )


class Scheduler:
    """Runs one job's coordinator until the job is over."""

    def __init__(self, settings: Settings, planned: Shares | None, sock: socket.socket | None = None) -> None:
        check_secret(settings, settings.root_host)
        self._socket = sock or listen(settings.root_host, settings.root_port)
        self._settings = settings
        self._flusher = Flusher()
        self._events: queue.SimpleQueue[tuple[int, str, Message | None]] = queue.SimpleQueue()
        self._connections: dict[int, Connection] = {}  # the acceptor's threads add to it, only `run` removes
        self._ids = itertools.count()
        # With the address that the host's name stands for: one that resolves to loopback is worth a hint.
        self._coordinator = Coordinator(
            settings=replace(settings, root_host=str(self._socket.getsockname()[0])),
            job=secrets.token_hex(8),
            version=VERSION,
            started=time.monotonic(),
            planned=planned,
        )

    def run(self) -> int:
        """Until the job is over; the exit code."""
        acceptor = Acceptor(self._socket, self._settings.secret, self._admit, lambda text: log("scheduler", text))
        code = None
        next_tick = time.monotonic() + _TICK_SECONDS
        next_beat = 0.0
        while code is None:
            event = None
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=max(next_tick - time.monotonic(), 0.0))
            now = time.monotonic()
            if event is not None:
                member, host, message = event
                if message is None:
                    code = self._act(self._coordinator.disconnected(member))
                    self._connections.pop(member).close()
                else:
                    code = self._act(self._coordinator.message(member, host, message, now))
            if code is None and now >= next_tick:
                next_tick = now + _TICK_SECONDS
                code = self._act(self._coordinator.tick(now))
            if now >= next_beat:
                next_beat = now + self._settings.heartbeat_seconds / 5
                for connection in list(self._connections.values()):  # acceptor threads add to it
                    connection.send_message(Heartbeat())
        self._tell_latecomers()
        acceptor.close()
        self._see_off()
        return code

    def _tell_latecomers(self) -> None:
        """Roles that are still on their way to a start that failed would wait for a scheduler that is gone."""
        deadline = time.monotonic() + _LATECOMERS_SECONDS
        while self._coordinator.awaited > 0 and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                member, host, message = self._events.get(timeout=0.1)
                if message is None:
                    self._connections.pop(member).close()
                else:
                    self._act(self._coordinator.message(member, host, message, time.monotonic()))

    def _see_off(self) -> None:
        """Wait until the verdict has reached everybody: closing at once could reset a connection and destroy it."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        for connection in list(self._connections.values()):
            connection.drain(max(deadline - time.monotonic(), 0.0))
            connection.finish_sending()
        while self._connections and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                member, _, message = self._events.get(timeout=0.1)
                if message is None:
                    self._connections.pop(member).close()

    def _act(self, steps: Iterable[Step]) -> int | None:
        code = None
        for step in steps:
            match step:
                case Send(member, message) if member in self._connections:
                    self._connections[member].send_message(message)
                case Refuse(member, message) if member in self._connections:
                    log("scheduler", f"refused a connection: {message.text}")
                    self._connections[member].send_message(message)
                    self._connections[member].finish_sending()
                case Log(text):
                    log("scheduler", text)
                case Exit(value):
                    code = value
        return code

    def _admit(self, sock: socket.socket, peer: str) -> None:
        """In the acceptor's thread, which becomes the connection's reader."""
        member = next(self._ids)
        host = peer.rpartition(":")[0].strip("[]")
        connection = self._connections[member] = Connection(sock, self._flusher)
        try:
            while True:
                self._events.put((member, host, connection.receive_message()))
        except ProtocolError as error:
            log("scheduler", f"closed the connection from {peer}: {error}")
        except ConnectionLost:
            pass
        self._events.put((member, host, None))


class Link:
    """A member's connection to the scheduler: registration, messages, heartbeats, and the verdict when the job
    fails."""

    def __init__(self, settings: Settings, flusher: Flusher, who: str) -> None:
        self.settings = settings
        self.who = who
        self.deadline = time.monotonic() + settings.start_seconds
        self.failure: Failed | None = None
        self.finished = threading.Event()  # failed, or everybody is gone
        self._handler: Callable[[Message], None] | None = None
        self._heard = time.monotonic()
        self._where = f"{settings.root_host}:{settings.root_port}"
        self._started = self._reported = time.monotonic()
        if (notice := check_congestion_control(settings.congestion_control)) and not is_loopback(settings.root_host):
            log(who, notice)
        sock = connect(
            settings.root_host,
            settings.root_port,
            settings.secret,
            self.deadline,
            what="the scheduler",
            progress=self._progress,
        )
        self._connection = Connection(sock, flusher)

    def _progress(self) -> None:
        now = time.monotonic()
        if now - self._reported > 5.0:
            self._reported = now
            waited = now - self._started
            limit = self.settings.start_seconds
            log(self.who, f"cannot reach the scheduler at {self._where} yet, waiting {waited:.0f} s of {limit:g} s")

    @property
    def local_host(self) -> str:
        """This machine's address on the way to the scheduler."""
        return self._connection.local_host

    def start(self, register: Register, handler: Callable[[Message], None]) -> None:
        """Register, then call `handler` with every message, in the link's own thread."""
        self._handler = handler
        self._connection.send_message(register)
        threading.Thread(target=self._read, name="control", daemon=True).start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def send(self, message: Message) -> None:
        self._connection.send_message(message)

    def fail(self, kind: str, text: str) -> None:
        """Fix the cause for this process, if none is known yet, and tell the handler."""
        if self.failure is not None or self.finished.is_set():
            return
        self.failure = Failed(kind=kind, text=text)
        self.finished.set()
        if self._handler is not None:
            self._handler(self.failure)

    def abandon(self) -> None:
        """Let go of the socket, in a forked child."""
        self._connection.abandon()

    def close(self) -> None:
        self.finished.set()
        self._connection.drain(1.0)
        self._connection.close()

    def _read(self) -> None:
        try:
            while True:
                message = self._connection.receive_message()
                self._heard = time.monotonic()
                if isinstance(message, Failed):
                    self.fail(message.kind, message.text)
                    return
                if not isinstance(message, Heartbeat) and self._handler is not None:
                    self._handler(message)
        except (ConnectionLost, ProtocolError) as error:
            self.fail("peer_lost", f"lost the scheduler at {self._where}: {error}")
        finally:
            self._connection.close()

    def _beat(self) -> None:
        limit = self.settings.heartbeat_seconds
        while not self.finished.wait(limit / 5):
            self.send(Heartbeat())
            silent = time.monotonic() - self._heard
            if silent > limit:
                self.fail("peer_lost", f"lost the scheduler at {self._where}: not heard of for more than {limit:g} s")


def run_scheduler(settings: Settings, planned: Shares | None, sock: socket.socket | None = None) -> int:
    """The scheduler role, with planned shares and on an inherited listening socket if there are; the exit code."""
    if not settings.distributed:
        log("scheduler", "one worker needs no scheduler (BYTEPS_FORCE_DISTRIBUTED=1 forces one); done")
        return 0
    return Scheduler(settings, planned, sock).run()
