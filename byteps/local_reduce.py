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
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from byteps import local_jobs
from byteps.communication import Pending
from byteps.errors import BytePSError
from byteps.local_jobs import Jobs
from byteps.local_layout import layout
from byteps.local_link import GIVES, WANTS, Kind, Opening, Place, Said, Sockets
from byteps.local_memory import Piece, SharedMemory
from byteps.local_peers import Peers, Surroundings
from byteps.local_rounds import ALONE_NBYTES
from byteps.local_tensor import Done, LocalRound, LocalTensor, members
from byteps.trace import Span
from byteps.wire import ProtocolError, TensorSpec

_IDLE_SECONDS: Final = 0.25
_REPORT_SECONDS: Final = 1.0


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
        self._error: BytePSError | None = None
        self._words: Callable[[bytes], None] | None = None
        self._early_words: list[bytes] = []
        self._over = threading.Event()
        self._peers = Peers(rank, sockets, around)
        self._jobs = Jobs(self._peers.broken)
        self._peers.start(self._hear)
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
        self._peers.tell_all(Said(Kind.WORD, body=word))

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
        self._peers.leave()
        with self._lock:
            self._peers.departed.add(self.rank)

    def close(self) -> None:
        self._over.set()
        self._peers.close()
        self._jobs.stop()
        self._peers.finish()

    def abandon(self) -> None:
        """In a forked child: let go of the sockets."""
        self._peers.abandon()

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
        tensor.fill(one.source, self.rank)
        self._filled(tensor, one)

    def _filled(self, tensor: LocalTensor, one: LocalRound) -> None:
        flags = GIVES * one.gives | WANTS * one.wants
        self._contribute(tensor, flags, one.priority)

    def _contribute(self, tensor: LocalTensor, flags: int, priority: int) -> None:
        self._peers.tell_all(Said(Kind.CONTRIBUTE, flags, tensor.number, 0, priority))

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
        tensor.fetch(one.target)
        self._end(tensor, one)

    def _end(self, tensor: LocalTensor, one: LocalRound) -> None:
        with self._lock:
            if tensor.active is not one:
                return  # the job failed
            tensor.active = None
            one.end(None)
            self._begin(tensor)

    def _create(self, spec: TensorSpec, slots: int) -> LocalTensor:
        """Have the root say where it is."""
        tensor = self._tensors[spec.name] = self._tensor(spec, slots)
        self._peers.tell_all(Said(Kind.OPEN, body=msgspec.msgpack.encode(Opening(spec, slots))))
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
                    self._peers.receive(self._memory, local)
                self._map(self._tensors[place.name], said.tensor, Piece(place.arena, place.offset, place.nbytes))
            elif said.kind == Kind.WORD:
                if self._words is None:
                    self._early_words.append(bytes(said.body))
                else:
                    self._words(bytes(said.body))
            elif said.kind == Kind.LEAVE:
                self._peers.departed.add(local)
            else:
                raise ProtocolError(f"kind {said.kind}, which it does not send")

    def _add_part(self, tensor: LocalTensor, bits: int) -> None:
        tensor.add_up(members(bits), self.rank, self.size, self.size)
        self._peers.tell_all(Said(Kind.ADDED, tensor=tensor.number))

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
            if 0 not in self._peers.departed or self._error is not None:
                return []  # the root has an eye on everything
            return [
                (tensor.spec.name, 0.0, (self.rank,))
                for tensor in self._tensors.values()
                if tensor.waiting or tensor.active
            ]
