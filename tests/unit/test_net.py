"""Sockets on loopback: handshakes, frames, and senders that never wait."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from byteps import handshake
from byteps.errors import StartError
from byteps.handshake import Acceptor, connect, format_address, listen, parse_address
from byteps.net import Connection, ConnectionLost, Flusher
from byteps.wire import LENGTH, Failed, Heartbeat, ProtocolError, encode_message

SECRET = b"secret"


@pytest.fixture(scope="module")
def flusher() -> Flusher:
    return Flusher()


@pytest.fixture
def pair(flusher: Flusher) -> Iterator[tuple[Connection, Connection]]:
    server = listen("127.0.0.1", 0)
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    server.close()
    ends = Connection(client, flusher), Connection(accepted, flusher)
    yield ends
    for end in ends:
        end.close()


class Door:
    """An acceptor and what came in."""

    def __init__(self, secret: bytes = SECRET) -> None:
        self.socket = listen("127.0.0.1", 0)
        self.address = self.socket.getsockname()
        self.admitted: list[socket.socket] = []
        self.log: list[str] = []
        self.acceptor = Acceptor(self.socket, secret, lambda sock, _: self.admitted.append(sock), self.log.append)

    def wait(self, condition) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)

    def close(self) -> None:
        self.acceptor.close()
        for sock in self.admitted:
            sock.close()


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    with contextlib.closing(door):
        yield door


def test_addresses_are_read_as_they_are_written():
    for address in (("10.0.0.1", 9000), ("::1", 1), ("node-7", 65535)):
        assert parse_address(format_address(address)) == address
    for text in ("10.0.0.1", ":9000", "host:", "host:0", "host:70000", "host:http"):
        with pytest.raises(ValueError, match=r"is not HOST:PORT, such as 10\.0\.0\.1:9000"):
            parse_address(text)


def test_whoever_knows_the_secret_gets_in(door):
    with connect(*door.address, SECRET, time.monotonic() + 10, what="the door") as sock:
        door.wait(lambda: door.admitted)
        sock.sendall(b"hello")
        assert door.admitted[0].recv(5) == b"hello"
    assert door.log == []


def test_whoever_does_not_is_told_and_the_door_stays_open(door):
    with pytest.raises(StartError, match=r"the door at 127\.0\.0\.1:\d+ .* another job secret .*BYTEPS_JOB_SECRET"):
        connect(*door.address, b"wrong", time.monotonic() + 10, what="the door")
    door.wait(lambda: door.log)
    assert "it has another job secret" in door.log[0]
    connect(*door.address, SECRET, time.monotonic() + 10, what="the door").close()
    assert len(door.admitted) <= 1


def test_a_server_that_does_not_know_the_secret_is_not_believed():
    """It lets everybody in, but cannot prove itself."""
    server = listen("127.0.0.1", 0)

    def impostor() -> None:
        sock, _ = server.accept()
        sock.sendall(handshake._GREETING.pack(handshake._MAGIC, handshake.PROTOCOL_VERSION, bytes(16)))
        sock.recv(1000)
        sock.sendall(b"+" + bytes(32))
        sock.close()

    thread = threading.Thread(target=impostor)
    thread.start()
    with pytest.raises(StartError, match="the peer does not know the job secret"):
        connect(*server.getsockname(), SECRET, time.monotonic() + 10, what="the door")
    thread.join()
    server.close()


def test_a_proof_cannot_be_replayed_or_reflected(door):
    """The server's own challenge, sent back to it by somebody without the secret, proves nothing."""
    first, second = (socket.create_connection(door.address, timeout=10) for _ in range(2))
    with first, second:
        challenge = handshake._GREETING.unpack(first.recv(handshake._GREETING.size))[2]
        second.recv(handshake._GREETING.size)
        proof = handshake._proof(SECRET, b"client", challenge, bytes(16))
        second.sendall(handshake._GREETING.pack(handshake._MAGIC, handshake.PROTOCOL_VERSION, bytes(16)) + proof)
        assert second.recv(1) == b"-"


@pytest.mark.parametrize("garbage", [b"", b"BPS", b"GET / HTTP/1.1\r\n\r\n" * 5, bytes(200)])
def test_garbage_at_the_door_is_closed_and_logged(door, garbage):
    with socket.create_connection(door.address, timeout=10) as sock:
        sock.sendall(garbage)
        with contextlib.suppress(OSError):  # closed already
            sock.shutdown(socket.SHUT_WR)
        door.wait(lambda: door.log)
    assert door.log[0].startswith("closed the connection from 127.0.0.1:")
    connect(*door.address, SECRET, time.monotonic() + 10, what="the door").close()


