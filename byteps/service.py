"""The sums of one process: partitions in, summed on arrival, answered to every worker.

One thread reads each worker's connection straight into a buffer of its own.  The buffer of a slot's first contribution
becomes the accumulator and the thread takes a fresh one from the pool; later contributions are added and their buffers
reused.  Answers are sent from the accumulator itself, which returns to the pool once every send is with the kernel:
nothing is copied, and the next round cannot touch an answer under way.  Encoded contributions are decoded into a sum
that stays, and the answer is an encoding of it (`coding`).
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from byteps import kernels, wire
from byteps.coding import EncodedSum
from byteps.kernels import NUMPY_DTYPES, Array
from byteps.net import Connection
from byteps.store import Copy, WeightStore
from byteps.summation import Action, Push, Slot
from byteps.wire import CODING, DECLINED, ENCODED, HEADER, HEADER_NBYTES, Kind, Message, Op, ProtocolError

_NUM_DTYPES: Final = len(NUMPY_DTYPES)
_NUM_OPS: Final = len(Op)
_ADD: Final = int(Op.ADD)


class BufferPool:
    """Buffers of one partition, reused; `take` and `give` are atomic under the interpreter lock."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._free: deque[Array] = deque()

    def take(self) -> Array:
        try:
            return self._free.pop()
        except IndexError:
            return np.empty(self.nbytes, np.uint8)

    def give(self, buffer: Array) -> None:
        self._free.append(buffer)


class Answer(NamedTuple):
    """The answer for one partition."""

    header: bytes
    payload: memoryview
    declined: bytes  # the header for a worker that declined the payload
    recipients: dict[int, bool] | None  # as Slot.answered

    def frame(self, rank: int) -> tuple[bytes, memoryview | bytes] | None:
        """Header and payload for this worker; None if it has not asked."""
        if self.recipients is None or (wants := self.recipients.get(rank)):
            return self.header, self.payload
        return None if wants is None else (self.declined, b"")


def _join(frames: Sequence[tuple[bytes, memoryview | bytes]]) -> bytes:
    """Small answers as one frame."""
    body = b"".join([header for header, _ in frames] + [payload for _, payload in frames])
    return HEADER.pack(Kind.PULL_BATCH, 0, 0, 0, 0, len(frames), 0, len(body)) + body


def _newest(copy: Copy, kind: int) -> Answer:
    """A copy of weights as an answer to those that it is due to."""
    push = copy.due[0]
    payload = copy.weights.view(np.uint8).data
    header = HEADER.pack(kind, push.dtype, push.op, 0, 0, 0, copy.key, len(payload))
    declined = HEADER.pack(kind, push.dtype, push.op, DECLINED, 0, 0, copy.key, 0)
    return Answer(header, payload, declined, {push.worker: push.wants for push in copy.due})


class Accumulator:
    """A slot with its bytes."""

    __slots__ = ("buffer", "encoded", "lock", "since", "slot", "total")

    def __init__(self, num_workers: int) -> None:
        self.slot = Slot(num_workers)
        self.lock = threading.Lock()  # guards everything here
        self.total: Array | None = None
        self.buffer: Array | None = None  # what `total` lives in, if it is from the pool
        self.encoded: EncodedSum | None = None  # in place of `total`, from the first round on
        self.since = 0.0


