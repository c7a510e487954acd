"""What ranks tell each other once per step, and what follows from it.

Ranks may differ in which parameters their batch touches, in how many samples it has, and in what they do next.  So
each step has one small sum in which every rank fills its own places and zeros elsewhere:

    per rank: steps so far and what it is doing | per rank: its samples + 1, or 0 | per parameter: a flag

All ranks read the same table and decide alike; what cannot go on is the same error everywhere.  A parameter that some
ranks have a gradient for gets zeros from the others, one that none has is left alone, as in one process with all
samples.  Ranks that have joined contribute zeros and do not count.  With g the mean over a rank's b samples:

    average           sum of g / (number of ranks that have not joined)
    with samples      sum of b g / sum of b

where the services give the sum over all n workers divided by n; `factor` is the rest.  Pure.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from byteps.errors import BytePSError, MismatchError

_SPARSE: Final = 1 << 32  # counts ranks with a sparse gradient; below it are counted the ranks that have submitted
_NAMES_SHOWN: Final = 5


class Doing(enum.IntEnum):
    """Why a rank takes part."""

    STEP = 0
    DISCARD = 1
    JOINED = 2


_WORDS: Final = {
    Doing.STEP: "step() or synchronize()",
    Doing.DISCARD: "zero_grad() before step(), with gradients under way",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """One rank's part of an exchange."""

    doing: Doing
    steps: int
    samples: int | None  # None: all ranks count alike
    submitted: Sequence[bool]  # by parameter
    sparse: Sequence[bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What all ranks conclude."""

    joined: frozenset[int]
    factor: float  # for the services' average
    wanted: tuple[bool, ...]  # by parameter: some rank has a gradient


def length(size: int, parameters: int) -> int:
    """Of a table, in integers."""
    return 2 * size + parameters


def fill(word: Word, rank: int, size: int) -> list[int]:
    """The rank's table; the sum of all ranks' is what `conclude` reads."""
    table = [0] * (2 * size)
    table[rank] = word.steps * len(Doing) + word.doing
    table[size + rank] = 0 if word.samples is None else word.samples + 1
    flags = zip(word.submitted, word.sparse, strict=True)
    return table + [submitted + sparse * _SPARSE for submitted, sparse in flags]


def conclude(table: Sequence[int], size: int, *, who: str, names: Sequence[str], average: bool) -> Verdict:
    """Raises what every rank raises, if they cannot go on; `who` and `names` are the optimiser's and parameters'."""
    doing = [Doing(state % len(Doing)) for state in table[:size]]
    here = [rank for rank in range(size) if doing[rank] is not Doing.JOINED]
    if len({table[rank] for rank in here}) > 1:
        said = ", ".join(
            f"rank {rank} after {table[rank] // len(Doing)} steps is at {_WORDS[doing[rank]]}" for rank in here
        )
        raise MismatchError(f"{who}: ranks are not at the same point: {said}")
    flags = table[2 * size :]
    stepping = any(doing[rank] is Doing.STEP for rank in here)
    sparse = [repr(name) for name, flag in zip(names, flags, strict=True) if flag >= _SPARSE]
    if sparse and stepping:
        raise BytePSError(
            f"{who}: the gradient of {listed(sparse)} is sparse, which is not supported; give DistributedOptimizer "
            "sparse_as_dense=True, or the embedding sparse=False"
        )
    return Verdict(
        joined=frozenset(range(size)) - frozenset(here),
        factor=_factor(who, here, [count - 1 for count in table[size : 2 * size]], size, average),
        wanted=tuple(flag > 0 for flag in flags),
    )


def _factor(who: str, here: list[int], samples: list[int], size: int, average: bool) -> float:
    weighted = [rank for rank in here if samples[rank] >= 0]
    if not weighted:
        return size / len(here) if here and average else 1.0
    if len(weighted) < len(here):
        without = [rank for rank in here if rank not in weighted]
        raise MismatchError(
            f"{who}: rank {listed(map(str, weighted))} has a batch_size, rank {listed(map(str, without))} has none; "
            "set optimizer.batch_size on every rank or on none"
        )
    total = sum(samples[rank] for rank in here)
    return size / total if total else 0.0


def listed(names: Iterable[str]) -> str:
    """The first few, and how many more."""
    shown = list(names)
    more = f" and {len(shown) - _NAMES_SHOWN} more" if len(shown) > _NAMES_SHOWN else ""
    return ", ".join(shown[:_NAMES_SHOWN]) + more
