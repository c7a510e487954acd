"""What connects hosts: links with rates, and the links on the way from one host to another.

    star      every host with one NIC on a switch that is never the limit
    fat_tree  k-port switches in three layers, k^3/4 hosts; equal paths are chosen by a hash of the flow (ECMP)
    bcube     BCube(n, h): n^h hosts with h NICs, one per level; a host's NIC of level l is on the switch of all hosts
              whose addresses differ from its own in digit l alone; hosts relay for each other, digit by digit

Links have one direction, and a name like "h3.1.out" (host 3, NIC 1, what it sends).  Ways are found for whole arrays of
(source, destination) pairs at once, since a round of 1024 hosts all-to-all has a million.
Sources: Al-Fares et al., SIGCOMM 2008 (Fat-Tree); Guo et al., SIGCOMM 2009 (BCube; its BCube_k has k + 1 levels).
Pure: no I/O, no clock; ECMP's hash is seeded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from byteps.schedule import Floats, Indices
from byteps.schedules.levels import digits

NOWHERE = -1  # pads the ways that are shorter than the longest


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """Hosts 0 to `num_hosts` - 1, links 0 to len(`rates`) - 1."""

    name: str
    num_hosts: int
    rates: Floats  # bytes/s by link
    link_names: tuple[str, ...]
    ways: Callable[[Indices, Indices], Indices]  # sources, destinations -> one row of links per pair, padded
    num_switches: int = 1

    def __post_init__(self) -> None:
        if self.rates.size != len(self.link_names) or not (self.rates > 0).all():
            raise ValueError(f"{self.name}: {self.rates.size} rates for {len(self.link_names)} links; all above 0")

    def way(self, src: int, dst: int) -> tuple[str, ...]:
        """The links of one pair, by name."""
        (row,) = self.ways(np.array([src]), np.array([dst]))
        return tuple(self.link_names[link] for link in row if link != NOWHERE)

    def with_rates(self, changed: Mapping[str, float]) -> "Network":
        """The same with other rates on some links: an irregular cluster.  ValueError for a link that it has not."""
        known = {name: index for index, name in enumerate(self.link_names)}
        rates = self.rates.copy()
        for name, rate in changed.items():
            if name not in known:
                raise ValueError(f"{self.name} has no link {name!r}; it has {', '.join(self.link_names[:4])}, ...")
            rates[known[name]] = rate
        return replace(self, rates=rates)


def star(rates: Sequence[float]) -> Network:
    """Hosts with one NIC each, of these bytes/s each way."""
    n = len(rates)
    names = [f"h{i}.0.{way}" for way in ("out", "in") for i in range(n)]

    def ways(src: Indices, dst: Indices) -> Indices:
        return np.stack([src, n + dst], axis=1)

    return Network(
        name="star", num_hosts=n, rates=np.tile(np.asarray(rates, float), 2), link_names=tuple(names), ways=ways
    )


def racks(rates: Sequence[float], rack_of: Sequence[int], uplinks: Sequence[float]) -> Network:
    """A star whose hosts stand in racks, each with one uplink of these bytes/s each way; rack -1: beside all racks."""
    flat, n, count = star(rates), len(rates), len(uplinks)
    if len(rack_of) != n or min(rack_of) < -1 or max(rack_of) >= count:
        raise ValueError(
            f"racks {list(rack_of)[:4]}... for {n} hosts and {count} uplinks; give one of -1 to {count - 1} each"
        )
    rack = np.asarray(rack_of)

    def ways(src: Indices, dst: Indices) -> Indices:
        leaves = rack[src] != rack[dst]
        up = np.where(leaves & (rack[src] >= 0), 2 * n + rack[src], NOWHERE)
        down = np.where(leaves & (rack[dst] >= 0), 2 * n + count + rack[dst], NOWHERE)
        return np.stack([src, up, down, n + dst], axis=1)

    return Network(
        name="racks",
        num_hosts=n,
        rates=np.concatenate([flat.rates, np.tile(np.asarray(uplinks, float), 2)]),
        link_names=(*flat.link_names, *(f"r{i}.{way}" for way in ("up", "down") for i in range(count))),
        ways=ways,
        num_switches=1 + count,
    )


def fat_tree(ports: int, rate: float, *, seed: int = 0) -> Network:
    """All links of one rate.  `seed` is that of ECMP's hash; a flow, that is a pair of hosts, keeps its path."""
    if ports < 2 or ports % 2:
        raise ValueError(f"fat tree of switches with {ports} ports; use an even number of 2 or more")
    half = ports // 2
    hosts, edges = ports * half * half, ports * half
    # Six groups of links, by what they lead from and to; an aggregation switch has `half` links each way.
    groups = ("host-edge", "edge-aggregation", "aggregation-core", "core-aggregation", "aggregation-edge", "edge-host")
    names = [f"{group}.{i}" for group in groups for i in range(hosts)]
    assert edges * half == hosts

    def ways(src: Indices, dst: Indices) -> Indices:
        edge_of, pod_of = src // half, src // (half * half)
        edge_to, pod_to = dst // half, dst // (half * half)
        choice = _hash(src * hosts + dst, seed)
        up, core = choice % half, choice // half % half  # aggregation switch of the pod; core switch of that
        far, farther = edge_of != edge_to, pod_of != pod_to
        aggregation_of, aggregation_to = pod_of * half + up, pod_to * half + up
        columns = [
            src,
            np.where(far, hosts + edge_of * half + up, NOWHERE),
            np.where(farther, 2 * hosts + aggregation_of * half + core, NOWHERE),
            np.where(farther, 3 * hosts + aggregation_to * half + core, NOWHERE),
            np.where(far, 4 * hosts + edge_to * half + up, NOWHERE),
            5 * hosts + dst,
        ]
        return np.stack(columns, axis=1)

    return Network(
        name=f"Fat-Tree({ports})",
        num_hosts=hosts,
        rates=np.full(6 * hosts, float(rate)),
        link_names=tuple(names),
        ways=ways,
        num_switches=5 * ports * ports // 4,
    )


