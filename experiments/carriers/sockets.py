"""Bare stream sockets, TCP and Unix: `sendmsg` and `recv_into`, blocking, as `byteps.net` uses them.

The kernel copies the payload in and out; nothing else does.
"""

import contextlib
import socket
import time

from experiments.carriers import SILENT_SECONDS, START_SECONDS, Place

CONGESTION_CONTROL = "cubic"
_UNIX_BUFFER_NBYTES = 4 << 20  # as `byteps.net` has it


def connect(address: str | tuple[str, int]) -> socket.socket:
    """To a receiver that may not be listening yet; a name is that of a Unix socket without a file."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.connect("\0" + address if isinstance(address, str) else address)
            return _tuned(sock)
        except OSError as error:
            sock.close()
            if time.monotonic() >= deadline:
                raise TimeoutError(f"no receiver at {address} for {START_SECONDS:.0f} s: {error}") from error
            time.sleep(0.02)


def accept(address: str | tuple[str, int]) -> socket.socket:
    """The one sender's connection."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind("\0" + address if isinstance(address, str) else address)
        listener.listen(1)
        listener.settimeout(START_SECONDS)
        try:
            sock, _ = listener.accept()
        except TimeoutError:
            raise TimeoutError(f"no sender came to {address} for {START_SECONDS:.0f} s") from None
    return _tuned(sock)


def _tuned(sock: socket.socket) -> socket.socket:
    """Blocking, since MSG_WAITALL needs that; the kernel watches for silence (which ends in an OSError)."""
    sock.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, int(SILENT_SECONDS).to_bytes(8, "little") + bytes(8))
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_BUFFER_NBYTES)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # not every kernel has it
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL.encode())
    return sock


def send_all(sock: socket.socket, view: memoryview) -> None:
    while view:
        view = view[sock.sendmsg((view,)) :]


def fill(sock: socket.socket, view: memoryview) -> None:
    """ConnectionError if the peer ends first."""
    while view:
        count = sock.recv_into(view, len(view), socket.MSG_WAITALL)
        if count == 0:
            raise ConnectionError(f"the sender ended with {len(view)} bytes to come")
        view = view[count:]


class Sender:
    """Message after message over one connection."""

    def __init__(self, place: Place, *, unix: bool = False) -> None:
        self._messages = place.messages
        self._sock = connect(place.name if unix else (place.address, place.port))

    def send(self, tensor: memoryview) -> None:
        for start, end in self._messages:
            send_all(self._sock, tensor[start:end])

    def close(self) -> None:
        self._sock.close()


class Receiver:
    """Straight into the tensor."""

    def __init__(self, place: Place, *, unix: bool = False) -> None:
        self._messages = place.messages
        self._sock = accept(place.name if unix else (place.address, place.port))

    def receive(self, tensor: memoryview) -> None:
        for start, end in self._messages:
            fill(self._sock, tensor[start:end])

    def close(self) -> None:
        self._sock.close()
