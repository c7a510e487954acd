"""Sockets: addresses, authenticated connections, and sending without waiting.

Threads block in `receive_exactly` (one per connection, MSG_WAITALL: one system call per partition), and whoever has
something to send hands it to the kernel at once; only what does not fit into the socket buffer is left to the one
`Flusher` thread of the process.  So no thread ever waits for a slow peer while holding something that another peer
needs, and the data path has no copies and no hand-overs between threads.
"""

import contextlib
import hashlib
import hmac
import secrets
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from byteps.errors import StartError
from byteps.wire import (
    LENGTH,
    MAX_CONTROL_NBYTES,
    PROTOCOL_VERSION,
    Message,
    ProtocolError,
    decode_message,
    encode_message,
)

HANDSHAKE_SECONDS: Final = 5.0
_GREETING: Final = struct.Struct("<4sH16s")
_MAGIC: Final = b"BPSr"
_POLL_SECONDS: Final = 1.0
_TCP_NOTSENT_LOWAT: Final = 25  # Linux; not in Python's socket module before 3.12
# Buffers per sendmsg; Linux allows 1024.
_MAX_VECTORS: Final = 64
Done = Callable[[], None]


class ConnectionLost(ConnectionError):
    """The peer's end is gone."""


class NotAuthenticated(ConnectionError):
    """The peer does not know the job secret, or is not one of ours."""