def test_another_protocol_version_is_not_talked_to(door):
    with socket.create_connection(door.address, timeout=10) as sock:
        sock.recv(handshake._GREETING.size)
        sock.sendall(handshake._GREETING.pack(handshake._MAGIC, handshake.PROTOCOL_VERSION + 1, bytes(16)) + bytes(32))
        door.wait(lambda: door.log)
    assert "it does not speak this protocol" in door.log[0]


def test_nobody_there_is_named_with_address_and_advice():
    server = listen("127.0.0.1", 0)
    address = server.getsockname()
    server.close()
    calls = []
    with pytest.raises(
        StartError, match=r"cannot reach the door at 127\.0\.0\.1:\d+: Connection refused; is it running"
    ):
        connect(*address, SECRET, time.monotonic() + 0.5, what="the door", progress=lambda: calls.append(1))
    assert calls


def test_a_port_in_use_and_a_foreign_address_are_named():
    taken = listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with pytest.raises(
        StartError, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use; another program"
    ):
        listen("127.0.0.1", port)
    taken.close()
    with pytest.raises(StartError, match=r"cannot listen on 203\.0\.113\.9:0: .*; use an address of this machine"):
        listen("203.0.113.9", 0)
    with pytest.raises(StartError, match=r"host 'no-such-host\.invalid' does not resolve"):
        listen("no-such-host.invalid", 0)


def test_a_sender_never_waits_for_a_slow_reader(pair):
    """64 MiB go at once, although nobody reads; the bytes are right and in order when somebody does."""
    ours, theirs = pair
    blocks = [bytes([number]) * (1 << 20) for number in range(64)]
    done: list[int] = []
    started = time.monotonic()
    for number, block in enumerate(blocks):
        ours.send(memoryview(block)[:10], memoryview(block)[10:], done=lambda number=number: done.append(number))
    assert time.monotonic() - started < 5
    assert len(done) < 64
    assert not ours.drain(0.05)
    received = bytearray(1 << 20)
    for block in blocks:
        theirs.receive_exactly(memoryview(received))
        assert received == block
    assert ours.drain(10)
    assert done == list(range(64))


def test_many_small_buffers_arrive_in_order(pair):
    ours, theirs = pair
    for start in range(0, 60_000, 100):
        ours.send(*[struct.pack("<I", number) for number in range(start, start + 100)])
    received = bytearray(4 * 60_000)
    theirs.receive_exactly(memoryview(received))
    assert list(struct.unpack("<60000I", received)) == list(range(60_000))


def test_messages_are_typed_and_bounded(pair):
    ours, theirs = pair
    ours.send_message(Heartbeat())
    ours.send_message(Failed(kind="start", text="x" * 100_000))
    assert theirs.receive_message() == Heartbeat()
    assert theirs.receive_message() == Failed(kind="start", text="x" * 100_000)
    ours.send(LENGTH.pack(1 << 31))
    with pytest.raises(ProtocolError, match="a control message of 2147483648 bytes; at most"):
        theirs.receive_message()


def test_a_frame_that_ends_in_the_middle_is_a_lost_connection(pair):
    ours, theirs = pair
    ours.send(encode_message(Failed(kind="start", text="x" * 100))[:50])
    ours.finish_sending()
    with pytest.raises(ConnectionLost):
        theirs.receive_message()


def test_closing_wakes_the_reader_and_sending_afterwards_is_harmless(pair):
    ours, theirs = pair
    woken = threading.Event()

    def read() -> None:
        with contextlib.suppress(ConnectionLost):
            ours.receive_exactly(memoryview(bytearray(10)))
        woken.set()

    thread = threading.Thread(target=read)
    thread.start()
    ours.close()
    assert woken.wait(10)
    thread.join()
    ours.send(b"nobody")
    theirs.send(b"nobody", done=lambda: None)
    with pytest.raises(ConnectionLost):
        theirs.receive_exactly(memoryview(bytearray(1)))


def test_a_large_message_that_trickles_in_is_received_whole_and_the_small_one_behind_it_at_once(pair):
    """Waiting for a whole partition must neither miss its end nor make a short message wait for more bytes."""
    sender, receiver = pair
    large, small = bytes(range(256)) * 512, b"short"

    def trickle() -> None:
        for start in range(0, len(large), 8192):
            sender.send(large[start : start + 8192])
            time.sleep(0.002)
        sender.send(small)

    thread = threading.Thread(target=trickle)
    thread.start()
    started = time.monotonic()
    buffer = bytearray(len(large))
    receiver.receive_exactly(memoryview(buffer))
    assert buffer == large
    buffer = bytearray(len(small))
    receiver.receive_exactly(memoryview(buffer))
    assert buffer == small
    thread.join()
    assert time.monotonic() - started < 0.9  # less than one poll: nothing waited in vain
