"""What the schemes cost by formula: bandwidth and start-ups, to compare with what the schedules themselves carry.

Symbols: N hosts, B bytes/s of every NIC each way, W bytes of the tensor; on BCube(n, h) N = n^h, and h NICs per host.
A cost is `carried` W / B + `startups` times the start-up of a message.  On Fat-Tree the formulas hold for the NICs:
paths that collide (ECMP) come on top.
Sources: Patarasuk and Yuan 2009; Thakur et al. 2005; Geng et al. 2018; Wang et al. 2019; those for relaying on BCube
and for rotated threads are derived in docs/schemes.md.
Pure: no I/O, no clock, no randomness.
"""

from dataclasses import dataclass
from math import ceil, log2


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one synchronisation."""

    carried: float  # bytes through the most loaded NIC, one way, as a multiple of the tensor
    startups: int  # messages one after the other

    def seconds(self, nbytes: float, bytes_per_s: float, startup_seconds: float = 0.0) -> float:
        return self.carried * nbytes / bytes_per_s + self.startups * startup_seconds


def mesh(n: int) -> Cost:
    return Cost(carried=2 * (n - 1) / n, startups=2 if n > 1 else 0)


def mesh_on_bcube(ports: int, levels: int) -> Cost:
    """Relayed by hosts: a pair of Hamming distance d costs d hops, h(n-1)/n N in all for every host and phase."""
    return Cost(carried=2 * (ports - 1) / ports, startups=2)


def ring(n: int) -> Cost:
    return Cost(carried=2 * (n - 1) / n, startups=2 * (n - 1))


def rings_on_bcube(ports: int, levels: int) -> Cost:
    """As many rings as NICs, none of which share one."""
    n = ports**levels
    return Cost(carried=2 * (n - 1) / n / levels, startups=2 * (n - 1))


def levels_on_bcube(ports: int, levels: int, *, ring_within: bool = False) -> Cost:
    """HiPS and BML, as many threads as levels."""
    n = ports**levels
    return Cost(carried=2 * (n - 1) / n / levels, startups=2 * levels * (ports - 1 if ring_within else 1))


def halving_doubling(n: int) -> Cost:
    """The fold of a number that is no power of two carries the whole tensor once more each way."""
    core = 1 << (n.bit_length() - 1)
    fold = n > core
    return Cost(carried=2 * (core - 1) / core + fold, startups=2 * round(log2(core)) + 2 * fold)


def tree(n: int, pieces: int) -> Cost:
    """A node with two children receives the tensor from both, and the sum from its parent if it has one."""
    depth = ceil(log2(n + 1)) - 1
    received = 0 if n == 1 else 1 if n == 2 else 2 if n <= 4 else 3
    return Cost(carried=received, startups=2 * (pieces + depth - 1) if n > 1 else 0)


def parameter_server(n: int, k: int) -> Cost:
    return Cost(carried=max(1.0, n / k), startups=2)


def byteps(n: int, k: int) -> Cost:
    """The paper's optimum, D = n^2 + kn - 2k."""
    return Cost(carried=2 * n * (n - 1) / (n * n + k * n - 2 * k), startups=2)


def in_network() -> Cost:
    """A switch that sums: the tensor goes up once and comes down once."""
    return Cost(carried=1.0, startups=2)


def torus(rows: int, columns: int) -> Cost:
    n = rows * columns
    return Cost(carried=2 * (n - 1) / n, startups=2 * (columns - 1) + 2 * (rows - 1))


def hierarchical(groups: int, size: int) -> Cost:
    """The first of a group receives every member's tensor, and takes part in the ring of the firsts."""
    return Cost(carried=size - 1 + 2 * (groups - 1) / groups, startups=2 * (size > 1) + 2 * (groups - 1))
