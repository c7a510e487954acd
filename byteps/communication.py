"""The worker's communication service: partitions out, in the pipeline's order, and answers straight into the results.

One thread per summation service reads its answers; whoever makes room in the credit, by an answer or by submitting,
sends the next partitions at once, so no partition passes between threads on its way out.  Only where tensors have a
codec, one thread of its own encodes and sends: neither the user's backward pass nor the readers wait for that.
"""

import _thread
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from byteps import wire
from byteps.coding import TensorCoding
from byteps.net import Connection, ConnectionLost
from byteps.pipeline import (
    MAX_CREDIT_NBYTES,
    MAX_CREDIT_OF_ORDERS_NBYTES,
    Pipeline,
    Task,
    default_credit_bytes,
)
from byteps.sender import Sender
from byteps.trace import Span
from byteps.wire import DECLINED, DTYPE_CODES, HEADER, HEADER_NBYTES, ROUNDS, Kind, ProtocolError, make_key

# From this size on a reader that copied partitions out could not receive meanwhile: the Flusher makes the connection
# full duplex.  Below it, and where shares differ, the order is kept down to the NIC.  The kernel shares the NIC equally
# among the sockets that have data, so a service with twice the share of another would fall behind and the credit fill
# up with its partitions: no socket may hold more than half a partition unsent, and nothing overtakes a frame that the
# kernel has not taken.  With tensors of different priorities the workers' orders differ from moment to moment anyway,
# and what waits in order then waits for a service that waits for another worker: 30 tensors on n = 4, k = 2 took 0.65 s
# kept in order and 0.53 s otherwise.
_LARGE_NBYTES: Final = 256 << 10
_MIN_UNSENT_NBYTES: Final = 32 << 10
RELAX_SECONDS: Final = 0.02
# Held until the last answer is in, or the job failed: an Event costs ten times as much, and there may be 10,000.
Pending = _thread.LockType
# As a transfer's source: it contributes nothing.  As its target: it declines the answer.
NOTHING: Final = memoryview(bytearray())


def make_pending() -> Pending:
    pending = _thread.allocate_lock()
    pending.acquire()
    return pending


@dataclass(eq=False, slots=True, kw_only=True)
class Transfer(Task):
    """A task with its bytes; `pending` is for the worker to release."""

    source: memoryview
    target: memoryview
    pending: Pending
    timing: Span | None = None  # if somebody wants to know when
    coding: TensorCoding | None = None  # the tensor's, if it has a codec


