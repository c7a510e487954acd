"""What the collectives of a process group consist of: rounds in which some ranks give and some take.

A copy is a round to which one rank gives, bit by bit whatever the element type.  A sum or average that the services can
add is one round; any other reduction is copies of everything to whoever wants the result, who reduces it in rank order.
Tensors that lie on a device, or are not contiguous, are copied to the host's memory and back.
"""

import ctypes
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial, reduce
from typing import Final, NamedTuple

import torch

from byteps.communication import NOTHING, Pending
from byteps.errors import BytePSError, MismatchError
from byteps.session import Session
from byteps.torch.streams import Streams
from byteps.torch.tensors import dtype_name
from byteps.torch.work import Work
from byteps.wire import DTYPES, Op

Tensor = torch.Tensor
Finish = Callable[[], None]
_SUMS: Final = {"SUM": Op.SUM, "AVG": Op.AVERAGE}
_REDUCTIONS: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
# Pickled objects have ever other sizes, and a tensor of the job has one: bytes travel in boxes of a few sizes.
_MAX_BOX_NBYTES: Final = 1 << 20
_LENGTH_NBYTES: Final = 8


class Part(NamedTuple):
    """One rank's side of a round: what it gives (None: nothing) and where the answer goes (None: it declines it)."""

    stream: str
    op: Op
    gives: Tensor | None
    takes: Tensor | None
    between: tuple[int, ...] = ()  # the ranks of the group that take part; none: all


class Step(NamedTuple):
    """Rounds, and what is left to do when they are over."""

    parts: list[Part]
    finish: Finish | None = None


