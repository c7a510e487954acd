"""Who sums what: the share of every gradient that each summation service gets.

Symbols, as in the paper: n GPU machines, k CPU machines, M gradient bytes, one NIC of B bytes/s each way.  A service is
known by its owner index: GPU machines first (0 .. n-1), then CPU machines (n .. n+k-1), as in `Shares.all`.

A GPU machine sends (M - own) as a client and (n - 1) * own as a server, M + (n - 2) * own in all; a CPU machine sends
n * own; each receives as much.  Let all finish at T:  M + (n - 2) g = n c = T B,  and  n g + k c = M.  Hence, with
D = n^2 + kn - 2k,  c = 2(n - 1) M / D  and  g = (n - k) M / D,  T = 2n(n - 1) M / (D B).  No plan is faster: every
machine is busy until T, and any byte moved to another service makes that machine later.  k > n brings nothing, since a
GPU machine carries M even if it sums nothing.

Unequal NICs make it a linear programme: least T such that carried_i <= T * B_i and the shares sum to M.
Pure: no I/O, no clock, no randomness.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


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
    """Each owner as often as counted, evenly spread: the j-th (from 0) of c stands at (j + 1/2) / c, ties by owner.

    Up to position x in (0, 1) an owner then has x * c of its partitions, to within half a one.
    """
    positions = [((j + 0.5) / count, owner) for owner, count in counts.items() for j in range(count)]
    return [owner for _, owner in sorted(positions)]
