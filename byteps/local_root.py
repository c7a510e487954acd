"""The root of a machine: where the workers' contributions meet, and from where their sum goes to the network."""

import os
import time
from collections.abc import Mapping
from functools import partial

import msgspec

from byteps import local_jobs, local_sums
from byteps.communication import NOTHING, RELAX_SECONDS
from byteps.local_layout import divides_at_the_end, travelling
from byteps.local_link import GIVES, WANTS, Kind, Opening, Place, Said, Sockets
from byteps.local_memory import Piece
from byteps.local_peers import Surroundings
from byteps.local_reduce import LocalGroup
from byteps.local_rounds import Next, Rounds
from byteps.local_tensor import LocalTensor
from byteps.wire import ProtocolError, TensorSpec


class LocalRoot(LocalGroup):
    """Local rank 0's part, which includes everybody's rounds."""

    def __init__(
        self,
        *,
        size: int,
        machines: int,
        networked: bool,
        stall_warn_seconds: float,
        sockets: Mapping[int, Sockets],
        around: Surroundings,
    ) -> None:
        """`size` is the machine's; `sockets` are to its other workers.  `networked`: sums go on to the network, even
        with one machine."""
        self._workers = size * machines
        self._networked = networked
        self._warn_seconds = stall_warn_seconds / 2  # our word is there before a summation service complains
        self._rounds: list[Rounds] = []  # by tensor number, as the two below
        self._pieces: list[Piece] = []
        self._since: dict[int, float] = {}  # the first contribution to a round that lacks others
        self._in_network = 0
        super().__init__(rank=0, size=size, sockets=sockets, around=around)

    # ---- tensors ----

    def _create(self, spec: TensorSpec, slots: int) -> LocalTensor:
        """Make room for it."""
        tensor = self._tensors[spec.name] = self._tensor(spec, slots)
        piece, file = self._memory.take(tensor.place.total_nbytes, tensor.place.alignment)
        if file is not None:
            self._peers.give(file)
            os.close(file)
        self._rounds.append(
            Rounds(workers=self.size, op=spec.op, nbytes=spec.nbytes, networked=self._networked, slots=slots)
        )
        self._pieces.append(piece)
        self._map(tensor, len(self._numbered), piece)
        return tensor

    def _opened(self, local: int, opening: Opening) -> None:
        """A worker asks where a tensor is."""
        spec = opening.spec
        tensor = self._tensors.get(spec.name)
        if tensor is None:
            tensor = self._create(spec, opening.slots)
        if tensor.spec == spec and tensor.slots == opening.slots:
            piece = self._pieces[tensor.number]
            body = msgspec.msgpack.encode(Place(spec.name, piece.arena, piece.offset, piece.nbytes))
            self._peers.tell(local, Said(Kind.MAP, tensor=tensor.number, body=body))
        elif tensor.spec == spec:
            raise ProtocolError(f"tensor {spec.name!r} has {tensor.slots} slots on local rank 0, {opening.slots} there")
        # Otherwise the scheduler has both declarations, and its verdict is on the way.

    # ---- a round ----

    def _contribute(self, tensor: LocalTensor, flags: int, priority: int) -> None:
        with self._lock:
            self._contributed(0, tensor, flags, priority)

    def _contributed(self, local: int, tensor: LocalTensor, flags: int, priority: int) -> None:
        rounds = self._rounds[tensor.number]
        if not rounds.arrived:
            self._since[tensor.number] = time.monotonic()
        try:
            step = rounds.contribute(local, gives=bool(flags & GIVES), wants=bool(flags & WANTS), priority=priority)
            if len(rounds.arrived) == self.size:
                del self._since[tensor.number]
            self._follow(tensor, step)
        except ProtocolError as error:
            self._around.violated(f"tensor {tensor.spec.name!r}, local rank {local}: {error}")

    def _follow(self, tensor: LocalTensor, step: Next) -> None:
        """Do what comes next.  Under the lock."""
        rounds = self._rounds[tensor.number]
        if step is Next.ADD_ALONE:
            tensor.add_up(rounds.sources, 0, 1, self.size)
            step = rounds.added_alone()
        if step is Next.ADD:
            bits = sum(1 << slot for slot in rounds.sources)
            self._peers.tell_all(Said(Kind.ADD, tensor=tensor.number, bits=bits, priority=rounds.priority))
            self._jobs.put(rounds.priority, local_jobs.ADD, partial(self._add_part, tensor, bits))
        elif step is Next.SEND:
            self._in_network += 1
            wide = tensor.bytes(tensor.place.wide)
            self._around.send(
                travelling(tensor.spec),
                wide if rounds.sources else NOTHING,
                NOTHING if rounds.declines else wide,
                rounds.priority,
                partial(self._answered, tensor),
            )
        elif step is Next.RESULT:
            self._publish(tensor)

    def _add_part(self, tensor: LocalTensor, bits: int) -> None:
        rounds = self._rounds[tensor.number]
        tensor.add_up(rounds.sources, 0, self.size, self.size)
        with self._lock:
            self._follow(tensor, rounds.added(0))

    def _answered(self, tensor: LocalTensor) -> None:
        """In a thread of the communication service's."""
        with self._lock:
            self._in_network -= 1
            self._publish(tensor)

    def _publish(self, tensor: LocalTensor) -> None:
        """The sum over all workers is there.  Under the lock."""
        if divides_at_the_end(tensor.spec):
            wide = local_sums.view(tensor.bytes(tensor.place.wide), travelling(tensor.spec).dtype)
            result = local_sums.view(tensor.bytes(tensor.place.result), tensor.spec.dtype)
            local_sums.divide(wide, self._workers, result)
        self._rounds[tensor.number].begin()
        self._peers.tell_all(Said(Kind.RESULT, tensor=tensor.number))
        self._arrived(tensor)

    # ---- what the others say ----

    def _hear(self, local: int, said: Said) -> None:
        with self._lock:
            if said.kind == Kind.CONTRIBUTE:
                self._contributed(local, self._numbered[said.tensor], said.flags, said.priority)
            elif said.kind == Kind.ADDED:
                self._follow(self._numbered[said.tensor], self._rounds[said.tensor].added(local))
            elif said.kind == Kind.OPEN:
                self._opened(local, msgspec.msgpack.decode(said.body, type=Opening))
            elif said.kind == Kind.LEAVE:
                self._peers.departed.add(local)
            else:
                raise ProtocolError(f"kind {said.kind}, which it does not send")

    # ---- time passes ----

    def _look(self) -> float:
        if self._in_network:
            self._around.relax()
        return RELAX_SECONDS if self._in_network or self._since else super()._look()

    def _complaints(self) -> list[tuple[str, float, tuple[int, ...]]]:
        now = time.monotonic()
        with self._lock:
            if self._error is not None:
                return []
            found = []
            for number, since in self._since.items():
                arrived = tuple(self._rounds[number].arrived)
                if now - since >= self._warn_seconds or self._peers.departed.difference(arrived):
                    found.append((self._numbered[number].spec.name, now - since, arrived))
            return found
