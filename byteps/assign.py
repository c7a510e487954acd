"""Who sums what: the share of every gradient that each summation service gets.

Symbols, as in the paper: n GPU machines, k CPU machines, M gradient bytes, one NIC of B bytes/s each way.  A service is
known by its owner index: GPU machines first (0 .. n-1), then CPU machines (n .. n+k-1), as in `Shares.all`.

A GPU machine sends (M - own) as a client and (n - 1) * own as a server, M + (n - 2) * own in all; a CPU machine sends
n * own; each receives as much.  Let all finish at T:  M + (n - 2) g = n c = T B,  and  n g + k c = M.  Hence, with
D = n^2 + kn - 2k,  c = 2(n - 1) M / D  and  g = (n - k) M / D,  T = 2n(n - 1) M / (D B).  No plan is faster: every
machine is busy until T, and any byte moved to another service makes that machine later.  k > n brings nothing, since a
GPU machine carries M even if it sums nothing.

Unequal NICs make it a linear programme: least T such that carried_i <= T * B_i and the shares sum to M.  It needs no
solver.  By T, machine i may own min(limit_i, (T * B_i - fixed_i) / slope_i), which only grows with T; the T at which
these sum to M is found by sorting the moments at which machines reach their limits.
`place` turns shares into an owner for every partition; `hash_slot` is the paper's own rule, which needs no table but
only approximates the shares.
Pure: no I/O, no clock, no randomness.
"""

import bisect
import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from byteps.cluster import Cluster

