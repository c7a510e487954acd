"""Names for collectives, which have none: the n-th call of a kind is the n-th on every rank.

A *stream* is the sequence of calls of one kind among the same ranks, such as the all-reduces of a group, or what rank 0
broadcasts.  A call whose like (shape, type, operation) the stream has not had before is a new tensor, named after its
place in the stream: ranks whose shapes differ there give one name two shapes, which the job refuses everywhere, at
once.  Later calls of that kind use its names in turn, so that a loop registers nothing after a few rounds, and so many
may be under way at once.  Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from byteps.wire import Op, TensorSpec

UNDER_WAY: Final = 4  # names per shape, type and operation


@dataclass(slots=True)
class _Stream:
    """One kind of calls."""

    calls: int = 0
    names: dict[TensorSpec, list[str]] = field(default_factory=dict)
    uses: dict[TensorSpec, int] = field(default_factory=dict)


class Streams:
    """The streams of one process group, whose name and ranks distinguish it from others."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._streams: dict[str, _Stream] = {}

    def name(self, stream: str, shape: tuple[int, ...], dtype: str, op: Op, members: tuple[int, ...]) -> TensorSpec:
        """The next call of a stream, as the tensor that it is to the job."""
        here = self._streams.setdefault(stream, _Stream())
        kind = TensorSpec(name="", shape=shape, dtype=dtype, op=op, members=members)
        names = here.names.setdefault(kind, [])
        uses = here.uses[kind] = here.uses.get(kind, -1) + 1
        here.calls += 1
        if len(names) < UNDER_WAY:
            names.append(f"{self.group}: {stream} #{here.calls}")
        return TensorSpec(name=names[uses % UNDER_WAY], shape=shape, dtype=dtype, op=op, members=members)