def bcube(ports: int, levels: int, rate: float) -> Network:
    """Every NIC of one rate.  A pair that differs in several digits is relayed by hosts in between, lowest first."""
    if ports < 2 or levels < 1:
        raise ValueError(f"BCube({ports}, {levels}): use 2 or more ports and 1 or more levels")
    digit = digits([ports] * levels)
    hosts = digit.shape[1]
    names = [f"h{i}.{level}.{way}" for way in ("out", "in") for level in range(levels) for i in range(hosts)]

    def ways(src: Indices, dst: Indices) -> Indices:
        columns = []
        now = src
        for level in range(levels):
            then = now + (digit[level][dst] - digit[level][now]) * ports**level
            moves = then != now
            columns.append(np.where(moves, level * hosts + now, NOWHERE))
            columns.append(np.where(moves, (levels + level) * hosts + then, NOWHERE))
            now = then
        return np.stack(columns, axis=1)

    return Network(
        name=f"BCube({ports},{levels})",
        num_hosts=hosts,
        rates=np.full(2 * levels * hosts, float(rate)),
        link_names=tuple(names),
        ways=ways,
        num_switches=levels * ports ** (levels - 1),
    )


def hops(src: int, dst: int, ports: int, levels: int) -> tuple[tuple[int, int], ...]:
    """The way of a message on BCube(ports, levels): for every hop, the NIC by which it leaves, and the next host."""
    found: list[tuple[int, int]] = []
    now = src
    for level in range(levels):
        then = now + (dst // ports**level % ports - now // ports**level % ports) * ports**level
        if then != now:
            found.append((level, then))
        now = then
    return tuple(found)


def _hash(values: Indices, seed: int) -> Indices:
    """Of each value, the same in every process: splitmix64's finaliser."""
    with np.errstate(over="ignore"):
        z = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15) * np.uint64(seed + 1)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(2)).astype(np.intp)
