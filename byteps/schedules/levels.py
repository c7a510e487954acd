"""Schemes that sum level by level, over hosts whose addresses have several digits: HiPS, BML, the 2D torus.

An address has one digit per level; hosts that differ in the digit of level l alone form a group of that level.  At each
step a host works within its group of one level: of the chunks it is still responsible for, it keeps those whose owner
has its digit there, and sends the others to the members that have theirs.  After all levels every chunk is complete at
its owner; the way back is the same in reverse.

With one thread one level is busy at a time.  With as many threads as levels, thread j starts at level j: each has its
part of the tensor, and in every step all levels are busy, as are all NICs of a host of BCube, which has one per level.

Sources: Geng et al., HiPS, NetAI 2018, and BML, NeurIPS 2018 (mesh in a level, rotated threads); Mikami et al.,
arXiv:1811.05233 (2D torus: rings in rows, then in columns, one thread).
"""

from collections.abc import Sequence
from itertools import zip_longest
from math import prod
from typing import Literal

import numpy as np

from byteps.schedule import Indices, Round, Schedule, joined

Within = Literal["mesh", "ring"]


def levels(name: str, radices: Sequence[int], *, threads: int, within: Within) -> Schedule:
    """`radices`: how many hosts a group of each level has, lowest digit first."""
    if not radices or min(radices) < 1 or not 1 <= threads <= len(radices):
        raise ValueError(f"{name}: levels of {list(radices)} hosts, {threads} threads; use 1 thread to one per level")
    n = prod(radices)
    parts = [
        _thread(radices, [(j + i) % len(radices) for i in range(len(radices))], j * n, within) for j in range(threads)
    ]
    reducing = [joined([one for one in step if one is not None]) for step in zip_longest(*(part for part in parts))]
    gathering = [_reversed(one) for one in reversed(reducing)]
    return Schedule(
        name=name,
        num_workers=n,
        num_nodes=n,
        shares=np.full(n * threads, 1 / (n * threads)),
        rounds=(*reducing, *gathering),
        owners=np.tile(np.arange(n), threads),
    )


def hips(ports: int, count: int, *, within: Within = "mesh") -> Schedule:
    """HiPS on `count` levels of `ports` hosts each, as many threads as levels.  2(N-1)/(hN) for each of h NICs."""
    return levels("HiPS", [ports] * count, threads=count, within=within)


def bml(ports: int, count: int) -> Schedule:
    """BML, fully distributed, on BCube(ports, count): HiPS with a mesh in every level and all NICs busy."""
    return levels("BML", [ports] * count, threads=count, within="mesh")


def torus(rows: int, columns: int) -> Schedule:
    """2D torus: reduce-scatter along rows, all-reduce along columns, all-gather along rows, by rings."""
    return levels("2D torus", [columns, rows], threads=1, within="ring")


def digits(radices: Sequence[int]) -> Indices:
    """By level and host: the digit of the host's address."""
    rest = np.arange(prod(radices))
    found = []
    for radix in radices:
        found.append(rest % radix)
        rest = rest // radix
    return np.array(found)


def _thread(radices: Sequence[int], order: Sequence[int], first_chunk: int, within: Within) -> list[Round]:
    """The reduce-scatter of one thread, whose chunk `first_chunk` + x is host x's."""
    digit = digits(radices)
    n = digit.shape[1]
    host, owner = np.repeat(np.arange(n), n), np.tile(np.arange(n), n)
    rounds: list[Round] = []
    stride = np.concatenate([[1], np.cumprod(radices)])[: len(radices)]
    for level in order:
        radix, mine, theirs = radices[level], digit[level][host], digit[level][owner]
        if within == "mesh":
            away = mine != theirs
            target = host[away] + (theirs - mine)[away] * stride[level]
            rounds.append(Round(src=host[away], dst=target, chunk=first_chunk + owner[away], keep=True))
        else:
            following = host + ((mine + 1) % radix - mine) * stride[level]
            for step in range(radix - 1):
                now = theirs == (mine - 1 - step) % radix
                rounds.append(Round(src=host[now], dst=following[now], chunk=first_chunk + owner[now], keep=True))
        stays = mine == theirs
        host, owner = host[stays], owner[stays]
    return [one for one in rounds if one.src.size]


def _reversed(one: Round) -> Round:
    return Round(src=one.dst, dst=one.src, chunk=one.chunk, keep=False)