class CommunicationService:
    """Moves the bytes of a worker's transfers."""

    def __init__(
        self,
        *,
        credit_bytes: int,
        completed: Callable[[Transfer], None],
        lost: Callable[[int], None],
        violated: Callable[[int, str], None],
    ) -> None:
        """`credit_bytes` 0: by partition size.  The callbacks run in reader threads: a transfer's last answer is in, a
        service's connection ended, a service broke the protocol."""
        self._completed = completed
        self._lost = lost
        self._violated = violated
        self._fixed_credit = credit_bytes > 0
        self._cut_nbytes = 0  # not known before the first tensor is registered
        self._lock = threading.Lock()  # guards _pipeline, _active and the progress of transfers
        self._pipeline = Pipeline(credit_bytes or MAX_CREDIT_NBYTES)
        self._active: dict[int, Transfer] = {}  # by tensor number
        self._closed = False
        self._connections: dict[int, Connection] = {}
        self._shares: set[float] = set()
        self._ordered = False  # whether nothing may overtake a frame that the kernel has not taken
        self._priorities: set[int] = set()  # seen so far; two are enough to know that they differ
        self._pumping = threading.Lock()
        self._sender: Sender | None = None  # from the first tensor with a codec on
        self._untaken: list[int] = []  # the service of each small frame that the kernel has not taken as a whole
        self._next_relax = 0.0

    def add(self, service: int, name: str, share: float, connection: Connection) -> None:
        """A connection to a summation service with this share of all bytes."""
        self._connections[service] = connection
        self._shares.add(share)
        threading.Thread(target=self._read, args=(service, connection), name=name, daemon=True).start()

    def tune(self, cut_nbytes: int) -> None:
        """Fit the credit, and what a socket may hold back, to the size of the partitions."""
        self._cut_nbytes = cut_nbytes
        self._fit_credit()
        self._ordered = cut_nbytes < _LARGE_NBYTES and len(self._shares) > 1 and len(self._priorities) <= 1
        if self._ordered:
            for connection in self._connections.values():
                connection.limit_unsent(max(cut_nbytes // 2, _MIN_UNSENT_NBYTES))

    def _fit_credit(self) -> None:
        if self._cut_nbytes and not self._fixed_credit:
            limit = MAX_CREDIT_NBYTES if len(self._priorities) <= 1 else MAX_CREDIT_OF_ORDERS_NBYTES
            self._pipeline.credit_bytes = default_credit_bytes(self._cut_nbytes, len(self._connections), limit)

    def submit(self, transfer: Transfer) -> None:
        """Queue a transfer; its tensor must have no other under way.  `pump` sends it."""
        with self._lock:
            if len(self._priorities) <= 1:
                self._priorities.add(transfer.priority)
                if len(self._priorities) > 1:
                    self._ordered = False
                    self._fit_credit()
            if transfer.coding is not None and self._sender is None:
                self._sender = Sender(self._pump)
            self._active[transfer.entry.number] = transfer
            self._pipeline.submit((transfer,))

    def flush(self) -> None:
        """Somebody waits: hold back no gathered batch."""
        with self._lock:
            self._pipeline.flush()
        self.pump()

    def relax(self) -> None:
        """Called again and again while the user waits: workers must not hold back what others wait for."""
        now = time.monotonic()
        if now < self._next_relax:
            return
        self._next_relax = now + RELAX_SECONDS
        with self._lock:
            self._pipeline.relax()
        self.pump()

    def stop(self) -> list[Transfer]:
        """No more completions; returns what was under way."""
        with self._lock:
            self._closed = True
            return list(self._active.values())

    def close(self) -> None:
        if self._sender is not None:
            self._sender.stop()
        for connection in self._connections.values():
            connection.close()

    def abandon(self) -> None:
        """Let go of the sockets, in a forked child."""
        for connection in self._connections.values():
            connection.abandon()

    def pump(self) -> None:
        """Send what the credit allows, or have it sent."""
        if self._sender is not None:
            self._sender.wake()
        else:
            self._pump()

    def _pump(self) -> None:
        """One thread at a time; one that finds it busy leaves its work to the other."""
        while self._pipeline.ready and not self._untaken:
            if not self._pumping.acquire(blocking=False):
                return
            try:
                while not self._untaken:
                    with self._lock:
                        frames = self._pipeline.take()
                    if not frames:
                        break
                    for frame in frames:
                        self._send(frame.service, frame.parts)
            finally:
                self._pumping.release()
            # Work that came between the last take and the release is seen by the loop's condition.

    def _send(self, service: int, parts: list[tuple[Task, int]]) -> None:
        connection = self._connections[service]
        headers: list[bytes | memoryview] = []
        payloads: list[bytes | memoryview] = []
        for task, part in parts:
            assert isinstance(task, Transfer)
            if task.timing is not None:
                task.timing.leaves()
            start, end = task.span(part)
            spec = task.entry.spec
            key = make_key(task.entry.number, part)
            dtype, flags = DTYPE_CODES[spec.dtype], 0 if task.target else DECLINED
            members = len(spec.members) or spec.staleness + 1
            payload = task.source[start:end]
            if task.coding is not None and payload:
                dtype, encoded, payload = task.coding.push(part, payload, task.round)
                flags |= encoded
            round_ = task.round % ROUNDS
            headers.append(HEADER.pack(Kind.PUSH, dtype, spec.op, flags, members, round_, key, len(payload)))
            payloads.append(payload)
        done = None
        if self._ordered:
            self._untaken.append(service)
            done = self._taken
        if len(parts) == 1:
            connection.send(headers[0], payloads[0], done=done, later=len(payloads[0]) >= _LARGE_NBYTES)
            return
        body = b"".join(headers + payloads)
        connection.send(HEADER.pack(Kind.PUSH_BATCH, 0, 0, 0, 0, len(parts), 0, len(body)) + body, done=done)

    def _taken(self) -> None:
        """The kernel has taken a frame, maybe a while after it was sent; in the thread that sent the end of it."""
        self._untaken.pop()
        if not self._untaken:
            self.pump()

    def _read(self, service: int, connection: Connection) -> None:
        """Receive one service's answers into the results."""
        header = bytearray(HEADER_NBYTES)
        view = memoryview(header)
        try:
            while True:
                connection.receive_exactly(view)
                kind, _, _, _, _, round_, key, nbytes = HEADER.unpack(header)
                keys: tuple[int, ...] | list[int] = (key,)
                if kind == Kind.PULL:
                    connection.receive_exactly(self._place(key, nbytes))
                elif kind == Kind.PULL_BATCH and nbytes <= wire.MAX_BATCH_BODY_NBYTES:
                    body = bytearray(nbytes)
                    connection.receive_exactly(memoryview(body))
                    keys = self._unpack(round_, memoryview(body))
                else:
                    raise ProtocolError(f"a frame of kind {kind} and {nbytes} bytes")
                if self._sender is not None:
                    self._decode(keys)
                self._complete(keys)
        except ConnectionLost:
            self._lost(service)
        except (ProtocolError, KeyError) as error:
            self._violated(service, str(error))

    def _place(self, key: int, nbytes: int) -> memoryview:
        """Where an answer goes."""
        transfer = self._active.get(key >> 32)
        if transfer is None:
            raise ProtocolError(f"an answer for key {key:#x}, which is not under way")
        start, end = transfer.span(key & 0xFFFFFFFF)
        place = transfer.target[start:end]
        if transfer.coding is not None and place:
            place = transfer.coding.place(key & 0xFFFFFFFF, place)
        if nbytes != len(place):
            raise ProtocolError(f"an answer of {nbytes} bytes for key {key:#x}, which has {len(place)}")
        return place

    def _unpack(self, count: int, body: memoryview) -> list[int]:
        offset = count * HEADER_NBYTES
        keys = []
        for *_, key, nbytes in HEADER.iter_unpack(body[:offset]):
            self._place(key, nbytes)[:] = body[offset : offset + nbytes]
            offset += nbytes
            keys.append(key)
        return keys

    def _decode(self, keys: tuple[int, ...] | list[int]) -> None:
        """What has been received encoded, into the results."""
        for key in keys:
            transfer, part = self._active[key >> 32], key & 0xFFFFFFFF
            if transfer.coding is not None and transfer.target:
                start, end = transfer.span(part)
                transfer.coding.decode(part, transfer.target[start:end], transfer.round)

    def _complete(self, keys: tuple[int, ...] | list[int]) -> None:
        finished = []
        with self._lock:
            if self._closed:
                return
            for key in keys:
                self._pipeline.answer(key)
                transfer = self._active[key >> 32]
                transfer.answered += 1
                if transfer.finished:
                    del self._active[key >> 32]
                    finished.append(transfer)
        self.pump()
        for transfer in finished:
            self._completed(transfer)
