"""What else can limit the sum: the linear programme of `assign`, with more that can be full than NICs.

Least T such that nothing carries more than T times its capacity.  What a resource carries is linear in the shares.  In
units of M, for n workers, and for a machine whose service sums w of all workers' gradients ("flat"):

    NIC, each way       1 + (n - 2) w on a GPU machine, n w on a CPU machine: see `assign`
    CPU adder           (n - 1) w: the first contribution is the accumulator, the other n - 1 are added to it
    memory              2 NIC + 3 adder, and 2 more on a GPU machine: what arrives is written, what leaves is read; an
                        addition reads two numbers and writes one; GPUs write their gradients and read the sums
    uplink, each way    m (1 - W) + (n - m) W for a rack of m workers whose services sum W: what its workers have
                        summed elsewhere, and what its services sum for workers elsewhere

So a CPU machine touches (5n - 3) / n bytes of memory, almost 5, for each one that arrives.  That is without help from
caches, and GPUs reach the network through memory; PCIe and GPUs are never the limit.

Two levels: a service sums y for the m workers of its rack; of each such sum, one per rack with workers (R of them), a
service anywhere sums x over the racks; a is what a service sums on both levels, which need not travel to it and back.

    NIC, each way       1 + (m - 1) y + R x - 2a on a GPU machine, (m + 1) y + R x - 2a on a CPU machine
    CPU adder           (m - 1) y + (R - 1) x
    uplink, each way    (1 - X) + (R - 1) X for a rack whose services sum X over the racks; R X if it has no workers

Part of M may be summed flat and the rest on two levels: all w sum to the part, the y of each rack with workers and all
x to the rest.  Bytes can be chosen so that a = min(x, y), and all steps overlap, so there are no other conditions.

Machines that are alike get equal shares, since the mean of a fastest plan over their exchanges is as fast.  So there
are variables for each kind of machine, and the programme does not grow with n.
Pure: no I/O, no clock, no randomness.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from byteps.cluster import Cluster

_Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Solution:
    """What `least` found."""

    seconds: float
    values: _Floats
    prices: _Floats  # by row: one percent more capacity takes so many percent off T; they sum to 1


def least(slope: _Floats, fixed: _Floats, capacity: _Floats, limit: _Floats, sums: _Floats) -> Solution:
    """The least T such that fixed + slope @ values <= T * capacity, by values from 0 to their limits.

    The first row of sums @ values is 1, the others are 0.
    """
    from scipy.optimize import linprog  # here, because importing it takes 0.5 s and 74 MB

    fastest = capacity.max()
    rate = capacity / fastest  # the solver's tolerances are absolute
    solution = linprog(
        c=np.append(np.zeros(len(limit)), 1.0),
        A_ub=np.column_stack([slope, -rate]),
        b_ub=-fixed,
        A_eq=np.column_stack([sums, np.zeros(len(sums))]),
        b_eq=np.append(1.0, np.zeros(len(sums) - 1)),
        bounds=[(0.0, most) for most in limit] + [(0.0, None)],
        method="highs",
    )
    if not solution.success:
        raise RuntimeError(f"HiGHS found no shares for {capacity}: {solution.message}; this is a defect, report it")
    prices = -solution.ineqlin.marginals * rate
    values = np.clip(solution.x[:-1], 0.0, limit)  # the solver may be beyond by 1e-15
    return Solution(seconds=float(solution.fun) / fastest, values=values, prices=prices)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A cluster, and in bytes/s what else is limited on its machines, by their names; what is not named is not."""

    cluster: Cluster
    adders: Mapping[str, float] = field(default_factory=dict)  # added to an accumulator
    memories: Mapping[str, float] = field(default_factory=dict)  # read and written together

    def __post_init__(self) -> None:
        if self.cluster.n < 2:
            raise ValueError(f"n = {self.cluster.n}: one worker alone has nothing to sum; use n >= 2")
        names = {machine.name for machine in self.cluster.machines}
        for what, rates in (("adders", self.adders), ("memories", self.memories)):
            for name, rate in rates.items():
                if name not in names or not rate > 0:
                    raise ValueError(f"{what} has {name!r}: {rate}; name machines of the cluster, with rates above 0")


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """A fastest plan: fractions of M by owner index (see `assign`), and what limits it."""

    seconds: float
    flat: tuple[float, ...]  # summed for all workers
    local: tuple[float, ...]  # summed for the workers of the owner's rack
    across: tuple[float, ...]  # of such sums, summed over the racks
    binding: Mapping[str, float]  # "nic of gpu3" -> one percent more of it takes so many percent off T; they sum to 1


