"""One order of pieces for all ranks: rank 0 decides which piece is next and tells the others, as ByteScheduler's master
does for all-reduce.

Left alone, ranks choose differently, since what is ready when a piece comes back differs by a moment.  Contenders that
match calls by their order would then add up different pieces.  With those that match by name, pieces that only some
ranks have handed over fill their credit, and soon all wait for each other: every rank holds back what another needs.

A decision is four bytes over a TCP connection from rank 0 to each other rank, beside the gradients on the same NIC.
Standard library only.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

MEET_SECONDS = 120.0
_PIECE = struct.Struct("!I")


class Leader:
    """Rank 0's end; waits until all others are connected."""

    def __init__(self, address: str, port: int, num_followers: int) -> None:
        self._followers: list[socket.socket] = []
        if not num_followers:
            return
        with socket.create_server((address, port), backlog=num_followers) as listener:
            listener.settimeout(MEET_SECONDS)
            for _ in range(num_followers):
                follower, _ = listener.accept()
                follower.settimeout(None)
                follower.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._followers.append(follower)

    def announce(self, piece: int) -> None:
        for follower in self._followers:
            follower.sendall(_PIECE.pack(piece))

    def close(self) -> None:
        for follower in self._followers:
            follower.close()


class Follower:
    """The others' end."""

    def __init__(self, address: str, port: int) -> None:
        self._leader = _connect(address, port)

    def decisions(self) -> Iterator[list[int]]:
        """Pieces in their order, as many at a time as have come; ends when the connection is closed at either end."""
        pending = b""
        while received := self._leader.recv(65536):
            pending += received
            whole = len(pending) // _PIECE.size * _PIECE.size
            yield [piece for (piece,) in _PIECE.iter_unpack(pending[:whole])]
            pending = pending[whole:]

    def close(self) -> None:
        with contextlib.suppress(OSError):  # rank 0 may have closed it
            self._leader.shutdown(socket.SHUT_RDWR)  # wakes who waits for decisions
        self._leader.close()


def _connect(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + MEET_SECONDS
    while True:
        try:
            leader = socket.create_connection((address, port), timeout=MEET_SECONDS)
        except OSError as error:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"rank 0 does not listen at {address}:{port}: {error}") from error
            time.sleep(0.05)  # it may not be there yet
        else:
            leader.settimeout(None)
            return leader


def meet(address: str, port: int, *, rank: int, size: int) -> Leader | Follower:
    return Follower(address, port) if rank else Leader(address, port, size - 1)
