"""The schemes of the literature side by side: by formula, counted, simulated, and beside what was published.

    topologies    mesh, ring, HiPS on Fat-Tree and BCube, W/B: 9, about 250 and 1024 servers
    levels        HiPS from one level to eight: from the bandwidth's side to the start-ups'
    bml           VGG-19 and LeNet-5 on BCube(3,2) against one NIC per server
    merging       MG-WFBP's rule against layer by layer and all at once, with the constants of its authors
    aggregation   a switch that sums, and PHub's box with 1 to 10 NICs, against ring and parameter server
    choices       irregular networks: the fastest by simulation against every fixed choice

Nothing here was run on hosts; `docs/schemes.md` says what is left out (headers, PFC, DCQCN, incast).
Pure, except that models are read from their files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from byteps import choose, network
from byteps.merge import AlphaBeta, Gradient, exposed_seconds, merged
from byteps.network import Network
from byteps.schedule import Schedule
from byteps.scheduled import estimate
from byteps.schedules import costs, levels, passed, served
from experiments import workloads
from experiments.workloads import Workload

GBIT = 1e9 / 8
STARTUP_SECONDS = 14e-6  # NCCL's own model of a ring's step over a network (src/graph/tuning.cc, protocol Simple)
SEEDS = range(3)  # of ECMP's hash


@dataclass(frozen=True, kw_only=True)
class Point:
    """A scheme on a topology; times as multiples of W/B."""

    scheme: str
    topology: str
    servers: int
    formula: float
    times: tuple[float, ...]  # by seed where paths are hashed, else one

    @property
    def median(self) -> float:
        return float(np.median(self.times))


@cache
def topologies(servers: int) -> list[Point]:
    """Of about so many servers: 9 on a star (one NIC) and BCube(3,2); 250 or 256; 1024.  Fat-Trees: each seed."""
    ports, tree_ports = {9: (3, 0), 256: (16, 10), 1024: (32, 16)}[servers]
    n = ports * ports
    bcube = network.bcube(ports, 2, 1.0)
    one_nic = (
        [network.fat_tree(tree_ports, 1.0, seed=seed) for seed in SEEDS] if tree_ports else [network.star([1.0] * n)]
    )
    flat = one_nic[0].num_hosts
    side = {9: 3, 250: 10, 1024: 32}[flat]
    hips = levels.levels("HiPS", [side, flat // side], threads=2, within="mesh")
    shuffled = passed.shuffled_ring(flat)
    # what a NIC carries is the same for all three on one NIC; what collides on the way is not in the formula
    return [
        _point("mesh", served.mesh(flat), one_nic, costs.mesh(flat).carried),
        _point("ring in order", passed.ring(flat), one_nic, costs.ring(flat).carried),
        _point("ring at random", shuffled, one_nic, costs.ring(flat).carried),
        _point("HiPS", hips, one_nic, costs.ring(flat).carried),
        _point("mesh", served.mesh(n), [bcube], costs.mesh_on_bcube(ports, 2).carried),
        _point("one ring", passed.bcube_ring(ports), [bcube], costs.ring(n).carried),
        _point("2 rings", passed.bcube_rings(ports, 2), [bcube], costs.rings_on_bcube(ports, 2).carried),
        _point("HiPS, BML", levels.bml(ports, 2), [bcube], costs.levels_on_bcube(ports, 2).carried),
    ]


def _point(scheme: str, schedule: Schedule, networks: Sequence[Network], formula: float) -> Point:
    return Point(
        scheme=scheme,
        topology=networks[0].name,
        servers=networks[0].num_hosts,
        formula=formula,
        times=tuple(estimate(schedule, 1.0, one).seconds for one in networks),
    )


LEVELS = {1: 256, 2: 16, 4: 4, 8: 2}  # how many hosts a group of each level has, so that there are 256 in all


def level_seconds(count: int, nbytes: float, *, nic_bytes_per_s: float = 40 * GBIT) -> float:
    """HiPS of so many levels on BCube, every level with a NIC of this rate, meshes within."""
    return costs.levels_on_bcube(LEVELS[count], count).seconds(nbytes, nic_bytes_per_s, STARTUP_SECONDS)


def ring_seconds(nbytes: float, *, n: int = 256, nic_bytes_per_s: float = 40 * GBIT) -> float:
    return costs.ring(n).seconds(nbytes, nic_bytes_per_s, STARTUP_SECONDS)


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """A training iteration on two networks."""

    model: str
    batch: int  # per server
    star_seconds: float
    bcube_seconds: float

    @property
    def saved(self) -> float:
        return 1 - self.bcube_seconds / self.star_seconds


BML_BATCHES: Mapping[str, tuple[int, ...]] = {"vgg19": (8, 16, 32, 64), "lenet5": (128, 256, 512, 1024)}
# A server of BML's testbed: two K40c of 4.29 TFLOP/s, against the V100's 15.7 that the models' times are for.
_K40_PAIR = 2 * 4.29 / 15.7


def bml(nic_bytes_per_s: float = 10 * GBIT) -> list[Iteration]:
    """Nine servers: the parameter server co-hosted on one NIC, and BML on both NICs of BCube(3,2).

    Tensors are sent one by one as they become ready; what is left after the backward pass is waited for.
    """
    flat, cube = costs.mesh(9), costs.levels_on_bcube(3, 2)
    found = []
    for name, batches in BML_BATCHES.items():
        model = workloads.with_times(workloads.read(name))
        published_batch = next(iter(workloads.read(name).timing.values())).batch
        for batch in batches:
            gradients = _gradients(model, batch / published_batch / _K40_PAIR)
            compute = model.iteration_seconds * batch / published_batch / _K40_PAIR
            single = [[index] for index in range(len(gradients))]
            star, bcube = (
                compute + exposed_seconds(gradients, single, _alpha_beta(cost, nic_bytes_per_s))
                for cost in (flat, cube)
            )
            found.append(Iteration(model=name, batch=batch, star_seconds=star, bcube_seconds=bcube))
    return found


def _alpha_beta(cost: costs.Cost, nic_bytes_per_s: float) -> AlphaBeta:
    return AlphaBeta(startup_seconds=cost.startups * STARTUP_SECONDS, seconds_per_byte=cost.carried / nic_bytes_per_s)


def _gradients(model: Workload, slower: float, scale: float = 1.0) -> list[Gradient]:
    return [
        Gradient(nbytes=tensor.nbytes / scale, ready_seconds=tensor.ready_seconds * slower)
        for tensor in sorted(model.tensors, key=lambda one: one.ready_seconds)
    ]


def mgwfbp_cost(n: int) -> AlphaBeta:
    """An all-reduce on the authors' 10 GbE: their simulator's constants, 9 Gbit/s and 1.2 times the bytes."""
    return AlphaBeta(startup_seconds=2 * n * 45.25e-6, seconds_per_byte=2 * (n - 1) / n * 1.2 / (9 * GBIT))


# Totals of images per second on 8 nodes of one K80 (the authors' plot script): layer by layer, MG-WFBP, all at once.
MGWFBP_MEASURED: Mapping[str, tuple[float, float, float]] = {
    "googlenet": (1006.4, 1210.9, 889.3),
    "resnet50": (465.6, 566.6, 406.4),
}
_K80_SECONDS: Mapping[str, float] = {"googlenet": 64 / 163.4, "resnet50": 32 / 76.9}
_K80_BATCH: Mapping[str, int] = {"googlenet": 64, "resnet50": 32}


@dataclass(frozen=True, kw_only=True)
class Merging:
    """Images per second of n nodes in all, predicted."""

    model: str
    n: int
    layerwise: float
    merged: float
    single: float
    groups: int  # that MG-WFBP sends


def merging(model: str, n: int, cost: AlphaBeta, *, scale: float = 1.0, dilation: float = 1.0) -> Merging:
    """The three ways with computation at the K80's published rate.

    `scale`, `dilation`: tensors so many times smaller, computation so many times longer, as in replays; rates are those
    of the cluster that this stands for.
    """
    found = workloads.with_times(workloads.read(model))
    compute = _K80_SECONDS[model] * dilation
    gradients = _gradients(found, compute / found.iteration_seconds, scale)
    by_rule = merged(gradients, cost)
    ways = ([[index] for index in range(len(gradients))], by_rule, [list(range(len(gradients)))])
    images = n * _K80_BATCH[model] * dilation
    rates = [images / (compute + exposed_seconds(gradients, way, cost)) for way in ways]
    return Merging(model=model, n=n, layerwise=rates[0], merged=rates[1], single=rates[2], groups=len(by_rule))


def aggregation(n: int) -> dict[str, float]:
    """W/B of n workers: what the most loaded NIC carries."""
    return {
        "ring": costs.ring(n).carried,
        "parameter server on n machines": costs.parameter_server(n, n).carried,
        "parameter server on one machine": costs.parameter_server(n, 1).carried,
        "a switch that sums": costs.in_network().carried,
    }


def box(n: int, interfaces: int) -> float:
    """W/B of n workers and PHub's box with so many NICs, in pieces that overlap."""
    flat = network.star([1.0] * (n + interfaces))
    (found,) = choose.rank([served.phub(n, interfaces, pieces=8)], 1.0, flat)
    return found.seconds