def flat(nbytes: float, limits: Limits) -> Optimum:
    """Every service sums its share for all workers, wherever they are."""
    return _fastest(nbytes, limits, by_flat=1.0, by_levels=0.0)


def two_level(nbytes: float, limits: Limits) -> Optimum:
    """Every rack sums its own workers' gradients; then the racks' sums are summed."""
    return _fastest(nbytes, limits, by_flat=0.0, by_levels=1.0)


def mixed(nbytes: float, limits: Limits) -> Optimum:
    """Part of every gradient flat, the rest on two levels, as is fastest."""
    return _fastest(nbytes, limits, by_flat=1.0, by_levels=1.0)


def busy_seconds(nbytes: float, limits: Limits, own: Sequence[float]) -> dict[str, float]:
    """How long each resource is busy with these flat shares, by owner index; the plan takes as long as the busiest."""
    rows = _Rows.of(limits, own)
    values = np.zeros(rows.slope.shape[1])
    values[: len(rows.kinds)] = [own[kind[0]] for kind in rows.kinds]
    seconds = nbytes * (rows.fixed + rows.slope @ values) / rows.capacity
    return {name: float(busy) for names, busy in zip(rows.names, seconds, strict=True) for name in names}


def _fastest(nbytes: float, limits: Limits, *, by_flat: float, by_levels: float) -> Optimum:
    """With at most so much of M on either way."""
    rows = _Rows.of(limits)
    size = len(rows.kinds)
    nothing = np.zeros((size, size))
    both = np.eye(size)  # a <= x and a <= y, for each kind
    aligned = np.block([[nothing, nothing, -both, both], [nothing, -both, nothing, both]])
    solution = least(
        slope=np.vstack([rows.slope, aligned]),
        fixed=np.append(rows.fixed, np.zeros(2 * size)),
        capacity=np.append(rows.capacity, np.zeros(2 * size)),
        limit=np.concatenate([np.full(size, by_flat), by_levels * rows.has_workers, np.full(2 * size, by_levels)]),
        sums=rows.sums,
    )
    by_kind = solution.values.reshape(4, size)
    shares = np.zeros((4, sum(len(kind) for kind in rows.kinds)))
    for index, kind in enumerate(rows.kinds):
        shares[:, kind] = by_kind[:, [index]]
    return Optimum(
        seconds=float(nbytes * solution.seconds),
        flat=tuple(shares[0].tolist()),
        local=tuple(shares[1].tolist()),
        across=tuple(shares[2].tolist()),
        binding={
            name: float(price) / len(names)
            for names, price in zip(rows.names, solution.prices, strict=False)  # the rest: a <= x, a <= y
            for name in names
            if price > 1e-9
        },
    )


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """carried = fixed + slope @ (w, y, x, a of each kind of machine), in units of M; and how these sum."""

    kinds: list[list[int]]  # owner indices of machines that are alike
    has_workers: _Floats  # by kind: 1 if there are workers in its rack
    names: list[list[str]]  # of the resources that share a row
    slope: _Floats
    fixed: _Floats
    capacity: _Floats
    sums: _Floats  # w and x of all machines: 1; for each kind of rack with workers, its y less all x: 0

    @classmethod
    def of(cls, limits: Limits, own: Sequence[float] = ()) -> "_Rows":
        machines = limits.cluster.gpu_machines + limits.cluster.cpu_machines
        kinds, racks = _alike(limits, own)
        n, size = float(limits.cluster.n), len(kinds)
        some = [machines[owners[0]] for owners in kinds]
        count = np.array([len(owners) for owners in kinds], dtype=float)
        gpu = np.array([machine.role == "gpu" for machine in some], dtype=float)
        at = [next(index for index, names in enumerate(racks) if machine.rack in names) for machine in some]
        holds = np.zeros((len(racks), size))  # machines of that kind in one rack of that kind
        holds[at, range(size)] = count / [len(racks[index]) for index in at]
        workers = holds @ gpu
        has_workers = (workers > 0).astype(float)
        num_racks = float(has_workers @ [len(names) for names in racks])
        local, one, nothing = workers[at], np.eye(size), np.zeros((size, size))

        nic = np.hstack([np.diag(n - 2 * gpu), np.diag(local + 1 - 2 * gpu), num_racks * one, -2 * one])
        adder = np.hstack([(n - 1) * one, np.diag(local - 1), (num_racks - 1) * one, nothing])
        flat_up = np.outer(workers, count) + (n - 2 * workers)[:, None] * holds
        level_up = np.outer(has_workers, count) + (num_racks - 2 * has_workers)[:, None] * holds
        uplink = np.hstack([flat_up, 0 * holds, level_up, 0 * holds])
        capacity = np.array(
            [machine.nic_bytes_per_s for machine in some]
            + [rates.get(machine.name, math.inf) for rates in (limits.adders, limits.memories) for machine in some]
            + [limits.cluster.uplinks.get(names[0], math.inf) for names in racks]
        )
        what = ("nic", "adder", "memory")
        names = [[f"{part} of {machines[owner].name}" for owner in owners] for part in what for owners in kinds]
        names += [[f"uplink of {rack}" for rack in alike] for alike in racks]
        limited = np.isfinite(capacity)
        of_racks = np.hstack([0 * holds, holds, -np.tile(count, (len(racks), 1)), 0 * holds])
        return cls(
            kinds=kinds,
            has_workers=has_workers[at],
            names=[alike for alike, finite in zip(names, limited, strict=True) if finite],
            slope=np.vstack([nic, adder, 2 * nic + 3 * adder, uplink])[limited],
            fixed=np.concatenate([gpu, 0 * gpu, 4 * gpu, np.zeros(len(racks))])[limited],
            capacity=capacity[limited],
            sums=np.vstack([np.concatenate([count, 0 * count, count, 0 * count]), of_racks[workers > 0]]),
        )


def _alike(limits: Limits, own: Sequence[float]) -> tuple[list[list[int]], list[list[str]]]:
    """Owner indices by kind of machine, names by kind of rack.

    Machines are alike if their rates are, and what is in their racks; and what they own, if that is given.
    """
    machines = limits.cluster.gpu_machines + limits.cluster.cpu_machines
    looks = [
        (
            machine.role,
            machine.nic_bytes_per_s,
            limits.adders.get(machine.name),
            limits.memories.get(machine.name),
            share,
        )
        for machine, share in zip(machines, own or [0.0] * len(machines), strict=True)
    ]
    content = {
        rack: frozenset(Counter(look for look, m in zip(looks, machines, strict=True) if m.rack == rack).items())
        for rack in dict.fromkeys(machine.rack for machine in machines)
    }
    kinds: dict[object, list[int]] = {}
    for owner, (look, machine) in enumerate(zip(looks, machines, strict=True)):
        kinds.setdefault((look, content[machine.rack], machine.rack == ""), []).append(owner)
    racks: dict[object, list[str]] = {}
    for rack in content:
        racks.setdefault((content[rack], rack == ""), []).append(rack)  # "" has no uplink
    return list(kinds.values()), list(racks.values())
