"""How workers of a machine find each other, and memory that goes from one to the other."""

import os
import secrets
import socket
import threading
import time

import pytest

from byteps import local_link
from byteps.errors import StartError
from byteps.local_link import HEADER, MAX_BODY_NBYTES, Kind, Said
from byteps.local_memory import SharedMemory, give
from byteps.net import Connection, ConnectionLost, Flusher
from byteps.wire import ProtocolError


def names(local: int) -> str:
    return f"worker {local}"


def meet(
    local_size: int, joining: dict[int, bytes], seconds: float = 5.0
) -> tuple[dict[int, object], list[StartError]]:
    """A root with secret "right", and those that join it with theirs: what the root has, what the others are told."""
    where = local_link.address(secrets.token_hex(8), b"right", 0)
    deadline = time.monotonic() + seconds
    mine, told = [], []

    def join(local: int, secret: bytes) -> None:
        try:
            mine.extend(local_link.join_root(where, secret, local, deadline, names(0)))
        except StartError as error:
            told.append(error)

    threads = [threading.Thread(target=join, args=each) for each in joining.items()]
    for thread in threads:
        thread.start()
    try:
        found = local_link.meet_as_root(where, b"right", local_size, deadline, names)
    finally:
        for thread in threads:
            thread.join(10)
        for sock in mine:
            sock.close()
    for pair in found.values():
        for sock in pair:
            sock.close()
    return dict(found), told


def test_everybody_finds_the_root_whoever_is_first() -> None:
    found, told = meet(4, {3: b"right", 1: b"right", 2: b"right"})
    assert set(found) == {1, 2, 3}
    assert not told


def test_a_stranger_is_not_let_in_and_who_is_missing_is_named() -> None:
    with pytest.raises(StartError, match="worker 2 has not connected to worker 0 on the same machine in time"):
        meet(3, {1: b"right", 2: b"wrong"}, seconds=1.0)


def test_two_jobs_machines_and_secrets_do_not_meet() -> None:
    places = {local_link.address(job, secret, machine) for job in "ab" for secret in (b"", b"s") for machine in (0, 1)}
    assert len(places) == 8
    assert all(place.startswith("\0") and len(place) < 108 for place in places)  # abstract, and as long as sun_path


@pytest.fixture
def ends():
    """A connection, and the socket at its other end."""
    ours, theirs = socket.socketpair()
    flusher = Flusher()
    connection = Connection(ours, flusher)
    with theirs:
        yield connection, theirs
    connection.close()
    flusher.abandon()


def test_messages_are_what_was_said(ends) -> None:
    connection, theirs = ends
    for said in (
        Said(Kind.LEAVE),
        Said(Kind.ADD, flags=3, tensor=(1 << 32) - 1, bits=(1 << 64) - 1, priority=-(1 << 63)),
        Said(Kind.OPEN, body=b"x" * 1000),
    ):
        theirs.sendall(said.encode())
        assert local_link.receive(connection, bytearray(HEADER.size)) == said


def test_a_body_that_nobody_sends_is_refused_before_there_is_room_for_it(ends) -> None:
    connection, theirs = ends
    theirs.sendall(HEADER.pack(Kind.OPEN, 0, 0, 0, 0, MAX_BODY_NBYTES + 1))
    with pytest.raises(ProtocolError, match=f"at most {MAX_BODY_NBYTES} are allowed"):
        local_link.receive(connection, bytearray(HEADER.size))


def test_an_end_in_the_middle_of_a_message_is_a_lost_connection(ends) -> None:
    connection, theirs = ends
    theirs.sendall(Said(Kind.OPEN, body=b"long").encode()[:-1])
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionLost):
        local_link.receive(connection, bytearray(HEADER.size))


def test_memory_is_the_same_on_both_sides_and_its_files_are_as_many_as_arenas() -> None:
    files = set(os.listdir("/proc/self/fd"))
    root, other = SharedMemory(), SharedMemory()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pieces = []
        for nbytes in (100, 1 << 20, 100 << 20, 7):  # the third takes an arena of its own
            piece, file = root.take(nbytes, 64)
            if file is not None:
                give(ours, file)
                os.close(file)
                other.receive(theirs)
            pieces.append(piece)
            assert piece.offset % 64 == 0
        assert other.count == root.count
        for number, piece in enumerate(pieces):
            assert not any(root.view(piece)[:100])
            root.view(piece)[:] = bytes([number + 1]) * piece.nbytes
        for number, piece in enumerate(pieces):  # after all are written: none lies on another
            assert other.view(piece)[0] == other.view(piece)[-1] == number + 1
    assert len(set(os.listdir("/proc/self/fd")) - files) <= 2 * root.count
    del root, other
    assert set(os.listdir("/proc/self/fd")) == files


def test_a_message_without_a_file_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"m")
        with pytest.raises(ConnectionError, match="no file of shared memory came"):
            SharedMemory().receive(theirs)
