"""Sockets: established connections, and sending without waiting.

Threads block in `receive_exactly` (one per connection, MSG_WAITALL: one system call per partition), and whoever has
something to send hands it to the kernel at once; only what does not fit into the socket buffer is left to the one
`Flusher` thread of the process.  So no thread ever waits for a slow peer while holding something that another peer
needs, and the data path has no copies and no hand-overs between threads.
"""

import contextlib
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from byteps.wire import (
    LENGTH,
    MAX_CONTROL_NBYTES,
    Message,
    ProtocolError,
    decode_message,
    encode_message,
)

_POLL_SECONDS: Final = 1.0
_TCP_NOTSENT_LOWAT: Final = 25  # Linux; not in Python's socket module before 3.12
# From this size on it pays to wait for a whole partition at once; the kernel must have room for what is waited for.
_PATIENT_NBYTES: Final = 32 << 10
_MAX_PATIENT_NBYTES: Final = 128 << 10
# Buffers per sendmsg; Linux allows 1024.
_MAX_VECTORS: Final = 64
Done = Callable[[], None]


class ConnectionLost(ConnectionError):
    """The peer's end is gone."""


class Flusher:
    """The thread that sends what the kernel had no room for, whenever a socket has room again."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        threading.Thread(target=self._run, name="flush", daemon=True).start()

    def add(self, connection: "Connection") -> None:
        self._connections[connection.fileno] = connection
        self._epoll.register(connection.fileno, 0)

    def discard(self, connection: "Connection") -> None:
        if self._connections.pop(connection.fileno, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(connection.fileno)

    def abandon(self) -> None:
        """Let go of the epoll, in a forked child: it is shared with the parent and must not be changed."""
        self._epoll.close()

    def watch(self, connection: "Connection") -> None:
        """Call `connection.flush` once, when it can send."""
        with contextlib.suppress(OSError):
            self._epoll.modify(connection.fileno, select.EPOLLOUT | select.EPOLLONESHOT)

    def _run(self) -> None:
        while True:
            try:
                events = self._epoll.poll()
            except (OSError, ValueError):
                return
            for fileno, _ in events:
                if connection := self._connections.get(fileno):
                    connection.flush()


class Connection:
    """An established connection.  `send` never blocks; `receive_exactly` is for one reading thread."""

    def __init__(self, sock: socket.socket, flusher: Flusher, *, congestion_control: str = "") -> None:
        self._sock = sock
        self.fileno = sock.fileno()
        self._flusher = flusher
        self._lock = threading.Lock()  # guards _backlog and the order of bytes on the socket
        self._backlog: deque[memoryview | Done] = deque()
        self.closed = False
        self._drained = threading.Event()
        self._drained.set()
        self._arrival = select.poll()
        self._arrival.register(sock, select.POLLIN)
        self._tcp = sock.family != socket.AF_UNIX
        sock.settimeout(None)
        # A kernel time-out instead of Python's: MSG_WAITALL needs a blocking socket.
        seconds = struct.pack("@ll", int(_POLL_SECONDS), 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        if self._tcp:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if congestion_control:
                # Many-to-one traffic with bbr, some systems' default, reached 0.57 to 0.81 of the optimum; cubic 0.97.
                with contextlib.suppress(OSError):  # checked at the start, by `handshake.check_congestion_control`
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        flusher.add(self)

    def send(self, *buffers: memoryview | bytes, done: Done | None = None, later: bool = False) -> None:
        """Queue the buffers for sending; they must not change before `done` is called.

        A lost peer is for the reading thread to see.  With `later` the Flusher copies them into the kernel, not the
        caller.
        """
        with self._lock:
            if self.closed:
                return
            if not self._backlog:
                try:
                    flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
                    sent = 0 if later else self._sock.sendmsg(buffers, (), flags)
                except BlockingIOError:
                    sent = 0
                except OSError:
                    return
                buffers = _rest(buffers, sent)
                if buffers:
                    self._drained.clear()
                    self._flusher.watch(self)
            if buffers:
                self._backlog.extend(memoryview(buffer) for buffer in buffers)
                if done is not None:
                    self._backlog.append(done)
                return
        if done is not None:
            done()

    def flush(self) -> None:
        """Send what is queued, as far as the kernel takes it.  Called by the Flusher alone.

        The lock is not held while the kernel copies: what is being sent stays at the head of the backlog, so that
        others only append behind it.
        """
        finished: list[Done] = []
        while vectors := self._next_vectors(finished):
            try:
                sent = self._sock.sendmsg(vectors, (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._flusher.watch(self)
                break
            except OSError:
                sent = -1
            with self._lock:
                if self.closed or sent < 0:
                    self._backlog.clear()
                    self._drained.set()
                    break
                rest = _rest(tuple(vectors), sent)
                for _ in vectors:
                    self._backlog.popleft()
                self._backlog.extendleft(memoryview(buffer) for buffer in reversed(rest))
        for done in finished:
            done()

    def _next_vectors(self, finished: list[Done]) -> list[memoryview]:
        """The buffers at the head of the backlog; callbacks before them are done and move to `finished`."""
        vectors: list[memoryview] = []
        with self._lock:
            while self._backlog and not isinstance(done := self._backlog[0], memoryview):
                finished.append(done)
                self._backlog.popleft()
            for item in self._backlog:
                if not isinstance(item, memoryview) or len(vectors) == _MAX_VECTORS:
                    break
                vectors.append(item)
            if not vectors:
                self._drained.set()
        return vectors

    def drain(self, seconds: float) -> bool:
        """Wait until everything sent so far is with the kernel."""
        return self._drained.wait(seconds)

    def receive_exactly(self, view: memoryview) -> None:
        """Fill the view; waits without limit between messages, since silence is for the heartbeat to judge."""
        if len(view) >= _PATIENT_NBYTES and self._tcp:
            self._await(min(len(view), _MAX_PATIENT_NBYTES))
        while view:
            try:
                count = self._sock.recv_into(view, len(view), socket.MSG_WAITALL)
            except BlockingIOError:
                continue
            except OSError as error:
                raise ConnectionLost(str(error)) from None
            if count == len(view):
                return
            if count == 0:
                raise ConnectionLost("connection closed")
            view = view[count:]

    def _await(self, nbytes: int) -> None:
        """Sleep until that much has arrived: MSG_WAITALL alone wakes the thread for every packet that does."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)
            self._arrival.poll(_POLL_SECONDS * 1000)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def send_message(self, message: Message) -> None:
        self.send(encode_message(message))

    def receive_message(self) -> Message:
        """The next control message; ProtocolError if it is none or too long."""
        header = bytearray(LENGTH.size)
        self.receive_exactly(memoryview(header))
        (length,) = LENGTH.unpack(header)
        if length > MAX_CONTROL_NBYTES:
            raise ProtocolError(f"a control message of {length} bytes; at most {MAX_CONTROL_NBYTES} are allowed")
        body = bytearray(length)
        self.receive_exactly(memoryview(body))
        return decode_message(body)

    def limit_unsent(self, nbytes: int) -> None:
        """Let the socket take no more than this beyond what is on the network already; `send` queues the rest."""
        if self._tcp:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, nbytes)

    def finish_sending(self) -> None:
        """Half-close: the peer reads what was sent, then the end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    @property
    def peer_host(self) -> str:
        return str(self._sock.getpeername()[0]) if self._tcp else ""

    @property
    def local_host(self) -> str:
        return str(self._sock.getsockname()[0])

    def abandon(self) -> None:
        """Let go of the socket without shutting it down: it is the parent's, too."""
        self.closed = True
        with contextlib.suppress(OSError):
            os.close(self._sock.detach())

    def close(self) -> None:
        """Also wakes a thread that is reading."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._backlog.clear()
            self._drained.set()
        self._flusher.discard(self)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def _rest(buffers: tuple[memoryview | bytes, ...] | list[memoryview], sent: int) -> tuple[memoryview | bytes, ...]:
    """What remains of the buffers after `sent` bytes."""
    for index, buffer in enumerate(buffers):
        length = len(buffer)
        if sent < length:
            return (memoryview(buffer)[sent:], *buffers[index + 1 :])
        sent -= length
    return ()
