"""Coming together: addresses, listening, connecting, and the handshake that keeps strangers out.

Both ends prove by HMAC over fresh nonces that they know the job secret, before anything else is read from them.
"""

import contextlib
import hashlib
import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from byteps.errors import StartError
from byteps.net import ConnectionLost
from byteps.wire import PROTOCOL_VERSION

HANDSHAKE_SECONDS: Final = 5.0
_GREETING: Final = struct.Struct("<4sH16s")
_MAGIC: Final = b"BPSr"


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
    host: str, port: int, secret: bytes, deadline: float, *, what: str, progress: Callable[[], None] | None = None
) -> socket.socket:
    """An authenticated connection to `what`, retried until the deadline (time.monotonic)."""
    family, address = resolve(host, port)
    while True:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(max(min(HANDSHAKE_SECONDS, deadline - time.monotonic()), 0.1))
        try:
            sock.connect(address)
            prove_as_client(sock, secret)
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


def prove_as_client(sock: socket.socket, secret: bytes) -> None:
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


def check_congestion_control(name: str) -> str:
    """StartError if this kernel does not have it; a line for the user if only root may choose it here."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except PermissionError:
            default = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
            return (
                f"this user may not choose the congestion control {name} (BYTEPS_CONGESTION_CONTROL); {default} it is. "
                f"Root allows it with: sysctl net.ipv4.tcp_allowed_congestion_control"
            )
        except OSError:
            known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
            listed = known.read_text().strip() if known.exists() else "unknown"
            raise StartError(
                f"BYTEPS_CONGESTION_CONTROL={name!r} is not known to this kernel; it has: {listed}"
            ) from None
    return ""


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
