"""A worker's end of a switch that sums: tensors as blocks of integers, a window of datagrams, and time-outs.

`submit` and `wait` are for one thread; results come in, and what is late goes out again, on a thread of its own.  A
tensor is summed in place, in the order of submission, which is the same on all workers.  Whatever ends the job is a
`SwitchError` in `wait` and `submit` that names who was lost.
"""

import contextlib
import json
import selectors
import sys
import threading
import time

import numpy as np

from baselines.session import Array
from baselines.switch import Shape, SwitchError
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
from byteps import aggregation
from byteps.aggregation import Send, Window
from byteps.handshake import connect

_TICK_SECONDS = 0.05  # at least so often it looks for what is late
_AT_ONCE = 64  # datagrams before that


class Endpoint:
    """One worker."""

    def __init__(
        self,
        shape: Shape,
        rank: int,
        switch: tuple[str, int],
        secret: bytes,
        *,
        timeout_seconds: float,
        loss: float = 0.0,
        seed: int = 0,
        join_seconds: float = JOIN_SECONDS,
    ) -> None:
        self._shape = shape
        self._rank = rank
        self._bits = aggregation.bits(shape.workers)
        self._loss = Loss(loss, seed, node=rank + 1)
        self._tag = job_tag(secret)
        self._packet = bytearray(HEADER.size + 4 * shape.block)
        self._integers = np.frombuffer(self._packet, dtype=np.int32, offset=HEADER.size)
        self._result = bytearray(HEADER.size + 4 * shape.block + 1)
        self._sums = np.frombuffer(self._result, dtype=np.int32, offset=HEADER.size, count=shape.block)
        self._changed = threading.Condition()  # guards all that follows, `_packet`, and sending
        self._window = Window(pool=shape.pool, timeout_seconds=timeout_seconds)
        self._tensors: dict[int, tuple[int, Array]] = {}  # by transfer, until it is finished: what, and where
        self._lost = ""
        self._closing = False
        self.sent = self.again = 0  # datagrams, and those of them that were late
        self._join(switch, secret, join_seconds)

    def submit(self, what: int, array: Array) -> int:
        """Begin to sum a flat array, in place; returns the transfer's number.  `what` is the same on all workers."""
        with self._changed:
            self._raise_lost()
            now = time.monotonic()
            number, sends = self._window.submit(-(-array.size // self._shape.block), now)
            if array.size:
                self._tensors[number] = what, array
            for one in sends:
                self._send(one)
        return number

    def wait(self, number: int, *, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with self._changed:
            while number in self._tensors:
                self._raise_lost()
                if not self._changed.wait(max(deadline - time.monotonic(), 0.0)):
                    size = self._tensors[number][1].size
                    raise SwitchError(
                        f"worker {self._rank}: waited {seconds:.0f} s for the sum of {size} elements; "
                        "another worker has not handed it over, or the network loses everything"
                    )

    def close(self) -> None:
        with self._changed:
            self._closing = True
        if self._thread.is_alive():
            self._thread.join()
        self._talk.say(b"E")
        self._talk.close()
        self._udp.close()

    def _raise_lost(self) -> None:
        if self._lost:
            raise SwitchError(self._lost)

    def _join(self, switch: tuple[str, int], secret: bytes, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        sock = connect(*switch, secret, deadline, what="the switch")
        self._talk = Talk(sock)
        self._udp = datagram_socket(sock.getsockname()[0])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._talk, selectors.EVENT_READ)
        try:
            self._udp.connect(switch)
            shape = {"n": self._shape.workers, "pool": self._shape.pool, "block": self._shape.block}
            self._talk.say(b"J", json.dumps({"rank": self._rank, "port": self._udp.getsockname()[1], **shape}))
            said: list[tuple[bytes, str]] = []
            while not said:
                if not self._selector.select(max(deadline - time.monotonic(), 0.0)):
                    raise SwitchError(f"worker {self._rank}: waited {seconds:.0f} s until all workers had joined")
                said = self._talk.hear()
            self._obey(said)
            self._raise_lost()
        except BaseException as error:
            self._selector.close()
            self._udp.close()
            self._talk.close()
            if isinstance(error, OSError):
                raise SwitchError(f"lost the switch: {error}") from None
            raise
        self._selector.register(self._udp, selectors.EVENT_READ)
        self._heard = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="from the switch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._selector:
                self._receive()
        except (OSError, ValueError) as error:
            self._end(f"lost the switch: {error}")

    def _receive(self) -> None:
        next_beat = time.monotonic()
        while not self._closing and not self._lost:
            due = min(self._window.next_late(), next_beat, time.monotonic() + _TICK_SECONDS)
            for key, _ in self._selector.select(max(due - time.monotonic(), 0.0)):
                if key.fileobj is self._udp:
                    self._datagrams()
                else:
                    self._heard = time.monotonic()
                    self._obey(self._talk.hear())
            now = time.monotonic()
            with self._changed:
                for one in self._window.late(now):
                    self.again += 1
                    self._send(one)
            if now >= next_beat:
                self._talk.say(b"B")
                next_beat = now + BEAT_SECONDS
                if now - self._heard > SILENCE_SECONDS:
                    self._end(f"lost the switch: it has been silent for {SILENCE_SECONDS:.0f} s")

    def _obey(self, said: list[tuple[bytes, str]]) -> None:
        for kind, text in said:
            if kind == b"F":
                self._end(text)

    def _end(self, why: str) -> None:
        with self._changed:
            self._lost = self._lost or why
            self._changed.notify_all()

    def _datagrams(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                nbytes = self._udp.recv_into(self._result)
            except OSError:  # nothing more, or the switch is gone, which the connection tells
                return
            if not HEADER.size <= nbytes < len(self._result) or self._loss.strikes():
                continue
            tag, _, ahead, step, _ = HEADER.unpack_from(self._result)
            if tag == self._tag:
                with self._changed:
                    self._take(step, ahead, self._sums[: (nbytes - HEADER.size) // 4])

    def _take(self, step: int, ahead: int, sums: Array) -> None:
        arrived = self._window.arrived(step, ahead, time.monotonic())
        if arrived is None:
            return
        if arrived.block >= 0:
            aggregation.decode(sums, arrived.agreed, self._bits, self._part(arrived.transfer, arrived.block))
        for one in arrived.sends:
            self._send(one)
        if arrived.finished:
            del self._tensors[arrived.transfer]
            self._changed.notify_all()

    def _send(self, one: Send) -> None:
        """Its data are as they were handed over until its result is in, so that it can be sent again."""
        ahead, end = aggregation.NO_EXPONENT, HEADER.size
        if one.ahead >= 0:
            ahead = aggregation.exponent(self._part(one.transfer, one.ahead))
        if one.block >= 0:
            part = self._part(one.transfer, one.block)
            aggregation.encode(part, one.agreed, self._bits, self._integers[: part.size])
            end += 4 * part.size
        what = self._tensors[one.transfer][0]
        HEADER.pack_into(self._packet, 0, self._tag, self._rank, ahead, one.step, what)
        self.sent += 1
        with contextlib.suppress(OSError):  # no room: it will be late
            self._udp.send(memoryview(self._packet)[:end])

    def _part(self, transfer: int, block: int) -> Array:
        array = self._tensors[transfer][1]
        return array[block * self._shape.block : (block + 1) * self._shape.block]

    def log(self) -> None:
        print(f"worker {self._rank}: {self.sent} datagrams, {self.again} of them again", file=sys.stderr, flush=True)
