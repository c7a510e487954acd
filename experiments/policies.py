"""BSP, SSP and ASP, simulated, when one worker is slow: always the same one, or another one in every iteration.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from byteps.cluster import uniform_cluster
from byteps.network import star
from byteps.policy import ASP, BSP, Policy, execute, ssp
from byteps.schedule import Schedule
from byteps.schedules import served

WORKERS = 4
ITERATIONS = 24
COMPUTE_SECONDS = 0.1
NBYTES = 25e6  # 20 ms on the NIC, one way
NIC_BYTES_PER_S = 1.25e9
POLICIES: Sequence[Policy] = (BSP, ssp(1), ssp(3), ASP)
STRAGGLERS = ("always the same", "each in turn")
SLOWER = (1.0, 2.0, 3.0, 4.0)


def schemes() -> dict[str, Schedule]:
    """Those with servers, on machines alike."""
    return {
        "mesh": served.mesh(WORKERS),
        "parameter server, 4 machines": served.parameter_server(WORKERS, 4),
        "BytePS, 2 CPU machines": served.byteps(uniform_cluster(WORKERS, 2, NIC_BYTES_PER_S)),
    }


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of a policy; worker 0 is the slow one where it is always the same."""

    fast_rate: float  # iterations per second of the fastest worker in the second half of its iterations
    slow_rate: float  # and of the slowest
    apart: int  # clocks that somebody was ahead when it went on, at most
    missed: float  # contributions of others that a push was computed without, at most


@cache
def outcome(scheme: str, policy: Policy, straggler: str, slower: float) -> Outcome:
    """`slower`: how many times as long the slow one computes."""
    schedule = schemes()[scheme]
    compute = np.full((WORKERS, ITERATIONS), COMPUTE_SECONDS)
    steps = np.arange(ITERATIONS)
    compute[0 if straggler == STRAGGLERS[0] else steps % WORKERS, steps] *= slower
    network = star([NIC_BYTES_PER_S] * schedule.num_nodes)
    found = execute(schedule, NBYTES, network, compute.tolist(), policy)
    half = ITERATIONS // 2
    rates = half / (found.ends[-1] - found.ends[half - 1])
    return Outcome(
        fast_rate=float(rates.max()),
        slow_rate=float(rates.min()),
        apart=int(found.apart().max()),
        missed=float(found.missed().max()),
    )
