"""One worker's connections to the others of its machine, and its word to whoever owns it.

A thread for each connection hears messages.  An end without a goodbye is a death; what is said against the protocol,
or goes wrong here while it is heard, ends the sums of this machine.  The surroundings are told of both.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from byteps import local_link
from byteps.errors import BytePSError
from byteps.local_link import Kind, Said, Sockets
from byteps.local_memory import SharedMemory, give
from byteps.net import Connection, ConnectionLost, Flusher
from byteps.wire import TensorSpec


class Surroundings(Protocol):
    """What a group needs of the worker around it."""

    def announce(self, spec: TensorSpec) -> None:
        """This worker submits the tensor; raises the job's error if that is over."""

    def send(
        self, spec: TensorSpec, source: memoryview, target: memoryview, priority: int, answered: Callable[[], None]
    ) -> None:
        """Root: the machine's sum to the network; `answered` when the answer is in `target`."""

    def lost(self, local_rank: int) -> None:
        """A worker of this machine left without a word."""

    def violated(self, text: str) -> None:
        """The sums of this machine are over, for that reason."""

    def waiting(self, name: str, seconds: float, ready: tuple[int, ...]) -> None:
        """These workers (local ranks) have contributed; others have not."""

    def relax(self) -> None:
        """Called again and again while the network has sums of this machine."""


class Peers:
    """The root's to all others, or another worker's to the root; by local rank."""

    def __init__(self, rank: int, sockets: Mapping[int, Sockets], around: Surroundings) -> None:
        self._rank = rank
        self._around = around
        self._flusher = Flusher()
        self._sockets = dict(sockets)
        self._connections = {local: Connection(each.messages, self._flusher) for local, each in sockets.items()}
        self._closing = False
        self.departed: set[int] = set()  # who has said goodbye, this worker included; the owner's lock guards it

    def start(self, hear: Callable[[int, Said], None]) -> None:
        """Call `hear` with who said what, in a thread for each."""
        for local, connection in self._connections.items():
            threading.Thread(
                target=self._read, args=(local, connection, hear), name=f"local {local}", daemon=True
            ).start()

    def tell(self, local: int, said: Said) -> None:
        self._connections[local].send(said.encode())

    def tell_all(self, said: Said) -> None:
        """The workers that this one has a connection to."""
        message = said.encode()
        for connection in self._connections.values():
            connection.send(message)

    def leave(self) -> None:
        """Say goodbye."""
        self.tell_all(Said(Kind.LEAVE))

    def give(self, file: int) -> None:
        """Root: the file of an arena, to all."""
        for each in self._sockets.values():
            give(each.files, file)

    def receive(self, memory: SharedMemory, local: int) -> None:
        """Not root: the next arena."""
        memory.receive(self._sockets[local].files)

    def broken(self, error: BaseException) -> None:
        """A mistake of ours, or no memory: the others must not wait for ever."""
        self._around.violated(f"summing the workers of this machine failed: {type(error).__name__}: {error}")

    def close(self) -> None:
        self._closing = True
        for connection in self._connections.values():
            connection.drain(1.0)
            connection.close()
        for each in self._sockets.values():
            each.files.close()

    def finish(self) -> None:
        """Nothing is to be sent any more."""
        self._flusher.abandon()

    def abandon(self) -> None:
        """In a forked child: let go of the sockets."""
        for connection in self._connections.values():
            connection.abandon()
        self._flusher.abandon()

    def _read(self, local: int, connection: Connection, hear: Callable[[int, Said], None]) -> None:
        header = bytearray(local_link.HEADER.size)
        try:
            while True:
                hear(local, local_link.receive(connection, header))
        except ConnectionLost:
            if local not in self.departed and not self._closing:
                self._around.lost(local)
        except BytePSError as error:  # of the protocol, or the job's
            self._around.violated(f"a message of local rank {local} to {self._rank}: {error}")
        except Exception as error:
            self.broken(error)
