"""Runs any schedule over sockets: one process per node, each with its part (`byteps.schedule_part`).

A node listens on each of its NICs, connects to its neighbours (the lower number connects), and reads every connection
with a thread of its own.  A frame is a header (synchronisation, step, destination, type, bytes) and the chunk's bytes;
frames leave without waiting (`byteps.net`), in the schedule's order on every connection, and are relayed whole where
the wiring has no direct one (`baselines.wiring`).  A message is received into a buffer from a pool and added to, or
copied into, the place of its chunk; sums of fp16 are made in fp32 and rounded at every node.  Synchronisations are
numbered alike everywhere, and any number may be under way.

A worker's places are the tensor itself.  Nodes without a contribution (servers) learn sizes from what arrives: they run
as `python -m baselines.executor` and end when the workers among their peers have left.  A peer that is lost, and a wait
that takes too long, are an `ExecutorError` that names the node and what was missing.
"""

import argparse
import json
import os
import socket
import struct
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from baselines.session import Array
from baselines.wiring import Address, wire
from byteps.handshake import Acceptor, connect, listen
from byteps.kernels import ACCUMULATORS, NUMPY_DTYPES, accumulate, finish, widen
from byteps.net import Connection, ConnectionLost, Flusher
from byteps.schedule import Schedule, boundaries
from byteps.schedule_part import Combine, Instruction, Part, PartPlan, Transmit, plan_parts
from byteps.schedules.catalogue import build
from byteps.wire import Op

CONNECT_SECONDS = 60.0
LEAVE_SECONDS = 5.0  # for what is under way when the workers have left
_HEADER = struct.Struct("<IIIBQ")  # synchronisation, step, the node that it is for, number of the type, bytes
_HELLO = struct.Struct("<I")  # the node that connects


class ExecutorError(RuntimeError):
    """A synchronisation that cannot complete; the text names what was missing."""


@dataclass(kw_only=True, eq=False)
class _Running:
    """A synchronisation under way at this node."""

    part: Part
    array: Array | None = None  # a worker's tensor, in place
    ends: Sequence[int] = ()  # boundaries of chunks in it
    places: dict[int, Array] = field(default_factory=dict)  # of a node without a tensor, by chunk
    messages: dict[int, Array] = field(default_factory=dict)  # arrived and not combined, by step

    def place(self, chunk: int) -> Array | None:
        if self.array is not None:
            return self.array[self.ends[chunk] : self.ends[chunk + 1]]
        return self.places.get(chunk)