def format_address(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str) -> tuple[str, int]:
    """ "10.0.0.1:9000" or "[::1]:9000"."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"address {text!r} is not HOST:PORT, such as 10.0.0.1:9000 or [::1]:9000")
    return host.strip("[]"), int(port)


def resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Family and numeric address; StartError names a host that does not resolve."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise StartError(f"host {host!r} does not resolve ({error}); use an IP address or fix /etc/hosts") from None
    return family, (str(address[0]), port)


def is_loopback(host: str) -> bool:
    return host.startswith("127.") or host in ("::1", "localhost")


def listen(host: str, port: int) -> socket.socket:
    """Listen on exactly this address; port 0 lets the kernel choose.  StartError names the address and the remedy."""
    family, address = resolve(host, port)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(1024)
    except OSError as error:
        sock.close()
        where = format_address(address)
        remedy = (
            "another program listens there; choose another port or end it"
            if error.errno == 98
            else "use an address of this machine (see `ip addr`)"
        )
        raise StartError(f"cannot listen on {where}: {error.strerror}; {remedy}") from None
    return sock


def connect(
    host: str, port: int, secret: bytes, deadline: float, *, what: str, progress: Done | None = None
) -> socket.socket:
    """An authenticated connection to `what`, retried until the deadline (time.monotonic)."""
    family, address = resolve(host, port)
    while True:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(max(min(HANDSHAKE_SECONDS, deadline - time.monotonic()), 0.1))
        try:
            sock.connect(address)
            _prove_as_client(sock, secret)
            return sock
        except NotAuthenticated as error:
            sock.close()
            raise StartError(f"{what} at {format_address(address)} is not one to talk to: {error}") from None
        except OSError as error:
            sock.close()
            if time.monotonic() >= deadline:
                reason = error.strerror or str(error) or type(error).__name__
                raise StartError(
                    f"cannot reach {what} at {format_address(address)}: {reason}; "
                    "is it running, and does a firewall let this port through?"
                ) from None
        if progress is not None:
            progress()
        time.sleep(0.1)  # the peer may not be listening yet


def _read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionLost("closed during the handshake")
        data += piece
    return data


def _proof(secret: bytes, side: bytes, *nonces: bytes) -> bytes:
    return hmac.digest(secret, side + b"".join(nonces), hashlib.sha256)


def _prove_as_client(sock: socket.socket, secret: bytes) -> None:
    """HMAC challenge in both directions, so that neither side talks to a stranger."""
    magic, version, theirs = _GREETING.unpack(_read(sock, _GREETING.size))
    if magic != _MAGIC or version != PROTOCOL_VERSION:
        raise NotAuthenticated(f"the peer does not speak protocol {PROTOCOL_VERSION} of this package")
    mine = secrets.token_bytes(16)
    sock.sendall(_GREETING.pack(_MAGIC, PROTOCOL_VERSION, mine) + _proof(secret, b"client", theirs, mine))
    if _read(sock, 1) != b"+":
        raise NotAuthenticated("refused: this process has another job secret than its peer (BYTEPS_JOB_SECRET)")
    if not hmac.compare_digest(_read(sock, 32), _proof(secret, b"server", mine, theirs)):
        raise NotAuthenticated("the peer does not know the job secret (BYTEPS_JOB_SECRET)")


def prove_as_server(sock: socket.socket, secret: bytes) -> None:
    """The accepting side of the handshake; NotAuthenticated if the peer is a stranger, OSError if it goes silent."""
    sock.settimeout(HANDSHAKE_SECONDS)
    mine = secrets.token_bytes(16)
    sock.sendall(_GREETING.pack(_MAGIC, PROTOCOL_VERSION, mine))
    magic, version, theirs = _GREETING.unpack(_read(sock, _GREETING.size))
    if magic != _MAGIC or version != PROTOCOL_VERSION:
        raise NotAuthenticated("it does not speak this protocol")
    if not hmac.compare_digest(_read(sock, 32), _proof(secret, b"client", mine, theirs)):
        with contextlib.suppress(OSError):
            sock.sendall(b"-")
        raise NotAuthenticated("it has another job secret")
    sock.sendall(b"+" + _proof(secret, b"server", theirs, mine))


class Acceptor:
    """Accepts authenticated connections in the background; strangers are logged and cost nobody else anything."""

    def __init__(
        self,
        sock: socket.socket,
        secret: bytes,
        serve: Callable[[socket.socket, str], None],
        log: Callable[[str], None],
    ) -> None:
        self._sock = sock
        self._secret = secret
        self._serve = serve
        self._log = log
        self._gate = threading.BoundedSemaphore(
            64
        )  # handshakes at a time: a flood of strangers must not exhaust threads
        threading.Thread(target=self._run, name="accept", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                sock, peer = self._sock.accept()
            except OSError:
                return  # closed
            self._gate.acquire(timeout=HANDSHAKE_SECONDS)
            threading.Thread(
                target=self._admit, args=(sock, format_address(peer[:2])), name="admit", daemon=True
            ).start()

    def _admit(self, sock: socket.socket, peer: str) -> None:
        try:
            prove_as_server(sock, self._secret)
        except (OSError, struct.error) as error:
            sock.close()
            self._log(f"closed the connection from {peer}: {error or type(error).__name__}")
            return
        finally:
            with contextlib.suppress(ValueError):
                self._gate.release()
        self._serve(sock, peer)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


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
        sock.settimeout(None)
        # A kernel time-out instead of Python's: MSG_WAITALL needs a blocking socket.
        seconds = struct.pack("@ll", int(_POLL_SECONDS), 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if congestion_control:
                # Many-to-one traffic with bbr, some systems' default, reached 0.57 to 0.81 of the optimum; cubic 0.97.
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        flusher.add(self)

    def send(self, *buffers: memoryview | bytes, done: Done | None = None) -> None:
        """Queue the buffers for sending; they must not change before `done` is called.

        A lost peer is for the reading thread to see.
        """
        with self._lock:
            if self.closed:
                return
            if not self._backlog:
                try:
                    sent = self._sock.sendmsg(buffers, (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
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
        """Send what is queued, as far as the kernel takes it.  Called by the Flusher."""
        finished: list[Done] = []
        with self._lock:
            while self._backlog and not self.closed:
                head = self._backlog[0]
                if not isinstance(head, memoryview):
                    finished.append(head)
                    self._backlog.popleft()
                    continue
                vectors: list[memoryview] = []
                for item in self._backlog:
                    if not isinstance(item, memoryview) or len(vectors) == _MAX_VECTORS:
                        break
                    vectors.append(item)
                try:
                    sent = self._sock.sendmsg(vectors, (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    self._flusher.watch(self)
                    break
                except OSError:
                    self._backlog.clear()
                    break
                rest = _rest(tuple(vectors), sent)
                for _ in vectors:
                    self._backlog.popleft()
                self._backlog.extendleft(memoryview(buffer) for buffer in reversed(rest))
            if not self._backlog:
                self._drained.set()
        for done in finished:
            done()

    def drain(self, seconds: float) -> bool:
        """Wait until everything sent so far is with the kernel."""
        return self._drained.wait(seconds)

    def receive_exactly(self, view: memoryview) -> None:
        """Fill the view; waits without limit between messages, since silence is for the heartbeat to judge."""
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
        if self._sock.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, nbytes)

    def finish_sending(self) -> None:
        """Half-close: the peer reads what was sent, then the end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    @property
    def peer_host(self) -> str:
        return str(self._sock.getpeername()[0]) if self._sock.family != socket.AF_UNIX else ""

    @property
    def local_host(self) -> str:
        return str(self._sock.getsockname()[0])

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
