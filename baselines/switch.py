"""The process that plays a switch that sums: datagrams in, sums out to everybody (`byteps.aggregation`).

It stands for what a programmable switch does at line rate.  Python adds up some ten thousand packets per second and
core, so it is one only where NICs are slow: 25 to 50 Mbit/s.  In the lab it runs in the bridge's own namespace: results
leave through the ports of the workers, each at the rate of that worker's NIC, and no NIC of its own is in the way.

All workers join over a connection each; a worker that is lost or silent, leaves while others wait for it, or sums
something else than the others ends the job everywhere with one sentence.
Run as `python -m baselines.switch --settings JSON`; ends when all workers have said goodbye.
"""

import argparse
import contextlib
import json
import queue
import select
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from baselines.switch_wire import (
    BEAT_SECONDS,
    HEADER,
    JOIN_SECONDS,
    SILENCE_SECONDS,
    Loss,
    Talk,
    datagram_socket,
    job_tag,
)
from byteps.aggregation import AggregationError, Answer, Packet, Switch
from byteps.handshake import Acceptor, listen

_AT_ONCE = 256  # datagrams before connections are looked at
_PROGRESS_SECONDS = 5.0


class SwitchError(RuntimeError):
    """The job is over; the text says why and is the same everywhere."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What switch and workers must agree about."""

    workers: int
    pool: int
    block: int  # elements

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "Shape":
        return cls(workers=int(settings["n"]), pool=int(settings["pool"]), block=int(settings["block"]))


@dataclass(kw_only=True)
class _Member:
    talk: Talk
    address: tuple[str, int]  # where its results go
    heard: float  # when
    left: bool = False