class Endpoint:
    """One node.  `submit` and `wait` are for one thread; everything else happens on the readers' threads."""

    def __init__(
        self,
        schedule: Schedule,
        node: int,
        addresses: Sequence[Sequence[Address]],
        secret: bytes,
        flusher: Flusher,
        *,
        network: str = "star",
        congestion_control: str = "cubic",
    ) -> None:
        self._schedule = schedule
        self._plan: PartPlan = plan_parts(schedule)[node]
        self._node = node
        self._wiring = wire(schedule, network)[node]
        self._flusher = flusher
        self._control = congestion_control
        self._condition = threading.Condition()  # guards everything below
        self._running: dict[int, _Running] = {}
        self._peers: dict[int, Connection] = {}
        self._gone: set[int] = set()
        self._lost = ""
        self._closing = False
        self._pool: dict[int, deque[Array]] = defaultdict(deque)  # buffers by size in bytes
        self._join(addresses, secret)

    def submit(self, number: int, array: Array) -> None:
        """Begin a synchronisation of a flat array, which is the result, too, once it is waited for."""
        with self._condition:
            running = self._of(number)
            running.array = array
            running.ends = boundaries(self._schedule.shares, array.size).tolist()
        self._do(number, running, running.part.start)

    def wait(self, number: int, *, seconds: float) -> None:
        """Until the sum is in the array and nothing leaves from it any more."""
        deadline = time.monotonic() + seconds
        with self._condition:
            running = self._running[number]
            while not running.part.finished:
                if self._lost:
                    raise ExecutorError(f"node {self._node}: {self._lost}; it waits for {running.part.waiting_for()}")
                if not self._condition.wait(max(deadline - time.monotonic(), 0.0)):
                    missing = running.part.waiting_for()
                    raise ExecutorError(f"node {self._node}: waited {seconds:.0f} s for {missing}")
            del self._running[number]

    def serve(self) -> None:
        """What a node without a contribution does: nothing of its own, until the workers among its peers have left, or
        all of them where there are none, and what is under way for others has ended.  (Nodes like it wait alike.)"""
        peers = set(self._wiring.neighbours)
        leaving = {peer for peer in peers if peer < self._schedule.num_workers} or peers

        def unfinished() -> list[_Running]:
            return [one for one in self._running.values() if not one.part.finished]

        with self._condition:
            self._condition.wait_for(lambda: leaving <= self._gone)
            self._condition.wait_for(lambda: peers <= self._gone or not unfinished(), LEAVE_SECONDS)
            left = unfinished()
        if left:
            missing = left[0].part.waiting_for()
            raise ExecutorError(f"node {self._node}: {self._lost or 'its peers left'}; it waits for {missing}")

    def close(self) -> None:
        with self._condition:
            self._closing = True
        for connection in self._peers.values():
            connection.drain(5.0)
            connection.close()
        for acceptor in self._acceptors:
            acceptor.close()

    def _join(self, addresses: Sequence[Sequence[Address]], secret: bytes) -> None:
        """`addresses`: where each node listens, by node and NIC."""
        deadline = time.monotonic() + CONNECT_SECONDS
        own = addresses[self._node][: self._wiring.nics]
        self._acceptors = [Acceptor(listen(*address), secret, self._greet, self._log) for address in own]
        for peer in self._wiring.calls:
            where = addresses[peer][self._wiring.neighbours[peer]]
            sock = connect(*where, secret, deadline, what=f"node {peer}")
            sock.sendall(_HELLO.pack(self._node))
            self._add(peer, Connection(sock, self._flusher, congestion_control=self._control))
        expected = set(self._wiring.neighbours)
        with self._condition:
            there = self._condition.wait_for(
                lambda: set(self._peers) == expected, max(deadline - time.monotonic(), 0.0)
            )
        if not there:
            missing = ", ".join(map(str, sorted(expected - set(self._peers))))
            raise ExecutorError(f"node {self._node}: waited {CONNECT_SECONDS:.0f} s for node {missing} to connect")
        # not before: what arrives from one peer may have to go on to another
        for peer, connection in self._peers.items():
            threading.Thread(target=self._read, args=(peer, connection), name=f"from node {peer}", daemon=True).start()

    def _log(self, text: str) -> None:
        print(f"node {self._node}: {text}", file=sys.stderr, flush=True)

    def _greet(self, sock: socket.socket, _peer: str) -> None:
        connection = Connection(sock, self._flusher, congestion_control=self._control)
        hello = bytearray(_HELLO.size)
        connection.receive_exactly(memoryview(hello))
        self._add(_HELLO.unpack(hello)[0], connection)

    def _add(self, peer: int, connection: Connection) -> None:
        with self._condition:
            self._peers[peer] = connection
            self._condition.notify_all()

    def _read(self, peer: int, connection: Connection) -> None:
        header = memoryview(bytearray(_HEADER.size))
        why = ""
        try:
            while True:
                connection.receive_exactly(header)
                number, step, dst, dtype, nbytes = _HEADER.unpack(header)
                message = self._borrow(nbytes)
                connection.receive_exactly(message.data)
                if dst != self._node:
                    self._relay(bytes(header), message, dst)
                    continue
                message = message.view(NUMPY_DTYPES[dtype])
                with self._condition:
                    running = self._of(number)
                    running.messages[step] = message
                self._do(number, running, partial(running.part.arrived, step))
        except (ConnectionLost, ValueError) as error:
            why = f"lost node {peer}: {error}"
        with self._condition:
            self._gone.add(peer)
            if not self._closing:
                self._lost = self._lost or why
            self._condition.notify_all()

    def _of(self, number: int) -> _Running:
        """The synchronisation of this number; what arrives first begins it.  The lock is held."""
        if number not in self._running:
            self._running[number] = _Running(part=Part(plan=self._plan))
            if self._node >= self._schedule.num_workers:
                self._running[number].part.start()  # everything of it waits for arrivals
        return self._running[number]

    def _do(self, number: int, running: _Running, event: Callable[[], list[Instruction]]) -> None:
        """Tell the part what happened, and carry out what it says, until nothing follows."""
        with self._condition:
            instructions = deque(event())
        while instructions:
            one = instructions.popleft()
            if isinstance(one, Transmit):
                self._transmit(number, running, one)
            else:
                self._combine(running, one)
                with self._condition:
                    instructions.extend(running.part.done(one.step))
        with self._condition:
            if running.part.finished:
                if running.array is None:
                    self._running.pop(number, None)
                    for place in running.places.values():
                        self._give_back(place)
                    running.places = {}
                self._condition.notify_all()

    def _transmit(self, number: int, running: _Running, one: Transmit) -> None:
        place = running.place(one.chunk)
        assert place is not None
        header = _HEADER.pack(number, one.step, one.dst, NUMPY_DTYPES.index(place.dtype), place.nbytes)
        buffers = (header, place.view(np.uint8).data) if place.nbytes else (header,)

        left = partial(self._do, number, running, partial(running.part.done, one.step))
        self._peers[self._wiring.next_node[one.dst]].send(*buffers, done=left)

    def _relay(self, header: bytes, message: Array, dst: int) -> None:
        """On to the next node, whole messages at a time."""

        def left() -> None:
            with self._condition:
                self._give_back(message)

        buffers = (header, message.data) if message.nbytes else (header,)
        self._peers[self._wiring.next_node[dst]].send(*buffers, done=left)

    def _combine(self, running: _Running, one: Combine) -> None:
        with self._condition:
            messages = [running.messages.pop(step) for step in one.messages]
        place = running.place(one.chunk)
        if place is None:
            place = running.places[one.chunk] = messages.pop(0)
        elif not one.keep:
            np.copyto(place, messages[0])
        if one.keep:
            _add(place, messages)
        with self._condition:
            for message in messages:
                self._give_back(message)

    def _borrow(self, nbytes: int) -> Array:
        with self._condition:
            if self._pool[nbytes]:
                return self._pool[nbytes].popleft()
        return np.empty(nbytes, dtype=np.uint8)

    def _give_back(self, buffer: Array) -> None:
        """The lock is held."""
        self._pool[buffer.nbytes].append(buffer.view(np.uint8))