class Rounds:
    """The rounds of one process group, as one of its ranks sees them; `ranks` are those of the job."""

    def __init__(self, session: Session, name: str, ranks: Sequence[int], rank: int) -> None:
        self.name = name
        self.size = len(ranks)
        self.rank = rank
        self._session = session
        self._ranks = tuple(ranks)
        self._streams = Streams(name)

    def reduced(self, kind: str, operation: str, given: Tensor, place: Tensor | None, taker: int | None = None) -> Step:
        """A reduction of what all ranks give, for `taker` (None: for all) to put into its `place`."""
        stream = f"{kind} {operation}" + ("" if taker is None else f" to {taker}")
        if operation in _SUMS and dtype_name(given.dtype) in DTYPES:
            return Step([Part(stream, _SUMS[operation], given, place)])
        if operation not in _REDUCTIONS:
            raise BytePSError(f"{kind}: operation {operation} is not supported; use one of {', '.join(_REDUCTIONS)}")
        everything = [
            given if rank == self.rank or place is None else torch.empty_like(given) for rank in range(self.size)
        ]
        parts = [
            part
            for giver, buffer in enumerate(everything)
            for part in self.copied(stream, giver, taker, given, buffer).parts
        ]
        return Step(parts, None if place is None else partial(_combine, operation, everything, place))

    def copied(self, kind: str, giver: int, taker: int | None, given: Tensor | None, place: Tensor | None) -> Step:
        """A tensor of rank `giver` for `taker` (None: for all); nothing if this rank is neither."""
        gives, takes = giver == self.rank, taker in (None, self.rank)
        if gives and takes and given is not None and place is not None:
            _put(given, place)
        if giver == taker or not (gives or takes):
            return Step([])
        stream = f"{kind} from {giver}" + ("" if taker is None else f" to {taker}")
        between = () if taker is None else (giver, taker)
        return Step([Part(stream, Op.COPY, given if gives else None, None if gives else place, between)])

    def start(self, kind: str, steps: Sequence[Step], result: Sequence[Tensor], timeout: timedelta) -> Work:
        """Start all rounds; the work is over when they are, and what is left has been done."""
        waits: list[Pending] = []
        finishes: list[Finish] = []
        for parts, finish in steps:
            for part in parts:
                pending, put = self._submit(part)
                waits += [] if pending is None else [pending]
                finishes += [] if put is None else [put]
            finishes += [] if finish is None else [finish]

        def done() -> list[Tensor]:
            for each in finishes:
                each()
            return list(result)

        device = result[0].device if result else torch.device("cpu")
        return Work(self._session, f"{self.name}: {kind}", waits, done, timeout.total_seconds(), device)

    def _submit(self, part: Part) -> tuple[Pending | None, Finish | None]:
        """Start one round: what to wait for, and what to do then."""
        like = part.gives if part.gives is not None else part.takes
        assert like is not None
        if like.layout is not torch.strided:
            raise BytePSError(f"{self.name}: {part.stream}: sparse tensors ({like.layout}) are not supported")
        if like.numel() == 0:
            return None, None
        if self.size == 1:
            if part.gives is not None and part.takes is not None:
                _put(part.gives, part.takes)
            return None, None
        if part.op == Op.COPY and like.dtype == torch.uint8 and like.dim() == 1 and like.numel() <= _MAX_BOX_NBYTES:
            gives = None if part.gives is None else _boxed(part.gives)
            takes = None if part.takes is None else _boxed(torch.zeros_like(part.takes, device="cpu"))
            pending = self._send(part, takes if gives is None else gives, gives, takes)
            return pending, None if takes is None else partial(self._unbox, part, takes)
        gives = None if part.gives is None else part.gives.detach().resolve_conj().resolve_neg().cpu().contiguous()
        if part.takes is None:
            return self._send(part, like, gives, None), None
        takes = part.takes.detach()
        plain = takes.device.type == "cpu" and not takes.is_conj() and not takes.is_neg()
        if plain and takes.is_contiguous():
            return self._send(part, like, gives, takes), None
        takes = torch.empty(like.shape, dtype=like.dtype)
        return self._send(part, like, gives, takes), partial(_put, takes, part.takes)

    def _send(self, part: Part, like: Tensor | None, gives: Tensor | None, takes: Tensor | None) -> Pending | None:
        assert like is not None
        shape, dtype = tuple(like.shape), dtype_name(like.dtype)
        if dtype not in DTYPES:
            shape, dtype = (like.numel() * like.element_size(),), "uint8"
        ranks = tuple(sorted(self._ranks[rank] for rank in part.between)) or self._ranks
        members = () if len(ranks) == self._session.settings.size else ranks
        spec = self._streams.name(part.stream, shape, dtype, part.op, members)
        source, target = (NOTHING if each is None else _bytes(each) for each in (gives, takes))
        return self._session.submit(spec, source, target, 0)

    def _unbox(self, part: Part, box: Tensor) -> None:
        assert part.takes is not None
        nbytes = int(box[:_LENGTH_NBYTES].view(torch.int64).item())
        if nbytes != part.takes.numel():
            raise MismatchError(
                f"{self.name}: {part.stream}: it gives {nbytes} bytes, rank {self.rank} has room for "
                f"{part.takes.numel()}; shapes must be the same on all ranks"
            )
        _put(box[_LENGTH_NBYTES : _LENGTH_NBYTES + nbytes], part.takes)

    def row(self, kind: str, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """A list that must have a tensor per rank."""
        if len(tensors) != self.size:
            raise BytePSError(f"{self.name}: {kind}: {len(tensors)} tensors for {self.size} ranks; give one for each")
        return tensors

    def rows(self, kind: str, large: Tensor, small: Tensor) -> Sequence[Tensor]:
        """A tensor that must hold one of every rank, as a list."""
        if large.numel() != small.numel() * self.size or large.dtype != small.dtype or not large.is_contiguous():
            raise BytePSError(
                f"{self.name}: {kind}: shape {tuple(large.shape)} {dtype_name(large.dtype)} is not {self.size} times "
                f"shape {tuple(small.shape)} {dtype_name(small.dtype)} in one piece; give room for one of every rank"
            )
        return large.view(self.size, -1).unbind() if large.numel() else [small] * self.size


def _combine(operation: str, everything: Sequence[Tensor], place: Tensor) -> None:
    total = reduce(_REDUCTIONS[operation], everything)
    if operation == "AVG":
        exact = total.is_floating_point() or total.is_complex()
        total = torch.div(total, len(everything), rounding_mode=None if exact else "floor")
    _put(total, place)


def _boxed(tensor: Tensor) -> Tensor:
    """Bytes behind their number, in as much room as the next power of two."""
    box = torch.zeros(_LENGTH_NBYTES + (1 << (tensor.numel() - 1).bit_length()), dtype=torch.uint8)
    box[:_LENGTH_NBYTES].view(torch.int64)[0] = tensor.numel()
    box[_LENGTH_NBYTES : _LENGTH_NBYTES + tensor.numel()] = tensor.detach()
    return box


def _put(source: Tensor, place: Tensor) -> None:
    if source.data_ptr() != place.data_ptr():
        place.detach().copy_(source)


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor, which lives as long as the view.

    Not by tensor.numpy(): that forbids to resize the storage, as FSDP does to free it.
    """
    array = (ctypes.c_ubyte * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())
    array.owner = tensor  # type: ignore[attr-defined]
    return memoryview(array).cast("B")
