"""How the workers of a machine find each other, and what they tell each other.

The root listens on an abstract Unix socket, which belongs to the network namespace, so that neither other hosts nor
containers with a network of their own reach it, and which leaves nothing in the file system.  Its name is a digest of
the job's random number, its secret and the machine's number: two jobs on a host do not meet, nor two machines of one
job.  Who connects proves that it knows the job secret.  Every worker has two sockets to the root: one for messages, one
for the files of shared memory.

A message is a header, little endian, and for some a body:

    kind u8 | flags u8 | tensor u32 | bits u64 | priority i64 | nbytes u32

Pure but for `meet_as_root` and `join_root`.
"""

import contextlib
import enum
import hashlib
import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from byteps.errors import StartError
from byteps.handshake import HANDSHAKE_SECONDS, NotAuthenticated, prove_as_client, prove_as_server
from byteps.net import Connection
from byteps.wire import ProtocolError, TensorSpec

HEADER: Final = struct.Struct("<BBIQqI")
MAX_BODY_NBYTES: Final = 1 << 20
GIVES: Final = 1  # flags of CONTRIBUTE
WANTS: Final = 2
_HELLO: Final = struct.Struct("<IB")
_STEP_SECONDS: Final = 1.0


class Kind(enum.IntEnum):
    """What a message says."""

    OPEN = 1  # to the root: where is this tensor (`Opening`)?
    MAP = 2  # from the root: there (`Place`)
    CONTRIBUTE = 3  # to the root: my slot is filled, or I have nothing to give (flags)
    ADD = 4  # from the root: add up your part of the slots in `bits`
    ADDED = 5  # to the root: done
    RESULT = 6  # from the root: the result is there
    WORD = 7  # from the root: something for whoever listens (body)
    LEAVE = 8  # both: I leave the job in order


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """Body of OPEN."""

    spec: TensorSpec
    slots: int  # 0: one per worker


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Body of MAP: the tensor's number, and its piece of shared memory."""

    name: str
    arena: int
    offset: int
    nbytes: int


class Said(NamedTuple):
    """A message."""

    kind: int
    flags: int = 0
    tensor: int = 0
    bits: int = 0
    priority: int = 0
    body: bytes | bytearray = b""

    def encode(self) -> bytes:
        kind, flags, tensor, bits, priority, body = self
        return HEADER.pack(kind, flags, tensor, bits, priority, len(body)) + body


def receive(connection: Connection, header: bytearray) -> Said:
    """The next message; ConnectionLost, or ProtocolError.  `header` is room for one."""
    connection.receive_exactly(memoryview(header))
    kind, flags, tensor, bits, priority, nbytes = HEADER.unpack(header)
    if nbytes > MAX_BODY_NBYTES:
        raise ProtocolError(f"a message of {nbytes} bytes; at most {MAX_BODY_NBYTES} are allowed")
    body = bytearray(nbytes)
    if nbytes:
        connection.receive_exactly(memoryview(body))
    return Said(kind, flags, tensor, bits, priority, body)


class Sockets(NamedTuple):
    """One worker's to the root, or the root's to one worker."""

    messages: socket.socket
    files: socket.socket


def address(job: str, secret: bytes, machine: int) -> str:
    """Of the root's socket, in the abstract namespace."""
    digest = hashlib.sha256(b"%b\0%b\0%d" % (job.encode(), secret, machine)).hexdigest()
    return f"\0byteps-{digest[:40]}"


def meet_as_root(
    where: str, secret: bytes, local_size: int, deadline: float, name: Callable[[int], str]
) -> dict[int, Sockets]:
    """The sockets to the other workers of this machine, by local rank; StartError names who has not come."""
    found: dict[tuple[int, int], socket.socket] = {}
    wanted = {(local, number) for local in range(1, local_size) for number in (0, 1)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(where)
        except OSError as error:
            raise StartError(
                f"{name(0)} cannot listen for the other workers of its machine: {error.strerror}"
            ) from None
        listener.listen(1024)
        listener.settimeout(_STEP_SECONDS)
        while set(found) != wanted:
            if time.monotonic() >= deadline:
                missing = ", ".join(name(local) for local in sorted({local for local, _ in wanted - set(found)}))
                _close(found.values())
                raise StartError(
                    f"{missing} has not connected to {name(0)} on the same machine in time; the workers of a machine "
                    "need one network namespace (container), and BYTEPS_LOCAL_SIZE is their number"
                )
            with contextlib.suppress(TimeoutError, OSError, struct.error):
                sock, _ = listener.accept()
                key = _admit(sock, secret)
                if key in wanted and key not in found:
                    found[key] = sock
                else:
                    sock.close()
    return {local: Sockets(found[local, 0], found[local, 1]) for local in range(1, local_size)}


def _admit(sock: socket.socket, secret: bytes) -> tuple[int, int]:
    """Which socket of which worker this is; OSError for strangers."""
    try:
        prove_as_server(sock, secret)
        local, number = _HELLO.unpack(sock.recv(_HELLO.size, socket.MSG_WAITALL))
    except (OSError, struct.error):
        sock.close()
        raise
    sock.settimeout(None)
    return local, number


def join_root(where: str, secret: bytes, local_rank: int, deadline: float, root: str) -> Sockets:
    """The sockets to the root; StartError if it cannot be reached in time."""
    sockets: list[socket.socket] = []
    for number in (0, 1):
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(HANDSHAKE_SECONDS)
            try:
                sock.connect(where)
                prove_as_client(sock, secret)
                sock.sendall(_HELLO.pack(local_rank, number))
                break
            except OSError as error:
                sock.close()
                if isinstance(error, NotAuthenticated) or time.monotonic() >= deadline:
                    _close(sockets)
                    raise StartError(
                        f"cannot reach {root} on the same machine: {error}; the workers of a machine need one network "
                        "namespace (container), and BYTEPS_LOCAL_SIZE is their number"
                    ) from None
                time.sleep(0.05)  # it may not be listening yet
        sock.settimeout(None)
        sockets.append(sock)
    return Sockets(*sockets)


def _close(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