def _add(place: Array, messages: Sequence[Array]) -> None:
    """place += all messages, with one rounding."""
    total = place if place.dtype in ACCUMULATORS else widen(place)
    for message in messages:
        accumulate(total, message)
    if total is not place:
        np.copyto(place, finish(total, Op.SUM, 1, place.dtype))


def main(argv: Sequence[str]) -> int:
    """A node without a contribution."""
    parser = argparse.ArgumentParser(prog="python -m baselines.executor", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--settings", required=True, help="JSON: scheme, network, n, k, node, addresses, secret in hexadecimal"
    )
    settings = json.loads(parser.parse_args(argv).settings)
    try:
        start(settings, int(settings["node"])).serve()
    except (ExecutorError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def start(settings: dict[str, str], node: int) -> Endpoint:
    """The endpoint of a node, from the settings that the contender's plan wrote."""
    schedule = build(settings["scheme"], int(settings["n"]), int(settings["k"]))
    addresses = [[(host, int(port)) for host, port in nics] for nics in json.loads(settings["addresses"])]
    return Endpoint(
        schedule,
        node,
        addresses,
        bytes.fromhex(settings["secret"]),
        Flusher(),
        network=settings["network"],
        congestion_control=os.environ.get("BYTEPS_CONGESTION_CONTROL", "cubic"),  # the stage's
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
