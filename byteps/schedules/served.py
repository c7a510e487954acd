"""Schemes in which every chunk has one owner, who sums it and sends the sum to all workers.

They differ in who owns how much: the workers alike (mesh, which is the co-hosted parameter server: all-to-all), servers
beside them (the parameter server, whole tensors or shards), both by the optimum (BytePS), the interfaces of one box
(PHub), or a switch (in-network aggregation).  Two rounds each.

Sources: BytePS, OSDI 2020, section 4.1; PHub, SoCC 2018, sections 3 and 4; DAIET, HotNets 2017; SwitchML, NSDI 2021.
"""

from collections.abc import Sequence

import numpy as np

from byteps.assign import cluster_shares
from byteps.cluster import Cluster
from byteps.schedule import Floats, Indices, Round, Schedule


def served(
    name: str,
    num_workers: int,
    num_nodes: int,
    owners: Sequence[int],
    shares: Floats,
    *,
    pieces: int = 1,
    ahead: int = 1,
) -> Schedule:
    """Every worker sends every chunk to its owner, and gets the sum from there.

    In so many pieces of every chunk, so that the sums of one travel while the next is collected; `ahead` of them are
    sent before the first sum is.
    """
    _at_least_one("pieces", pieces)
    _at_least_one("pieces ahead", ahead)
    owner = np.tile(np.asarray(owners, dtype=np.intp), pieces)
    every = [_from_all(num_workers, owner, piece * len(owners) + np.arange(len(owners))) for piece in range(pieces)]
    pushes = [_to(messages, keep=True) for messages in every if messages[0].size]
    pulls = [_back(messages) for messages in every if messages[0].size]
    rounds = pushes[:ahead]
    for piece, pull in enumerate(pulls):
        rounds += [pull, *pushes[piece + ahead : piece + ahead + 1]]
    return Schedule(
        name=name,
        num_workers=num_workers,
        num_nodes=num_nodes,
        shares=np.tile(np.asarray(shares) / pieces, pieces),
        rounds=tuple(rounds),
        owners=owner,
    )


def mesh(n: int, *, pieces: int = 1) -> Schedule:
    """All-to-all among n workers, each of which owns 1/n: the co-hosted parameter server.  2(n-1)/n, two steps."""
    return served("mesh", n, n, range(n), np.full(n, 1 / n), pieces=pieces)


def relayed_mesh(n: int, *, pieces: int = 16) -> Schedule:
    """A mesh for hosts that relay whole messages, such as BCube's.

    A connection sends in the order of the schedule.  So in a mesh a host's next piece but one waits for the sum of the
    first, and that for relays: NICs stand still meanwhile, once in every piece (0.8 of the bound on BCube(3,2), however
    many there are).  With a second piece ahead they have something to send, and one relayed chunk at the end is left:
    1/(3 pieces) of the bound on BCube(3,2).
    """
    return served("mesh, relayed", n, n, range(n), np.full(n, 1 / n), pieces=pieces, ahead=2)


def parameter_server(n: int, k: int, *, pieces: int = 1) -> Schedule:
    """k servers beside n workers, every tensor sharded alike.  max(1, n/k) for the NICs, two steps."""
    _at_least_one("servers", k)
    return served("parameter server", n, n + k, range(n, n + k), np.full(k, 1 / k), pieces=pieces)


def whole_tensors(n: int, k: int, nbytes: Sequence[int]) -> Schedule:
    """k servers beside n workers, every tensor on one of them: always on the one with the fewest bytes so far.

    A chunk is a tensor; `nbytes` are their sizes, in the order of their registration.
    """
    _at_least_one("servers", k)
    load, owners = np.zeros(k), []
    for size in nbytes:
        owners.append(n + int(np.argmin(load)))
        load[owners[-1] - n] += size
    return served("parameter server, whole tensors", n, n + k, owners, np.asarray(nbytes) / sum(nbytes))


def byteps(cluster: Cluster, *, pieces: int = 1) -> Schedule:
    """BytePS: GPU and CPU machines own what makes all NICs finish together (`byteps.assign`).  n/(D/(2(n-1)))."""
    shares = np.asarray(cluster_shares(cluster).all)
    owners = np.flatnonzero(shares > 0)
    own = shares[owners] / shares.sum()
    return served("BytePS", cluster.n, cluster.n + cluster.k, owners.tolist(), own, pieces=pieces)


def in_network(n: int) -> Schedule:
    """The switch, which is node n, sums what passes it: every worker sends and receives the tensor once."""
    return served("in-network aggregation", n, n + 1, [n], np.ones(1))


def phub(n: int, interfaces: int, *, pieces: int = 1) -> Schedule:
    """One box with several interfaces, the nodes from n on; chunks are spread over them.  max(1, n/interfaces)."""
    _at_least_one("interfaces", interfaces)
    owners = range(n, n + interfaces)
    return served("PHub", n, n + interfaces, owners, np.full(interfaces, 1 / interfaces), pieces=pieces)


def racks_of_boxes(racks: int, per_rack: int) -> Schedule:
    """PHub across racks: a box in every rack sums its workers' tensors, the boxes sum all-to-all, and the way back.

    Workers of rack r are the nodes from r * per_rack on, boxes the nodes after all workers.
    """
    _at_least_one("racks", racks)
    n = racks * per_rack
    worker = np.arange(n)
    box = n + worker // per_rack
    chunks = np.arange(racks)
    up = _to((np.repeat(worker, racks), np.repeat(box, racks), np.tile(chunks, n)), keep=True)
    rounds = [up]
    if racks > 1:
        pairs = [(n + r, n + c, c) for r in range(racks) for c in range(racks) if r != c]
        across = tuple(np.array(column, dtype=np.intp) for column in zip(*pairs, strict=True))
        rounds += [_to(across, keep=True), _back(across)]
    rounds.append(Round(src=up.dst, dst=up.src, chunk=up.chunk, keep=False))
    return Schedule(
        name="PHub across racks",
        num_workers=n,
        num_nodes=n + racks,
        shares=np.full(racks, 1 / racks),
        rounds=tuple(rounds),
        owners=n + chunks,
    )


_Messages = tuple[Indices, ...]  # senders, receivers, chunks


def _from_all(num_workers: int, owner: Indices, chunks: Indices) -> _Messages:
    src = np.repeat(np.arange(num_workers), chunks.size)
    chunk = np.tile(chunks, num_workers)
    remote = src != owner[chunk]
    return src[remote], owner[chunk][remote], chunk[remote]


def _to(messages: _Messages, *, keep: bool) -> Round:
    return Round(src=messages[0], dst=messages[1], chunk=messages[2], keep=keep)


def _back(messages: _Messages) -> Round:
    return Round(src=messages[1], dst=messages[0], chunk=messages[2], keep=False)


def _at_least_one(what: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"{count} {what}; use 1 or more")
