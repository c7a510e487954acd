"""Shared memory of one machine's workers: the root makes it, the others map it.

Memory of `memfd_create` has no name anywhere, not in /dev/shm either: it is gone with the last process that has it,
however that ended.  Its file goes from the root to the others over a Unix socket (SCM_RIGHTS).  Pieces of tensors are
cut from large arenas and live as long as the job: an arena takes a file descriptor (of Python's mmap), a tensor none.
A page takes memory when it is first written.
"""

import mmap
import os
import socket
from typing import Final, NamedTuple

_ARENA_NBYTES: Final = 64 << 20


class Piece(NamedTuple):
    """A tensor's place."""

    arena: int
    offset: int
    nbytes: int


class SharedMemory:
    """The arenas that this process has mapped.  Calls are serialised by the caller."""

    def __init__(self) -> None:
        self._arenas: list[memoryview] = []
        self._used = 0  # of the last one

    def take(self, nbytes: int, alignment: int) -> tuple[Piece, int | None]:
        """Root: a piece of zeros; and the file of a new arena, if there is one: to be given to the others and closed.

        OSError if there is no memory.
        """
        file = None
        start = -(-self._used // alignment) * alignment
        if not self._arenas or start + nbytes > len(self._arenas[-1]):
            size = max(_ARENA_NBYTES, nbytes)
            file = os.memfd_create("byteps", os.MFD_CLOEXEC)
            os.ftruncate(file, size)
            self._arenas.append(memoryview(mmap.mmap(file, size)))
            start = 0
        self._used = start + nbytes
        return Piece(len(self._arenas) - 1, start, nbytes), file

    def receive(self, sock: socket.socket) -> None:
        """Not root: map the next arena, whose file comes over this socket."""
        _, files, _, _ = socket.recv_fds(sock, 1, 1)
        if not files:
            raise ConnectionError("no file of shared memory came")
        try:
            self._arenas.append(memoryview(mmap.mmap(files[0], os.fstat(files[0]).st_size)))
        finally:
            os.close(files[0])

    @property
    def count(self) -> int:
        return len(self._arenas)

    def view(self, piece: Piece) -> memoryview:
        return self._arenas[piece.arena][piece.offset : piece.offset + piece.nbytes]


def give(sock: socket.socket, file: int) -> None:
    """Root: send an arena's file; the other's copy of it is its own."""
    socket.send_fds(sock, [b"m"], [file])
