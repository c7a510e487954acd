"""Schemes in which workers pass sums on to each other: rings, trees, recursive halving and doubling.

Sources: Patarasuk and Yuan, JPDC 2009 (ring); Thakur, Rabenseifner and Gropp, IJHPCA 2005 (halving and doubling, and
the fold for numbers that are no power of two); Wang et al., INFOCOM 2019, and Geng et al., NeurIPS 2018 (on BCube).
"""

from collections.abc import Sequence

import numpy as np

from byteps.schedule import Floats, Indices, Round, Schedule, joined, one_round


def ring(n: int) -> Schedule:
    """Reduce-scatter, then all-gather, around one ring.  2(n-1)/n, 2(n-1) steps."""
    return rings("ring", [np.arange(n)])


def shuffled_ring(n: int, seed: int = 0) -> Schedule:
    """A ring laid through the workers in a seeded order: as by somebody who does not know where they stand."""
    return rings("ring at random", [np.random.default_rng(seed).permutation(n)])


def rings(name: str, orders: Sequence[Indices]) -> Schedule:
    """Several rings at once, each over all workers in its own order and with its own part of the tensor."""
    n, count = orders[0].size, len(orders)
    for order in orders:
        if sorted(order.tolist()) != list(range(n)):
            raise ValueError(f"{name}: a ring must visit each of the {n} workers once, not {order.tolist()}")
    reducing = [
        joined([_hop(order, j, -1 - step, keep=True) for j, order in enumerate(orders)]) for step in range(n - 1)
    ]
    gathering = [joined([_hop(order, j, -step, keep=False) for j, order in enumerate(orders)]) for step in range(n - 1)]
    return Schedule(
        name=name,
        num_workers=n,
        num_nodes=n,
        shares=np.full(n * count, 1 / (n * count)),
        rounds=(*reducing, *gathering),
        owners=np.concatenate(orders),
    )


def _hop(order: Indices, ring_number: int, offset: int, *, keep: bool) -> Round:
    """Everybody to the next one: position p sends the ring's chunk p + offset."""
    position = np.arange(order.size)
    chunk = ring_number * order.size + (position + offset) % order.size
    return Round(src=order, dst=np.roll(order, -1), chunk=chunk, keep=keep)


def bcube_rings(ports: int, levels: int) -> Schedule:
    """As many rings on BCube(ports, levels) as a host has NICs, no two of which ever use the same one.

    One level: the ring of a star.  Two: a modular Gray code, which counts up the lower digit and, where the digits sum
    to -1, the upper one; and the same with the digits exchanged, which uses the other NIC everywhere.
    """
    if levels not in (1, 2):
        raise ValueError(f"BCube of {levels} levels: rings that never share a NIC are known here for 1 and 2 levels")
    if levels == 1:
        return rings("multi-ring", [np.arange(ports)])
    upper, lower = _gray_code(ports)
    return rings("multi-ring", [upper * ports + lower, lower * ports + upper])


def bcube_ring(ports: int) -> Schedule:
    """One ring on BCube(ports, 2), every hop of which is direct: the first of `bcube_rings`."""
    upper, lower = _gray_code(ports)
    return rings("ring", [upper * ports + lower])


def _gray_code(base: int) -> tuple[Indices, Indices]:
    """Both digits of base^2 numbers, of which two in a row, and the last and the first, differ in one digit by 1."""
    position = np.arange(base * base)
    return position // base, (position - position // base) % base


def tree(n: int, pieces: int = 1) -> Schedule:
    """Up a binary tree and down again, in pieces that follow each other.  An inner node receives 3 times the tensor."""
    if pieces < 1:
        raise ValueError(f"{pieces} pieces; use 1 or more")
    depth = np.floor(np.log2(np.arange(n) + 1)).astype(int)
    edges = [(child, (child - 1) // 2) for child in range(1, n)]
    deepest = int(depth.max())
    up = [
        one_round(
            (
                (child, parent, step - (deepest - depth[child]))
                for child, parent in edges
                if 0 <= step - (deepest - depth[child]) < pieces
            ),
            keep=True,
        )
        for step in range(pieces + deepest - 1)
    ]
    down = [
        one_round(
            ((parent, child, step - depth[parent]) for child, parent in edges if 0 <= step - depth[parent] < pieces),
            keep=False,
        )
        for step in range(pieces + deepest - 1)
    ]
    return Schedule(
        name="tree",
        num_workers=n,
        num_nodes=n,
        shares=np.full(pieces, 1 / pieces),
        rounds=tuple(one for one in (*up, *down) if one.src.size),
        owners=np.zeros(pieces, dtype=np.intp),
    )


def halving_doubling(n: int) -> Schedule:
    """Recursive halving, then recursive doubling.  2(n-1)/n and 2 log2(n) steps for a power of two.

    Beyond the largest power of two in n, every further worker first hands its whole tensor to one of the others, and
    gets the sum from it at the end.
    """
    core = 1 << (n.bit_length() - 1)
    extra = [(core + i, i) for i in range(n - core)]
    chunks = np.arange(core)
    node, chunk = np.repeat(chunks, core), np.tile(chunks, core)
    halving: list[Round] = []
    doubling: list[Round] = []
    distance = core // 2
    while distance:
        higher = ~(2 * distance - 1)
        mine = (node & higher) == (chunk & higher)  # the node still works on these chunks
        gives = mine & ((node ^ chunk) & distance != 0)
        halving.append(Round(src=node[gives], dst=node[gives] ^ distance, chunk=chunk[gives], keep=True))
        has = mine & ((node ^ chunk) & distance == 0)
        doubling.append(Round(src=node[has], dst=node[has] ^ distance, chunk=chunk[has], keep=False))
        distance //= 2
    fold = one_round(((far, near, c) for far, near in extra for c in range(core)), keep=True)
    unfold = one_round(((near, far, c) for far, near in extra for c in range(core)), keep=False)
    return Schedule(
        name="halving and doubling",
        num_workers=n,
        num_nodes=n,
        shares=_equal(core),
        rounds=tuple(one for one in (fold, *halving, *reversed(doubling), unfold) if one.src.size),
        owners=chunks,
    )


def hierarchical(groups: int, size: int) -> Schedule:
    """Reduce to the first of each group, a ring of those, broadcast in each group (Jia et al., arXiv:1807.11205).

    Group g has the workers from g * size on.
    """
    n = groups * size
    leaders = np.arange(groups) * size
    inner = rings("leaders", [np.arange(groups)])
    members = [(g * size + i, g * size, c) for g in range(groups) for i in range(1, size) for c in range(groups)]
    between = [
        Round(src=leaders[one.src], dst=leaders[one.dst], chunk=one.chunk, keep=one.keep) for one in inner.rounds
    ]
    rounds = [one_round(members, keep=True), *between]
    rounds.append(one_round(((leader, member, c) for member, leader, c in members), keep=False))
    return Schedule(
        name="hierarchical all-reduce",
        num_workers=n,
        num_nodes=n,
        shares=_equal(groups),
        rounds=tuple(one for one in rounds if one.src.size),
        owners=leaders[inner.owners],
    )


def _equal(count: int) -> Floats:
    return np.full(count, 1 / count)
