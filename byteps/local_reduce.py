"""Sums of the workers of one machine, over shared memory: the network sees the machine's sum, once.

The machine is the paper's unit n: its GPUs are summed inside before anything touches the NIC (OSDI 2020, section 4).
One worker, local rank 0, is the machine's *root*: it alone sends gradients.  `LocalGroup` is a worker's part in it:

    its gradient --copy--> its slot --all add up, each a part--> result --root: network--> result --copy--> its gradient

`local_layout` says how the memory lies and what is rounded when, `local_rounds` what comes after what, `local_link`
what the workers tell each other.  Tensors are independent of each other, and as many are under way as are submitted.

Whoever can fill a slot itself, such as a GPU, needs no copies of ours:

    group.slot(spec)                     this worker's slot: write to it
    pending = group.contribute(spec)     it is filled
    group.result(spec)                   once `pending` is released: read it

Until the next `contribute` of this worker the result stays; and when a round is over the slot may be written again.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import msgspec
import numpy as np

from byteps import local_jobs, local_link, local_sums
from byteps.communication import Pending, make_pending
from byteps.errors import BytePSError
from byteps.local_jobs import Jobs
from byteps.local_layout import Layout, divides_at_the_end, itemsize, layout, part, travelling
from byteps.local_link import GIVES, WANTS, Kind, Opening, Place, Said, Sockets
from byteps.local_memory import Piece, SharedMemory
from byteps.local_rounds import ALONE_NBYTES
from byteps.net import Connection, ConnectionLost, Flusher
from byteps.trace import Span
from byteps.wire import Op, ProtocolError, TensorSpec

_IDLE_SECONDS: Final = 0.25
_REPORT_SECONDS: Final = 1.0
Done = Callable[[BaseException | None], None]


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


@dataclass(eq=False, slots=True, kw_only=True)
class LocalRound:
    """A contribution of this worker, from its submission to its result."""

    gives: bool = True
    wants: bool = True
    priority: int = 0
    pending: Pending = field(default_factory=make_pending)
    source: memoryview | None = None  # what is copied into the slot; None: it is there
    target: memoryview | None = None  # where the result is copied; None: it is read where it is
    done: Done | None = None
    timing: Span | None = None

    def end(self, error: BaseException | None) -> None:
        if self.timing is not None and error is None:
            self.timing.answered()
        self.pending.release()
        if self.done is not None:
            self.done(error)


@dataclass(eq=False, slots=True)
class LocalTensor:
    """A tensor's memory on this machine, and this worker's rounds of it."""

    spec: TensorSpec
    slots: int
    place: Layout
    number: int = -1  # the root's
    memory: memoryview | None = None
    mapped: threading.Event = field(default_factory=threading.Event)
    waiting: deque[LocalRound] = field(default_factory=deque)
    active: LocalRound | None = None

    def bytes(self, where: slice) -> memoryview:
        assert self.memory is not None
        return self.memory[where]


class LocalGroup:
    """One worker's part in the sums of its machine."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        sockets: Mapping[int, Sockets],
        around: Surroundings,
    ) -> None:
        """`rank` and `size` are those in the machine; `sockets` are to the root, by its local rank."""
        self.rank, self.size = rank, size
        self._around = around
        self._lock = threading.RLock()  # guards all below; taken before those of worker and communication service
        self._memory = SharedMemory()
        self._tensors: dict[str, LocalTensor] = {}
        self._numbered: dict[int, LocalTensor] = {}
        self._contradictions: list[LocalRound] = []
        self._departed: set[int] = set()
        self._error: BytePSError | None = None
        self._words: Callable[[bytes], None] | None = None
        self._early_words: list[bytes] = []
        self._over = threading.Event()
        self._flusher = Flusher()
        self._sockets = dict(sockets)
        self._peers = {local: Connection(each.messages, self._flusher) for local, each in sockets.items()}
        self._jobs = Jobs(self._broken)
        for local, peer in self._peers.items():
            threading.Thread(target=self._read, args=(local, peer), name=f"local {local}", daemon=True).start()
        threading.Thread(target=self._watch, name="local watch", daemon=True).start()

    # ---- the user's calls ----

    def submit(
        self, spec: TensorSpec, source: memoryview, target: memoryview, priority: int, timing: Span | None = None
    ) -> Pending:
        """Start a round whose contribution is copied from `source`, and its result to `target`; either may be
        NOTHING."""
        return self._submit(
            spec,
            0,
            LocalRound(
                gives=len(source) > 0,
                wants=len(target) > 0,
                priority=priority,
                source=source if len(source) else None,
                target=target if len(target) else None,
                timing=timing,
            ),
        )

    def memory(self, spec: TensorSpec, slots: int = 0) -> tuple[list[memoryview], memoryview]:
        """All slots and the result, writable, the same memory on all workers; waits until the root has made it.

        The number of `slots` is the same on all workers; 0 is one per worker.  With a number, all slots are summed,
        whoever filled them, and each begins on a page of its own.
        """
        tensor = self._open(spec, slots)
        while not tensor.mapped.wait(_IDLE_SECONDS):
            with self._lock:
                if self._error is not None:
                    raise self._error
        return [tensor.bytes(tensor.place.slot(index)) for index in range(tensor.place.slots)], self.result(spec)

    def slot(self, spec: TensorSpec) -> memoryview:
        """This worker's slot."""
        return self.memory(spec)[0][self.rank]

    def result(self, spec: TensorSpec) -> memoryview:
        """Where the result of a tensor is, whose memory has been asked for."""
        tensor = self._tensors[spec.name]
        return tensor.bytes(tensor.place.result)

    def contribute(self, spec: TensorSpec, priority: int = 0, done: Done | None = None) -> Pending:
        """This worker's slots are filled; `done` is called, in a thread of ours, when the result is there or with the
        error that came instead."""
        tensor = self._tensors[spec.name]  # memory() comes first
        return self._submit(spec, tensor.slots, LocalRound(priority=priority, done=done))

    def tell(self, word: bytes) -> None:
        """Root: to the other workers' `listen`; words come in their order."""
        self._tell_all(Said(Kind.WORD, body=word))

    def listen(self, hear: Callable[[bytes], None]) -> None:
        """Call `hear` with every word of the root's, in a thread of ours."""
        with self._lock:
            self._words = hear
            for word in self._early_words:
                hear(word)
            self._early_words.clear()

    def violated(self, text: str) -> None:
        """Whoever fills slots cannot go on, for this reason: the sums of this machine are over."""
        self._around.violated(text)

    @property
    def outstanding(self) -> int:
        """Rounds that this worker has not got the result of."""
        with self._lock:
            under_way = (len(tensor.waiting) + (tensor.active is not None) for tensor in self._tensors.values())
            return sum(under_way) + len(self._contradictions)

    # ---- the end ----

    def fail(self, error: BytePSError) -> None:
        """The job is over: everything pending and everything later raises this."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            rounds = self._contradictions
            for tensor in self._tensors.values():
                rounds += [*tensor.waiting, *([tensor.active] if tensor.active is not None else [])]
                tensor.waiting.clear()
                tensor.active = None
        for one in rounds:
            one.end(error)

    def leave(self) -> None:
        """This worker submits nothing more; it still adds up, and hands on, what the others do."""
        self._tell_all(Said(Kind.LEAVE))
        with self._lock:
            self._departed.add(self.rank)

    def close(self) -> None:
        self._over.set()
        for peer in self._peers.values():
            peer.drain(1.0)
            peer.close()
        for each in self._sockets.values():
            each.files.close()
        self._jobs.stop()
        self._flusher.abandon()

    def abandon(self) -> None:
        """In a forked child: let go of the sockets."""
        for peer in self._peers.values():
            peer.abandon()
        self._flusher.abandon()

    # ---- a tensor's rounds in this worker ----

    def _submit(self, spec: TensorSpec, slots: int, one: LocalRound) -> Pending:
        with self._lock:
            tensor = self._open(spec, slots)
            if tensor.spec != spec or tensor.slots != slots:
                self._contradictions.append(one)  # the scheduler has our declaration, its verdict is on the way
            else:
                tensor.waiting.append(one)
                self._begin(tensor)
        return one.pending

    def _open(self, spec: TensorSpec, slots: int) -> LocalTensor:
        with self._lock:
            self._around.announce(spec)
            if self._error is not None:
                raise self._error
            tensor = self._tensors.get(spec.name)
            if tensor is None:
                tensor = self._create(spec, slots)
            elif tensor.spec == spec and tensor.slots != slots:
                self._around.violated(f"tensor {spec.name!r}: {tensor.slots} slots, and now {slots}")
            return tensor

    def _begin(self, tensor: LocalTensor) -> None:
        """Start the next round, if none is under way."""
        if tensor.active is not None or not tensor.waiting or not tensor.mapped.is_set():
            return
        one = tensor.active = tensor.waiting.popleft()
        if one.timing is not None:
            one.timing.leaves()
        if one.source is None:
            self._filled(tensor, one)
        else:
            self._do(tensor, one.priority, local_jobs.FILL, partial(self._fill, tensor, one))

    def _do(self, tensor: LocalTensor, priority: int, kind: int, job: Callable[[], None]) -> None:
        """What takes a while in the thread for it, the rest at once: a hand-over costs 50 microseconds."""
        if tensor.spec.nbytes <= ALONE_NBYTES:
            job()
        else:
            self._jobs.put(priority, kind, job)

    def _fill(self, tensor: LocalTensor, one: LocalRound) -> None:
        assert one.source is not None
        _copy(one.source, tensor.bytes(tensor.place.slot(self.rank)))
        self._filled(tensor, one)

    def _filled(self, tensor: LocalTensor, one: LocalRound) -> None:
        flags = GIVES * one.gives | WANTS * one.wants
        self._contribute(tensor, flags, one.priority)

    def _contribute(self, tensor: LocalTensor, flags: int, priority: int) -> None:
        self._tell_all(Said(Kind.CONTRIBUTE, flags, tensor.number, 0, priority))

    def _arrived(self, tensor: LocalTensor) -> None:
        """The result is there."""
        one = tensor.active
        if one is None:
            return  # the job failed
        if one.target is not None:
            self._do(tensor, one.priority, local_jobs.FETCH, partial(self._fetch, tensor, one))
        else:
            self._end(tensor, one)

    def _fetch(self, tensor: LocalTensor, one: LocalRound) -> None:
        assert one.target is not None
        _copy(tensor.bytes(tensor.place.result), one.target)
        self._end(tensor, one)

    def _end(self, tensor: LocalTensor, one: LocalRound) -> None:
        with self._lock:
            if tensor.active is not one:
                return  # the job failed
            tensor.active = None
            one.end(None)
            self._begin(tensor)

    def _add(self, tensor: LocalTensor, sources: Iterable[int], index: int, count: int) -> None:
        """Add up one of `count` parts of these slots."""
        spec, place = tensor.spec, tensor.place
        start, end = part(spec.numel, itemsize(spec), index, count)
        if start < end:
            slots = [local_sums.view(tensor.bytes(place.slot(one)), spec.dtype)[start:end] for one in sources]
            total = local_sums.view(tensor.bytes(place.wide), travelling(spec).dtype)[start:end]
            average = spec.op is Op.AVERAGE and not divides_at_the_end(spec)
            local_sums.add_up(slots, total, self.size if average else 1)

    def _create(self, spec: TensorSpec, slots: int) -> LocalTensor:
        """Have the root say where it is."""
        tensor = self._tensors[spec.name] = self._tensor(spec, slots)
        self._tell_all(Said(Kind.OPEN, body=msgspec.msgpack.encode(Opening(spec, slots))))
        return tensor

    def _tensor(self, spec: TensorSpec, slots: int) -> LocalTensor:
        return LocalTensor(spec, slots, layout(spec, slots or self.size, by_page=slots > 0))

    def _map(self, tensor: LocalTensor, number: int, piece: Piece) -> None:
        """Its memory is known."""
        tensor.number, tensor.memory = number, self._memory.view(piece)
        self._numbered[number] = tensor
        tensor.mapped.set()
        self._begin(tensor)

    # ---- what the others say ----

    def _tell_all(self, said: Said) -> None:
        """The workers that this one has a connection to."""
        message = said.encode()
        for peer in self._peers.values():
            peer.send(message)

    def _read(self, local: int, peer: Connection) -> None:
        header = bytearray(local_link.HEADER.size)
        try:
            while True:
                said = local_link.receive(peer, header)
                self._hear(local, said)
        except ConnectionLost:
            if local not in self._departed and not self._over.is_set():
                self._around.lost(local)
        except BytePSError as error:  # of the protocol, or the job's
            self._around.violated(f"a message of local rank {local} to {self.rank}: {error}")
        except Exception as error:
            self._broken(error)

    def _broken(self, error: BaseException) -> None:
        self._around.violated(f"summing the workers of this machine failed: {type(error).__name__}: {error}")

    def _hear(self, local: int, said: Said) -> None:
        """A message of the root's."""
        if said.kind == Kind.ADD:
            tensor = self._numbered[said.tensor]
            self._jobs.put(said.priority, local_jobs.ADD, partial(self._add_part, tensor, said.bits))
            return
        with self._lock:
            if said.kind == Kind.RESULT:
                self._arrived(self._numbered[said.tensor])
            elif said.kind == Kind.MAP:
                place = msgspec.msgpack.decode(said.body, type=Place)
                while self._memory.count <= place.arena:
                    self._memory.receive(self._sockets[local].files)
                self._map(self._tensors[place.name], said.tensor, Piece(place.arena, place.offset, place.nbytes))
            elif said.kind == Kind.WORD:
                if self._words is None:
                    self._early_words.append(bytes(said.body))
                else:
                    self._words(bytes(said.body))
            elif said.kind == Kind.LEAVE:
                self._departed.add(local)
            else:
                raise ProtocolError(f"kind {said.kind}, which it does not send")

    def _add_part(self, tensor: LocalTensor, bits: int) -> None:
        self._add(tensor, _members(bits), self.rank, self.size)
        self._tell_all(Said(Kind.ADDED, tensor=tensor.number))

    # ---- time passes ----

    def _watch(self) -> None:
        reported = 0.0
        while not self._over.wait(self._look()):
            if time.monotonic() - reported >= _REPORT_SECONDS:
                reported = time.monotonic()
                for name, seconds, ready in self._complaints():
                    self._around.waiting(name, seconds, ready)

    def _look(self) -> float:
        """Whatever is to be done often; the seconds until the next time."""
        return _IDLE_SECONDS

    def _complaints(self) -> list[tuple[str, float, tuple[int, ...]]]:
        """What waits for other workers of this machine: the name, since how many seconds, and who is ready."""
        with self._lock:
            if 0 not in self._departed or self._error is not None:
                return []  # the root has an eye on everything
            return [
                (tensor.spec.name, 0.0, (self.rank,))
                for tensor in self._tensors.values()
                if tensor.waiting or tensor.active
            ]


def _members(bits: int) -> list[int]:
    return [index for index in range(bits.bit_length()) if bits >> index & 1]


def _copy(source: memoryview, target: memoryview) -> None:
    """Without the interpreter lock."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
