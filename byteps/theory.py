"""How long it must take: the time of each scheme for M bytes per worker if nothing but the NICs costs time.

n GPU machines, k CPU machines, NICs of B bytes/s each way, full duplex, a network that is never the limit.

    ring all-reduce     every machine sends (n-1)/n of M twice                2(n-1)M / (nB)
    colocated PS        n-1 parts of M/n to others, n-1 answers               2(n-1)M / (nB)
    non-colocated PS    a worker sends M, a server answers n times M/k        max(M/B, nM/(kB))
    BytePS              every machine busy until the end (see `assign`)       2n(n-1)M / (DB),  D = n^2 + kn - 2k

BytePS is the ring at k = 0 and the parameter server at k = n; between them it is faster than both.  k > n is as k = n.
n = 1 is not distributed and takes no time; with servers, if it is made to use them, it sends M.

B is what the NIC carries of *payload*.  Multiply the rate of a NIC by `TCP_PAYLOAD_FRACTION` for TCP over Ethernet.
Pure: no I/O, no clock, no randomness.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

from byteps.assign import Shares, slot_weights

TCP_PAYLOAD_FRACTION = 1448 / 1514  # of a full frame as tc counts it: 14 Ethernet, 20 IP, 20 + 12 TCP with timestamps

_Bytes = TypeVar("_Bytes", int, float)


def byteps_seconds(nbytes: float, n: int, k: int, nic_bytes_per_s: float) -> float:
    """t_opt: no scheme that sums on these machines is faster."""
    slots = sum(slot_weights(n, min(k, n)))
    if n == 1:
        return nbytes / nic_bytes_per_s if k else 0.0
    return 2 * n * (n - 1) * nbytes / (slots * nic_bytes_per_s)


def ring_seconds(nbytes: float, n: int, nic_bytes_per_s: float) -> float:
    """Ring all-reduce; CPU machines do not help it."""
    return 2 * (n - 1) * nbytes / (n * nic_bytes_per_s)


def colocated_ps_seconds(nbytes: float, n: int, nic_bytes_per_s: float) -> float:
    """A parameter server on every GPU machine and none elsewhere: as much per NIC as the ring."""
    return ring_seconds(nbytes, n, nic_bytes_per_s)


def noncolocated_ps_seconds(nbytes: float, n: int, k: int, nic_bytes_per_s: float) -> float:
    """Parameter servers on the CPU machines only."""
    return max(1.0, n / k) * nbytes / nic_bytes_per_s if k else math.inf


def gamma_a(n: int, k: int) -> float:
    """How many times faster BytePS is than all-reduce: D / n^2."""
    return ring_seconds(1, n, 1) / byteps_seconds(1, _distributed(n), k, 1)


def gamma_p(n: int, k: int) -> float:
    """How many times faster BytePS is than a non-colocated parameter server: D / (2k(n - 1)) for k <= n."""
    return noncolocated_ps_seconds(1, n, k, 1) / byteps_seconds(1, _distributed(n), k, 1)


def goodput(n: int, k: int, nic_bytes_per_s: float) -> float:
    """M / t_opt, in the unit of the NIC's rate: what Figure 12 plots."""
    seconds = byteps_seconds(1, n, k, nic_bytes_per_s)
    return 1 / seconds if seconds else math.inf


def traffic(nbytes: float, shares: Shares) -> tuple[float, ...]:
    """Bytes that each machine sends, and as many it receives, by owner index, if every service gets just its share."""
    return _carried([share * nbytes for share in shares.all], nbytes, len(shares.gpu))


def traffic_of_placement(owned_nbytes: Sequence[int], n: int, k: int) -> tuple[int, ...]:
    """The same for the bytes that each service owns in fact, by owner index."""
    if len(owned_nbytes) != n + k:
        raise ValueError(f"owned_nbytes has {len(owned_nbytes)} entries; n = {n} and k = {k} need {n + k}")
    return _carried(owned_nbytes, sum(owned_nbytes), n)


def _carried(own: Sequence[_Bytes], total: _Bytes, n: int) -> tuple[_Bytes, ...]:
    return tuple([total + (n - 2) * part for part in own[:n]] + [n * part for part in own[n:]])


def _distributed(n: int) -> int:
    if n < 2:
        raise ValueError(f"n = {n}: one machine alone sends nothing, so there is nothing to compare; use n >= 2")
    return n