class Service:
    """The switch, from the first worker that joins to the last that leaves.  One thread, besides the accepting one."""

    def __init__(self, shape: Shape, address: str, port: int, secret: bytes, *, loss: float, seed: int) -> None:
        self._shape = shape
        self._switch = Switch(workers=shape.workers, pool=shape.pool, block=shape.block)
        self._loss = Loss(loss, seed, node=0)
        self._tag = job_tag(secret)
        self._members: dict[int, _Member] = {}
        self._joining: queue.Queue[tuple[Talk, str, str]] = queue.Queue()  # connection, host, what it said
        self._buffer = bytearray(HEADER.size + 4 * shape.block + 1)  # a byte more: what is longer is not of ours
        self._integers = np.frombuffer(self._buffer, dtype=np.int32, offset=HEADER.size, count=shape.block)
        self._answer = bytearray(HEADER.size + 4 * shape.block)
        self._selector = selectors.DefaultSelector()
        self._udp = datagram_socket(address, port)
        try:
            self._acceptor = Acceptor(listen(address, port), secret, self._greet, _log)
        except BaseException:
            self._udp.close()
            raise

    def run(self, *, join_seconds: float = JOIN_SECONDS) -> None:
        """SwitchError, said to all workers, too, unless all leave with everything done."""
        try:
            self._gather(join_seconds)
            self._serve()
        except (AggregationError, SwitchError) as error:
            for member in self._members.values():
                member.talk.say(b"F", str(error))
            raise SwitchError(str(error)) from None
        finally:
            self._acceptor.close()
            self._selector.close()
            self._udp.close()
            talks = [member.talk for member in self._members.values()]
            while not self._joining.empty():
                talks.append(self._joining.get_nowait()[0])
            for talk in talks:
                talk.close()

    def _greet(self, sock: socket.socket, peer: str) -> None:
        """On a thread of the acceptor."""
        talk, deadline = Talk(sock), time.monotonic() + _PROGRESS_SECONDS
        said: list[tuple[bytes, str]] = []
        with contextlib.suppress(OSError):
            while not said and select.select([sock], [], [], max(deadline - time.monotonic(), 0.0))[0]:
                said = talk.hear()
        if not said:
            talk.close()
            return
        self._joining.put((talk, peer.rpartition(":")[0], said[0][1]))

    def _gather(self, seconds: float) -> None:
        """All workers, or who is missing."""
        began = time.monotonic()
        next_line = began + _PROGRESS_SECONDS
        while len(self._members) < self._shape.workers:
            now = time.monotonic()
            missing = ", ".join(str(one) for one in range(self._shape.workers) if one not in self._members)
            if now - began >= seconds:
                raise SwitchError(f"the switch waited {seconds:.0f} s for workers {missing} to join")
            if now >= next_line:
                _log(f"waits for workers {missing}, {now - began:.0f} s of {seconds:.0f} s")
                next_line = now + _PROGRESS_SECONDS
            with contextlib.suppress(queue.Empty):
                self._admit(*self._joining.get(timeout=0.1))
        self._acceptor.close()
        self._selector.register(self._udp, selectors.EVENT_READ)
        for rank, member in self._members.items():
            member.heard = time.monotonic()
            self._selector.register(member.talk, selectors.EVENT_READ, rank)
            member.talk.say(b"G")

    def _admit(self, talk: Talk, host: str, text: str) -> None:
        said = json.loads(text)
        rank, theirs = int(said["rank"]), Shape.of(said)
        if theirs != self._shape or rank in self._members or not 0 <= rank < self._shape.workers:
            talk.say(b"F", f"the switch expects {self._shape}, worker {rank} is one of {theirs}, or is here twice")
            talk.close()
            raise SwitchError(f"worker {rank} joins with {theirs}, the switch has {self._shape}; or it is here twice")
        self._members[rank] = _Member(talk=talk, address=(host, int(said["port"])), heard=time.monotonic())

    def _serve(self) -> None:
        next_beat = time.monotonic()
        while not all(member.left for member in self._members.values()):
            for key, _ in self._selector.select(max(next_beat - time.monotonic(), 0.0)):
                if key.data is None:
                    self._datagrams()
                else:
                    self._hear(key.data)
            if time.monotonic() >= next_beat:
                self._beat()
                next_beat = time.monotonic() + BEAT_SECONDS

    def _hear(self, rank: int) -> None:
        member = self._members[rank]
        member.heard = time.monotonic()
        try:
            said = member.talk.hear()
        except OSError as error:
            raise SwitchError(f"lost worker {rank}: {error}") from None
        if any(kind == b"E" for kind, _ in said):
            member.left = True
            self._selector.unregister(member.talk)

    def _beat(self) -> None:
        now = time.monotonic()
        there = {rank: member for rank, member in self._members.items() if not member.left}
        for member in there.values():
            member.talk.say(b"B")
        for rank, member in there.items():
            if now - member.heard > SILENCE_SECONDS:
                raise SwitchError(f"lost worker {rank}: it has been silent for {SILENCE_SECONDS:.0f} s")
        if awaited := [rank for rank in self._switch.waiting_for() if rank not in there]:
            raise SwitchError(f"worker {awaited[0]} has left while others wait for it")

    def _datagrams(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                nbytes, address = self._udp.recvfrom_into(self._buffer)
            except OSError:  # nothing more
                return
            answer = self._take(nbytes, address)
            if answer is not None:
                self._send(answer)

    def _take(self, nbytes: int, address: tuple[str, int]) -> Answer | None:
        if not HEADER.size <= nbytes < len(self._buffer) or (nbytes - HEADER.size) % 4 or self._loss.strikes():
            return None
        tag, worker, ahead, step, what = HEADER.unpack_from(self._buffer)
        if tag != self._tag or worker not in self._members or self._members[worker].address != address:
            return None
        integers = self._integers[: (nbytes - HEADER.size) // 4]
        return self._switch.receive(worker, Packet(step=step, what=what, ahead=ahead, integers=integers))

    def _send(self, answer: Answer) -> None:
        """What finds no room is lost, as on a switch; the workers ask again."""
        packet = answer.packet
        end = HEADER.size + packet.integers.nbytes
        HEADER.pack_into(self._answer, 0, self._tag, 0, packet.ahead, packet.step, packet.what)
        self._answer[HEADER.size : end] = packet.integers.data.cast("B")
        view = memoryview(self._answer)[:end]
        for worker in answer.to:
            with contextlib.suppress(OSError):
                self._udp.sendto(view, self._members[worker].address)


def _log(text: str) -> None:
    print(f"switch: {text}", file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m baselines.switch", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--settings", required=True, help="JSON: n, pool, block, switch (address), port, secret, loss, seed"
    )
    settings = json.loads(parser.parse_args(argv).settings)
    try:
        Service(
            Shape.of(settings),
            settings["switch"],
            int(settings["port"]),
            bytes.fromhex(settings["secret"]),
            loss=float(settings["loss"]),
            seed=int(settings["seed"]),
        ).run()
    except (SwitchError, OSError, RuntimeError) as error:
        _log(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