class SummationService:
    """The sums of one process.  `report` takes messages for the scheduler."""

    def __init__(self, *, num_workers: int, stall_warn_seconds: float, report: Callable[[Message], None]) -> None:
        self._num_workers = num_workers
        self._stall_warn_seconds = stall_warn_seconds
        self._report = report
        self._slots: dict[int, Accumulator] = {}
        self._pending: dict[int, Accumulator] = {}  # slots with a round under way, by key
        self._pool = BufferPool(0)
        self._largest = 0
        self._departed: set[int] = set()
        self.store = WeightStore(num_workers)
        self.connections: dict[int, Connection] = {}

    def serve(self, worker: int, connection: Connection) -> None:
        """Read one worker's pushes until its connection ends; raises ConnectionLost or ProtocolError."""
        header = bytearray(HEADER_NBYTES)
        header_view = memoryview(header)
        buffer = self._pool.take()
        while True:
            connection.receive_exactly(header_view)
            kind, dtype, op, flags, members, round_, key, nbytes = HEADER.unpack(header)
            if kind == Kind.PUSH:
                self._check(dtype, op, nbytes, wire.MAX_PARTITION_NBYTES, encoded=bool(flags & ENCODED))
                if nbytes > len(buffer):
                    buffer = self._grow(nbytes)
                connection.receive_exactly(buffer[:nbytes].data)
                push = Push(worker, round_, nbytes, dtype, op, members, not flags & DECLINED)
                if flags & ENCODED:
                    push = push._replace(coding=buffer[: CODING.size].tobytes())
                    self._contribute(key, push, buffer[:nbytes], None, None)
                elif self._contribute(key, push, buffer[:nbytes].view(NUMPY_DTYPES[dtype]), buffer, None):
                    buffer = self._pool.take()
            elif kind == Kind.PUSH_BATCH:
                if not 0 < round_ <= wire.MAX_BATCH_COUNT or nbytes > wire.MAX_BATCH_BODY_NBYTES:
                    raise ProtocolError(f"a batch of {round_} entries and {nbytes} bytes")
                body = bytearray(nbytes)
                connection.receive_exactly(memoryview(body))
                self._batch(worker, round_, body)
            else:
                raise ProtocolError(f"a frame of kind {kind}, which no worker sends")

    def _grow(self, nbytes: int) -> Array:
        """A larger partition than any before: pool buffers of that size from now on."""
        if nbytes > self._pool.nbytes:
            self._pool = BufferPool(nbytes)
        buffer = self._pool.take()
        return buffer if len(buffer) >= nbytes else np.empty(nbytes, np.uint8)  # another thread had a smaller one

    def _check(self, dtype: int, op: int, nbytes: int, limit: int, encoded: bool = False) -> None:
        if dtype >= _NUM_DTYPES or op >= _NUM_OPS:
            raise ProtocolError(f"element type {dtype}, operation {op}")
        if encoded:
            if op == _ADD or not CODING.size < nbytes <= limit:
                raise ProtocolError(f"an encoded partition of {nbytes} bytes, operation {op}")
            return
        if nbytes > limit or nbytes % NUMPY_DTYPES[dtype].itemsize:
            raise ProtocolError(f"a partition of {nbytes} bytes of {NUMPY_DTYPES[dtype]}; at most {limit} are allowed")

    def _batch(self, worker: int, count: int, body: bytearray) -> None:
        """Many small partitions in one frame; what they complete is answered in one frame as well."""
        view = memoryview(body)
        table, offset = view[: count * HEADER_NBYTES], count * HEADER_NBYTES
        if len(table) < count * HEADER_NBYTES:
            raise ProtocolError(f"a batch of {count} entries in {len(body)} bytes")
        everything = np.frombuffer(body, np.uint8)
        answers: list[Answer] = []
        for _, dtype, op, flags, members, round_, key, nbytes in HEADER.iter_unpack(table):
            if flags & ENCODED:
                raise ProtocolError(f"an encoded partition of {nbytes} bytes in a batch")
            self._check(dtype, op, nbytes, wire.SMALL_NBYTES)
            if offset + nbytes > len(body):
                raise ProtocolError(f"a batch whose entries exceed its {len(body)} bytes")
            incoming = everything[offset : offset + nbytes].view(NUMPY_DTYPES[dtype])
            push = Push(worker, round_, nbytes, dtype, op, members, not flags & DECLINED)
            self._contribute(key, push, incoming, None, answers)
            offset += nbytes
        if not answers:
            return
        if all(answer.recipients is None for answer in answers):
            frame = _join([(answer.header, answer.payload) for answer in answers])
            for connection in self.connections.values():
                connection.send(frame)
            return
        for rank, connection in self.connections.items():
            if mine := [parts for answer in answers if (parts := answer.frame(rank)) is not None]:
                connection.send(_join(mine))

    def _contribute(
        self,
        key: int,
        push: Push,
        incoming: Array,
        buffer: Array | None,
        answers: list[Answer] | None,
    ) -> bool:
        """Sum one contribution; whether `buffer`, which holds it, was taken over.

        The answer, if it is due, goes into `answers`, or out at once.
        """
        if push.op == _ADD:
            self._change(key, push, incoming, answers)
            return False
        accumulator = self._slots.get(key) or self._slots.setdefault(key, Accumulator(self._num_workers))
        adopted = False
        with accumulator.lock:
            actions = accumulator.slot.handle(push)
            workers = push.members or self._num_workers
            encoded = accumulator.encoded
            if push.coding:
                encoded = accumulator.encoded = encoded or EncodedSum(push)
                encoded.add(incoming, 1.0 / workers if push.op == Op.AVERAGE else 1.0)
            elif Action.ADOPT in actions:
                # A batch's body lives as long as its views; bf16, fp16 and small integers need a wider copy anyway.
                same = push.op == Op.COPY or kernels.ACCUMULATORS[push.dtype] == incoming.dtype
                accumulator.total = incoming if same else kernels.widen(incoming)
                adopted = same and buffer is not None
                accumulator.buffer = buffer if adopted else None
            elif Action.ADD in actions:
                assert accumulator.total is not None
                kernels.accumulate(accumulator.total, incoming)
            if Action.REPLY not in actions:
                if key not in self._pending:
                    accumulator.since = time.monotonic()
                    self._pending[key] = accumulator
                    if self._departed:
                        self._report_waiting(key, accumulator)
                return adopted
            self._pending.pop(key, None)
            total, held = accumulator.total, accumulator.buffer
            accumulator.total = accumulator.buffer = None
            recipients = accumulator.slot.answered
        if encoded is not None:  # nobody contributes to it before the answer is out
            flags, payload = ENCODED, encoded.answer()
        else:
            assert total is not None
            flags, payload = 0, self.finish(key, total, push.op, workers, incoming.dtype).view(np.uint8).data
        kind = Kind.PULL if answers is None else 0
        header = HEADER.pack(kind, push.dtype, push.op, flags, 0, push.round, key, len(payload))
        declined = HEADER.pack(kind, push.dtype, push.op, DECLINED, 0, push.round, key, 0)
        answer = Answer(header, payload, declined, recipients)
        if answers is not None:
            answers.append(answer)
            return adopted
        frames = [(connection, answer.frame(rank)) for rank, connection in self.connections.items()]
        wanting = sum(frame is not None and frame[0] is header for _, frame in frames)
        done = self._returner(held, wanting) if held is not None else None
        for connection, frame in frames:
            if frame is not None:
                connection.send(*frame, done=done if frame[0] is header else None)
        return adopted

    def finish(self, key: int, total: Array, op: int, num_workers: int, dtype: np.dtype[Any]) -> Array:
        """The answer to a complete sum; `experiments.optimisers` makes more of it than `kernels.finish`."""
        return kernels.finish(total, op, num_workers, dtype)

    def _change(self, key: int, push: Push, incoming: Array, answers: list[Answer] | None) -> None:
        """Add one difference to the weights kept here; the answers that are due go into `answers`, or out at once."""
        if (copy := self.store.handle(key, push, incoming)) is None:
            return
        answer = _newest(copy, Kind.PULL if answers is None else 0)
        if answers is not None:
            answers.append(answer)
        else:
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        for rank, connection in self.connections.items():
            if (frame := answer.frame(rank)) is not None:
                connection.send(*frame)

    def _returner(self, buffer: Array, times: int) -> Callable[[], None]:
        """Gives the buffer back after its last send."""
        # list.pop is atomic, so the callbacks of different threads need no lock.
        remaining = [buffer] * times

        def done() -> None:
            last = remaining.pop()
            if not remaining and len(last) == self._pool.nbytes:
                self._pool.give(last)

        return done

    def departed(self, worker: int) -> None:
        """No more contributions from this worker; what waits for one, waits in vain."""
        self._departed.add(worker)
        for copy in self.store.leave(worker):
            self._send(_newest(copy, Kind.PULL))
        for key, accumulator in list(self._pending.items()):
            self._report_waiting(key, accumulator)

    def check_stalls(self) -> None:
        """Report the slot that has waited longest, if that is long; and the same of the weights kept here."""
        waiting = self.store.oldest(time.monotonic())
        if waiting is not None and waiting.seconds >= self._stall_warn_seconds:
            self._report(waiting)
        pending = list(self._pending.items())
        if not pending:
            return
        key, oldest = min(pending, key=lambda item: item[1].since)
        if time.monotonic() - oldest.since >= self._stall_warn_seconds:
            self._report_waiting(key, oldest)

    def _report_waiting(self, key: int, accumulator: Accumulator) -> None:
        seconds = time.monotonic() - accumulator.since
        self._report(wire.Waiting(number=key >> 32, seconds=seconds, ready=tuple(accumulator.slot.arrived)))
