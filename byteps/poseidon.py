"""Sufficient factors instead of gradients, where that is fewer bytes (Poseidon, Zhang et al., USENIX ATC 2017).

The gradient of a fully connected layer of M x N weights over a batch of K samples is a sum of K outer products of a
vector of M and one of N.  A worker that sends those vectors to all others (sufficient-factor broadcasting) lets each
compute the sum itself: 2K(P1 - 1)(M + N) elements to send and receive for each of P1 workers, whatever M * N is.  A
parameter server with P2 shards beside the workers on the same machines moves 2MN(P1 + P2 - 2)/P2.  The rule takes the
smaller, layer by layer; what is no fully connected layer has no such factors.
Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from byteps.schedule import Schedule, one_round

Way = Literal["server", "factors"]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The weights of one layer; `columns` 0: it is no matrix, and has no factors."""

    rows: int
    columns: int = 0

    @property
    def elements(self) -> int:
        return self.rows * (self.columns or 1)


def server_elements(layer: Layer, workers: int, servers: int) -> float:
    """What a machine with a worker and a shard sends and receives for the layer."""
    return 2 * layer.elements * (workers + servers - 2) / servers


def factor_elements(layer: Layer, workers: int, batch: int) -> float:
    """The same for sufficient factors."""
    return 2 * batch * (workers - 1) * (layer.rows + layer.columns)


def choose(layers: Sequence[Layer], *, workers: int, servers: int, batch: int) -> list[Way]:
    """The cheaper way for every layer; where both cost the same, the factors."""
    if workers < 1 or servers < 1 or batch < 1:
        raise ValueError(f"{workers} workers, {servers} servers, batch {batch}; use 1 or more of each")
    return [
        "factors"
        if layer.columns and factor_elements(layer, workers, batch) <= server_elements(layer, workers, servers)
        else "server"
        for layer in layers
    ]


def broadcast_factors(workers: int) -> Schedule:
    """Everybody's factors to everybody: chunk w is worker w's, so that the tensor of the schedule is all factors."""
    messages = [(src, dst, src) for src in range(workers) for dst in range(workers) if src != dst]
    return Schedule(
        name="sufficient-factor broadcasting",
        num_workers=workers,
        num_nodes=workers,
        shares=np.full(workers, 1 / workers),
        rounds=(one_round(messages, keep=False),) if messages else (),
        goal="all-gather",
        owners=np.arange(workers),
    )
