"""What workers and the switch that sums say to each other: datagrams of integers, and a connection beside them.

A datagram is a header (job, worker, exponent, step, tensor) and the integers of one block; it may be longer than a
frame, IP then sends it in several.  The connection (TCP, with the handshake of `byteps.handshake`) is for joining, for
heartbeats, for goodbyes, and for the one sentence that says what went wrong.
"""

import contextlib
import hashlib
import random
import socket
import struct
from typing import Final, Literal

HEADER: Final = struct.Struct("<IHhII")  # job, worker, exponent, step, what; a multiple of 4, so integers lie aligned
JOIN_SECONDS: Final = 60.0
BEAT_SECONDS: Final = 1.0
SILENCE_SECONDS: Final = 15.0  # without a heartbeat, with processes that compete for two cores
BUFFER_NBYTES: Final = 4 << 20  # of a socket: what is under way at once, with the kernel's own overhead

Kind = Literal[b"J", b"G", b"B", b"E", b"F"]  # join, go, beat, end, failure
_FRAME = struct.Struct("<cH")
_RECEIVE_BUFFER_FORCE, _SEND_BUFFER_FORCE = 33, 32  # SO_RCVBUFFORCE, SO_SNDBUFFORCE: beyond the limit, for root


def job_tag(secret: bytes) -> int:
    """Datagrams without it are not of this job."""
    return int.from_bytes(hashlib.sha256(secret).digest()[:4], "little")


def datagram_socket(address: str, port: int = 0) -> socket.socket:
    """Bound, without waiting, with room for what is under way."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    for option, forced in (
        (socket.SO_RCVBUF, _RECEIVE_BUFFER_FORCE),
        (socket.SO_SNDBUF, _SEND_BUFFER_FORCE),
    ):
        sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_NBYTES)
        with contextlib.suppress(PermissionError):
            sock.setsockopt(socket.SOL_SOCKET, forced, BUFFER_NBYTES)
    try:
        sock.bind((address, port))
    except OSError:
        sock.close()
        raise
    return sock


class Loss:
    """Which datagrams that arrive are taken for lost: each with the same probability, the same ones in every run."""

    def __init__(self, probability: float, seed: int, node: int) -> None:
        self._probability = probability
        self._random = random.Random(f"{seed} {node}")

    def strikes(self) -> bool:
        return self._probability > 0 and self._random.random() < self._probability


class Talk:
    """One end of the connection.  Its few bytes always fit into the kernel's buffers."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._pending = b""

    def fileno(self) -> int:
        return self._sock.fileno()

    def say(self, kind: Kind, text: str = "") -> None:
        """A lost peer is for the reading side to see."""
        body = text.encode()[:65535]
        with contextlib.suppress(OSError):
            self._sock.sendall(_FRAME.pack(kind, len(body)) + body)

    def hear(self) -> list[tuple[bytes, str]]:
        """What has come, kind and text; ConnectionError once the peer is gone."""
        with contextlib.suppress(BlockingIOError):
            data = self._sock.recv(65536)
            self._pending += data
            if not data:
                raise ConnectionResetError("connection closed")
        found = []
        while len(self._pending) >= _FRAME.size:
            kind, length = _FRAME.unpack_from(self._pending)
            end = _FRAME.size + length
            if len(self._pending) < end:
                break
            found.append((kind, self._pending[_FRAME.size : end].decode()))
            self._pending = self._pending[end:]
        return found

    def close(self) -> None:
        self._sock.close()
