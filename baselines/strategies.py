"""How a contender is used: as it is, or through a strategy that is wrapped around its session and is a session itself.

    plain        the session itself
    one-by-one   whole tensors in ready order, the next one when the sum of the one before is there
    fused        neighbours in ready order travel together in buckets of `bucket` bytes, each handed over when its last
                 tensor is ready, whether or not the bucket before is through: Horovod's fusion with fixed buckets, and
                 as there without priorities
    scheduled    as ByteScheduler does it over the calls of others: tensors cut into pieces of `piece` bytes, the most
                 urgent first, at most `credit` bytes outstanding, in the order that rank 0 decides

Settings: `strategy` and its byte counts, such as "4MiB"; the plan adds `leader`, where rank 0 tells its decisions.
Standard library and numpy only (>= 1.22), as the sessions themselves.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from baselines import order
from baselines.session import Array, Session, Tensor
from baselines.window import Window
from byteps.units import parse_nbytes

DEFAULTS = {"bucket": "64MiB", "piece": "4MiB", "credit": "16MiB"}
STRATEGIES = ("plain", "one-by-one", "fused", "scheduled")


def wrap(session: Session, settings: dict[str, str], *, rank: int, size: int) -> Session:
    """The session itself, or the strategy that the settings name around it."""
    strategy = settings.get("strategy", "plain")
    if strategy == "plain":
        return session
    if hasattr(session, "settle"):
        raise ValueError(f"strategy {strategy!r} needs sums that are complete when they are waited for")
    if strategy == "one-by-one":
        return Scheduled(session, order.Leader("", 0, 0))  # the order of submission, so that nobody need be told
    if strategy == "fused":
        return Fused(session, bucket_nbytes=_nbytes(settings, "bucket"))
    if strategy == "scheduled":
        piece_nbytes, credit_nbytes = _nbytes(settings, "piece"), _nbytes(settings, "credit")
        address, _, port = settings["leader"].rpartition(":")
        end = order.meet(address, int(port), rank=rank, size=size)
        return Scheduled(session, end, piece_nbytes=piece_nbytes, credit_nbytes=credit_nbytes)
    raise ValueError(f"strategy {strategy!r} is not one of {', '.join(STRATEGIES)}")


def _nbytes(settings: dict[str, str], knob: str) -> int:
    nbytes = parse_nbytes(settings.get(knob, DEFAULTS[knob]))
    if nbytes < 1:
        raise ValueError(f"{knob} = {settings[knob]!r}: it takes at least one byte")
    return nbytes


class Fused:
    """Buckets instead of tensors.  Copies every gradient into its bucket, as Horovod and DDP do; results are views."""

    def __init__(self, base: Session, *, bucket_nbytes: int) -> None:
        self._base = base
        self._bucket_nbytes = bucket_nbytes

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        self._members = buckets(tensors, gradients, self._bucket_nbytes)
        self._place: dict[int, tuple[int, int]] = {}  # tensor -> its bucket and its first element there
        self._slots: list[Array | None] = [None] * len(tensors)  # where it is copied to; None: it is the bucket itself
        declared, arrays = [], []
        for bucket, members in enumerate(self._members):
            first = tensors[members[0]]
            if len(members) == 1:
                self._place[members[0]] = bucket, 0
                declared.append(replace(first, priority=0))
                arrays.append(gradients[members[0]])
                continue
            numel = sum(tensors[index].numel for index in members)
            whole = np.empty(numel, dtype=first.dtype)
            end = 0
            for index in members:
                self._place[index] = bucket, end
                self._slots[index] = whole[end : end + tensors[index].numel]
                end += tensors[index].numel
            declared.append(
                Tensor(
                    name=f"{first.name} and {len(members) - 1} more",
                    numel=numel,
                    dtype=first.dtype,
                    ready_seconds=tensors[members[-1]].ready_seconds,
                    forward_seconds=sum(tensors[index].forward_seconds for index in members),
                )
            )
            arrays.append(whole)
        self._gradients = gradients
        self._left = [len(members) for members in self._members]  # tensors that are not ready yet
        self._results: list[Array | None] = [None] * len(self._members)
        self._base.declare(declared, arrays)

    def submit(self, index: int) -> None:
        bucket, _ = self._place[index]
        slot = self._slots[index]
        if slot is not None:
            slot[:] = self._gradients[index]
        self._left[bucket] -= 1
        if not self._left[bucket]:
            self._left[bucket] = len(self._members[bucket])
            self._results[bucket] = None
            self._base.submit(bucket)

    def wait(self, index: int) -> Array:
        bucket, start = self._place[index]
        result = self._results[bucket]
        if result is None:
            result = self._results[bucket] = self._base.wait(bucket)
        return result[start : start + self._gradients[index].size]

    def facts(self) -> dict[str, str]:
        return {**self._base.facts(), "strategy": "fused", "bucket bytes": str(self._bucket_nbytes)}

    def close(self) -> None:
        self._base.close()


def buckets(tensors: Sequence[Tensor], gradients: Sequence[Array], bucket_nbytes: int) -> list[list[int]]:
    """Tensors of one element type in ready order, until the next one would not fit; in the order of completion."""
    done: list[list[int]] = []
    filling: dict[str, list[int]] = {}
    for index, tensor in enumerate(tensors):
        members = filling.get(tensor.dtype, [])
        nbytes = sum(gradients[member].nbytes for member in members) + gradients[index].nbytes
        if members and nbytes > bucket_nbytes:
            done.append(members)
            members = []
        filling[tensor.dtype] = [*members, index]
    return sorted([*done, *filling.values()], key=lambda members: members[-1])


class Scheduled:
    """Pieces of at most `piece_nbytes` in order of priority; without the byte counts, whole tensors one by one."""

    def __init__(
        self, base: Session, end: order.Leader | order.Follower, *, piece_nbytes: int = 0, credit_nbytes: int = 0
    ) -> None:
        self._base = base
        self._piece_nbytes = piece_nbytes
        self._credit_nbytes = credit_nbytes
        self._window = Window(base, end, credit_nbytes=credit_nbytes)

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        pieces: list[Tensor] = []
        views: list[Array] = []
        self._pieces: list[range] = []
        for tensor, gradient in zip(tensors, gradients, strict=True):
            step = max(self._piece_nbytes // gradient.itemsize, 1) if self._piece_nbytes else gradient.size
            parts = [gradient[start : start + step] for start in range(0, gradient.size, step)]
            self._pieces.append(range(len(pieces), len(pieces) + len(parts)))
            for number, part in enumerate(parts):
                name = f"{tensor.name} piece {number}" if len(parts) > 1 else tensor.name
                pieces.append(replace(tensor, name=name, numel=part.size))
            views += parts
        self._gradients = gradients
        self._views = views
        self._base.declare(pieces, views)
        urgency = [-piece.priority if self._piece_nbytes else 0 for piece in pieces]
        self._window.begin([view.nbytes for view in views], urgency)

    def submit(self, index: int) -> None:
        self._window.submit(self._pieces[index])

    def wait(self, index: int) -> Array:
        pieces = self._pieces[index]
        results = self._window.wait(pieces)
        if len(pieces) == 1:
            return results[0]
        for piece, result in zip(pieces, results, strict=True):
            if result.ctypes.data != self._views[piece].ctypes.data:
                self._views[piece][:] = result
        return self._gradients[index]

    def facts(self) -> dict[str, str]:
        if not self._piece_nbytes:
            return {**self._base.facts(), "strategy": "one-by-one"}
        knobs = {"piece bytes": str(self._piece_nbytes), "credit bytes": str(self._credit_nbytes)}
        return {**self._base.facts(), "strategy": "scheduled", **knobs}

    def close(self) -> None:
        self._window.close()
        self._base.close()
