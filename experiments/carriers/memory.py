"""Shared memory: through slots that both ends map, or straight into a tensor that lies in it.

A byte over a Unix socket is the doorbell: the sender rings for a message that is complete, the receiver for a slot that
is free.  In slots the payload is copied twice, in and out, as by RDMA with staging buffers; into the tensor once, by
the sender, as by an RDMA WRITE.
"""

import contextlib
import mmap
import os
import socket

from experiments.carriers import Place
from experiments.carriers.sockets import accept, connect

SLOTS_NBYTES = 16 << 20  # four slots of 4 MiB: enough that neither end waits for the other's scheduling
_BELL = b"!"


def num_slots(place: Place) -> int:
    """At least two, so that both ends have one; at most 64."""
    return max(2, min(64, SLOTS_NBYTES // place.message_nbytes))


def _mapped(descriptor: int) -> mmap.mmap:
    """All of it; the descriptor is not needed any more."""
    try:
        return mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _hear(bell: socket.socket, count: int) -> int:
    """At least one ring, at most `count`."""
    rings = len(bell.recv(count))
    if rings == 0:
        raise ConnectionError("the other end of the shared memory ended")
    return rings


class Sender:
    """The receiver makes the memory and hands over its descriptor: it has no name that could be left behind."""

    def __init__(self, place: Place, *, in_place: bool = False) -> None:
        self._messages = place.messages
        self._bell = connect(place.name)
        _, descriptors, _, _ = socket.recv_fds(self._bell, 1, 1)
        if not descriptors:
            raise ConnectionError("the receiver ended before it had made the shared memory")
        self._memory = _mapped(descriptors[0])
        self._view = memoryview(self._memory)
        self._slots = 0 if in_place else num_slots(place)
        self._message_nbytes = place.message_nbytes

    def send(self, tensor: memoryview) -> None:
        buffer = self._view
        free = self._slots
        for index, (start, end) in enumerate(self._messages):
            where = start
            if self._slots:
                while free == 0:
                    free += _hear(self._bell, self._slots)
                where = index % self._slots * self._message_nbytes
                free -= 1
            buffer[where : where + end - start] = tensor[start:end]
            self._bell.sendall(_BELL)
        while self._slots and free < self._slots:  # so that the next tensor starts with all of them
            free += _hear(self._bell, self._slots)

    def close(self) -> None:
        self._bell.close()
        self._view.release()
        self._memory.close()


class Receiver:
    """`in_place`: the tensor is the memory's own, `tensor`."""

    def __init__(self, place: Place, *, in_place: bool = False) -> None:
        self._messages = place.messages
        self._slots = 0 if in_place else num_slots(place)
        self._message_nbytes = place.message_nbytes
        size = place.nbytes if in_place else self._slots * place.message_nbytes
        descriptor = os.memfd_create(place.name)
        os.ftruncate(descriptor, size)
        self._bell = accept(place.name)
        socket.send_fds(self._bell, [_BELL], [descriptor])
        self._memory = _mapped(descriptor)
        self._view = memoryview(self._memory)

    @property
    def tensor(self) -> memoryview | None:
        """Where the tensor has to be; None: anywhere."""
        return None if self._slots else self._view

    def receive(self, tensor: memoryview) -> None:
        buffer = self._view
        rung = 0
        for index, (start, end) in enumerate(self._messages):
            while rung == 0:
                rung += _hear(self._bell, 64)
            rung -= 1
            if self._slots:
                where = index % self._slots * self._message_nbytes
                tensor[start:end] = buffer[where : where + end - start]
                self._bell.sendall(_BELL)

    def close(self) -> None:
        self._bell.close()
        with contextlib.suppress(BufferError):  # the tensor is still out; the process ends anyway
            self._view.release()
            self._memory.close()