@cache
def irregular() -> dict[str, tuple[Network, tuple[int, int]]]:
    """Networks of 16 hosts on which no scheme is at home."""
    rate = 10 * GBIT
    slow_star = [rate] * 16
    slow_star[5] = rate / 4
    cube = network.bcube(4, 2, rate)
    return {
        "star": (network.star([rate] * 16), (0, 0)),
        "star, one NIC of a quarter": (network.star(slow_star), (0, 0)),
        "4 racks, 4:1": (network.racks([rate] * 16, [i // 4 for i in range(16)], [rate] * 4), (0, 0)),
        "Fat-Tree(4), hashed paths": (network.fat_tree(4, rate), (0, 0)),
        "BCube(4,2)": (cube, (4, 2)),
        "BCube(4,2), one link of a tenth": (cube.with_rates({"h6.0.out": rate / 10, "h6.0.in": rate / 10}), (4, 2)),
    }


CHOICE_SIZES = (10_000.0, 1_000_000.0, 100_000_000.0)


@cache
def choices() -> dict[tuple[str, float], dict[str, float]]:
    """By network and bytes: seconds of every scheme that can run there."""
    found = {}
    for title, (net, bcube) in irregular().items():
        schedules = choose.fitting(16, bcube=bcube, group=4)
        for nbytes in CHOICE_SIZES:
            ranked = choose.rank(schedules, nbytes, net, startup_seconds=STARTUP_SECONDS)
            found[title, nbytes] = {one.name: one.seconds for one in ranked}
    return found


def regrets() -> dict[str, tuple[float, float]]:
    """By scheme that runs on all networks: geometric mean and worst of its time over the chosen one's."""
    table = choices()
    common = set.intersection(*(set(row) for row in table.values()))
    result = {}
    for scheme in sorted(common):
        ratios = [row[scheme] / min(row.values()) for row in table.values()]
        result[scheme] = (float(np.exp(np.mean(np.log(ratios)))), max(ratios))
    return result