_Floats = NDArray[np.float64]
_MASK64 = 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The fraction of M that each service sums; the fractions sum to 1."""

    gpu: tuple[float, ...]  # of each GPU machine's own service, in the order of the machines
    cpu: tuple[float, ...]  # of each CPU machine
    notice: str = ""  # one sentence for the user, where the plan is not what the cluster suggests

    @property
    def all(self) -> tuple[float, ...]:
        """By owner index."""
        return self.gpu + self.cpu


def paper_shares(n: int, k: int) -> Shares:
    """The closed form for equal NICs: 2(n - 1)/D on each CPU machine, (n - k)/D on each GPU machine.

    With n = 1 there is nothing to sum; where the job is distributed all the same, the k servers share equally.
    """
    weights = slot_weights(n, k)
    slots = sum(weights)
    shares = [weight / slots for weight in weights]
    notice = ""
    if k > n > 1:
        notice = (
            f"{k} CPU machines for {n} GPU machines are {k - n} more than can help: "
            f"each GPU machine's own NIC is the limit from {n} on; all {k} share the sum"
        )
    return Shares(gpu=tuple(shares[:n]), cpu=tuple(shares[n:]), notice=notice)


def slot_weights(n: int, k: int) -> list[int]:
    """The shares of `paper_shares` as integers by owner: the slots of [0, D) that each service owns."""
    if n < 1 or k < 0:
        raise ValueError(f"n = {n}, k = {k}: a cluster has at least 1 GPU machine and 0 or more CPU machines")
    if n == 1 or k > n:
        return [0] * n + [1] * k if k else [1]
    return [n - k] * n + [2 * (n - 1)] * k


def cluster_shares(cluster: Cluster) -> Shares:
    """The fastest shares: the closed form where all NICs are equal, else the linear programme."""
    return paper_shares(cluster.n, cluster.k) if cluster.equal_nics else programme_shares(cluster)


def programme_shares(cluster: Cluster) -> Shares:
    """The fastest shares for any NICs, in three steps.

    1. Least T.  Machines that carry T * B_i in every such plan are *forced*: all of them where the sum of what the
       machines can take by T is just M, else the GPU machines whose own M takes T.
    2. Least time T' in which the others can be done, the forced ones at T.
    3. Now T or T' says how much each machine may own.  Within that, own_i in proportion to B_i: each has
       min(limit_i, c * B_i), with the c that makes the sum M.
    """
    machines = cluster.gpu_machines + cluster.cpu_machines
    n, k = cluster.n, cluster.k
    rate = np.array([machine.nic_bytes_per_s for machine in machines])
    load = _Load(
        rate=rate / rate.max(),
        fixed=np.repeat([1.0, 0.0], [n, k]),
        slope=np.repeat([max(n - 2.0, 0.0), float(n)], [n, k]),
    )
    # One worker alone is not distributed; where it is all the same, the servers do the work.
    limit = np.repeat([0.0 if n == 1 and k else 1.0, 1.0], [n, k])

    seconds = load.least_seconds(limit, timed=np.full(n + k, True))
    capped = np.minimum(limit, load.most_owned(seconds))
    least_owned = np.maximum(0.0, 1.0 - (capped.sum() - capped))
    forced = load.seconds(least_owned) >= seconds * (1 - 1e-6)  # rounding makes them differ
    notice = ""
    if not forced.all():
        limit = np.where(forced, capped, limit)
        seconds_of_others = load.least_seconds(limit, timed=~forced)
        capped = np.where(forced, capped, np.minimum(limit, load.most_owned(seconds_of_others)))
        slowest, *more = (machines[index].name for index in np.flatnonzero(forced))
        slowest += f" (and {len(more)} more)" if more else ""
        notice = f"the gradients of {slowest} through its own NIC set the time; more bandwidth elsewhere brings nothing"
    own = _fill(capped, load.rate)
    return Shares(gpu=tuple(own[:n]), cpu=tuple(own[n:]), notice=notice)


@dataclass(frozen=True, kw_only=True)
class _Load:
    """By owner: carried = fixed + slope * own, in units of M, through a NIC of `rate`, in units of the fastest."""

    rate: _Floats
    fixed: _Floats
    slope: _Floats

    def seconds(self, own: _Floats) -> _Floats:
        return (self.fixed + self.slope * own) / self.rate

    def most_owned(self, seconds: float) -> _Floats:
        """What each may own to be done in time."""
        room = np.maximum(seconds * self.rate - self.fixed, 0.0)
        return np.divide(room, self.slope, out=np.ones(len(room)), where=self.slope > 0)

    def least_seconds(self, limit: _Floats, timed: NDArray[np.bool_]) -> float:
        """The least T such that all `timed` machines are done by T, all own at most their limits, and the sum is 1."""
        done_owning_nothing = (self.fixed / self.rate)[timed]
        first = float(done_owning_nothing.max(initial=0.0))  # from here on, all that may own more do with more time
        growing = timed & (self.slope > 0) & (limit > 0)
        owned = limit[~growing].sum()  # at no cost, or by machines whose time does not count
        end = (self.fixed + self.slope * limit)[growing] / self.rate[growing]  # the limit is reached
        order = np.argsort(end, kind="stable")
        end, limit = end[order], limit[growing][order]
        speed, delay = (part[growing][order] / self.slope[growing][order] for part in (self.rate, self.fixed))
        # With the first i at their limits and the others still growing, the sum is 1 at seconds[i].
        at_limit = owned + np.append(0.0, np.cumsum(limit[:-1]))
        speeds, delays = (np.cumsum(part[::-1])[::-1] for part in (speed, delay))
        seconds = (1.0 - at_limit + delays) / speeds
        reached = np.flatnonzero(seconds <= end)
        if owned >= 1.0 or not len(end):
            return first
        return max(first, float(seconds[reached[0]] if len(reached) else end[-1]))


def _fill(limit: _Floats, rate: _Floats) -> list[float]:
    """Fractions of 1 as min(limit, c * rate): those that reach their limit first are settled first."""
    own = np.zeros(len(limit))
    left, rate_left = 1.0, rate.sum()
    for index in np.argsort(limit / rate, kind="stable"):
        own[index] = min(limit[index], left * rate[index] / rate_left)
        left, rate_left = left - own[index], rate_left - rate[index]
    own[own < 1e-9] = 0.0  # what rounding left of nothing: a service of its own is not worth it
    return [float(fraction) for fraction in own / own.sum()]


def place(nbytes: Sequence[int], shares: Sequence[float]) -> list[int]:
    """The owner of each partition of a batch, given their sizes in the global order and the shares by owner.

    Sizes are taken in decreasing order, and each partition goes to the service furthest below its target
    (share * total).  Every service ends within one (largest) partition of its target.  Not above it: the deficits sum
    to the bytes still to be placed, so the largest is positive and is overshot by less than a partition.  Not below it:
    if a service ended more than one partition short, every service that got something was at least as short just
    before its last partition, so would still be short after it; then all deficits were positive, but they sum to 0.

    That fixes how many partitions of each size a service gets.  Among equals the order is free, and is interleaved,
    so that every stretch of the global order is spread over the services as well.
    A service of share 0 gets nothing.
    """
    total, weight = sum(nbytes), sum(shares)
    if not weight > 0 or min(shares) < 0:
        raise ValueError(f"shares are {tuple(shares)}; they must be 0 or more, and at least one above 0")
    indices_by_size = defaultdict(list)
    for index, size in enumerate(nbytes):
        indices_by_size[size].append(index)
    deficits = [(-share / weight * total, owner) for owner, share in enumerate(shares) if share > 0]
    heapq.heapify(deficits)
    owners = [0] * len(nbytes)
    for size in sorted(indices_by_size, reverse=True):
        counts: Counter[int] = Counter()
        for _ in indices_by_size[size]:
            negative_deficit, owner = deficits[0]
            counts[owner] += 1
            heapq.heapreplace(deficits, (negative_deficit + size, owner))
        for index, owner in zip(indices_by_size[size], interleave(counts), strict=True):
            owners[index] = owner
    return owners


def interleave(counts: dict[int, int]) -> list[int]:
    """Each owner as often as counted, evenly spread: with T in all, owner i's j-th turn (from 0) of c_i comes between
    positions j * T/c_i and (j + 1) * T/c_i, and turns that may be taken are taken in the order of their deadlines.

    That is the chairman assignment (Tijdeman 1980): after any t turns an owner has had t * c_i/T, to within one.
    Owners of equal share then follow one another instead of bunching up; one of twice the share comes in between.
    """
    total = sum(counts.values())
    waiting = [(0.0, owner, 0) for owner, count in counts.items() if count]  # (release, owner, turn)
    heapq.heapify(waiting)
    eligible: list[tuple[float, int, int, int]] = []  # (deadline, -count: the larger first, owner, turn)
    sequence = []
    for position in range(total):
        while waiting and waiting[0][0] <= position:
            _, owner, turn = heapq.heappop(waiting)
            heapq.heappush(eligible, ((turn + 1) * total / counts[owner], -counts[owner], owner, turn))
        _, _, owner, turn = heapq.heappop(eligible)
        sequence.append(owner)
        if turn + 1 < counts[owner]:
            heapq.heappush(waiting, ((turn + 1) * total / counts[owner], owner, turn + 1))
    return sequence


def hash64(key: int) -> int:
    """SplitMix64 (Steele, Lea and Flood 2014): the first output of the generator seeded with `key`.

    A bijection of the 64-bit integers that is the same on every machine and run, unlike `hash(str)`.
    """
    mixed = (key + 0x9E3779B97F4A7C15) & _MASK64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK64
    return mixed ^ (mixed >> 31)


def hash_slot(key: int, n: int, k: int) -> int:
    """The owner of a partition by the paper's rule: hash into [0, D); who owns the slot owns the partition.

    Each GPU machine owns n - k slots, the lowest first, each CPU machine 2(n - 1).
    """
    ends = list(accumulate(slot_weights(n, k)))
    return bisect.bisect_right(ends, hash64(key) % ends[-1])
