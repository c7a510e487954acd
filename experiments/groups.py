"""The dimensionless groups of a launch: what has to be as small here as on a real cluster for its ratios to carry over.

Time dilation slows network and computation by one factor, but only bandwidth dilates by itself.  What does not is seen
in four groups, each a share or a count, comparable between clusters of any speed:

    latency_share           one-way latency x steps / t: 2(n-1) steps of a ring, 2 of a parameter server
    cores_at_rate           core-seconds per gradient byte on a GPU machine x B': cores busy at the NIC's rate
    burst_share             token bucket / M: how much of a transfer an emulated NIC lets pass unshaped
    partitions_per_service  of BytePS: P partitions in sequence finish at t_opt (1 + 1/P)

Pure: no I/O, no clock, no randomness.
"""

import math
from dataclasses import dataclass

from byteps import assign, partition, theory
from experiments import analysis, catalogue, lines, traffic
from experiments.record import LATENCY_FACT, Case, Record
from experiments.statistics import launch_seconds
from scripts.lab import shaping

MIN_BURSTS = 20  # a transfer of fewer token buckets is not shaped enough to say something about the network
NOTHING = float("nan")


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Not a number where it is not known or does not apply."""

    latency_share: float
    cores_at_rate: float
    burst_share: float
    partitions_per_service: float


def groups(one: Record) -> Groups:
    """The groups of a correct launch on NICs of a known rate."""
    case = one.case
    if not one.correct or not case.nic_bytes_per_s or case.n < 2:
        return Groups(latency_share=NOTHING, cores_at_rate=NOTHING, burst_share=NOTHING, partitions_per_service=NOTHING)
    rate = case.nic_bytes_per_s * theory.TCP_PAYLOAD_FRACTION
    latency = float(one.facts.get(LATENCY_FACT, "nan"))
    return Groups(
        latency_share=latency * _steps(case) / launch_seconds(one.seconds),
        cores_at_rate=analysis.core_seconds_per_gib(one) / 2**30 * rate,
        burst_share=shaping(case.nic_bytes_per_s).burst_bytes / case.nbytes if one.provenance == "emulated" else 0.0,
        partitions_per_service=_partitions_per_service(case) if case.contender == "byteps" else NOTHING,
    )


def _steps(case: Case) -> int:
    contender = lines.contender_of(case.contender)
    return 2 if contender and contender.uses_k else 2 * (case.n - 1)


def _partitions_per_service(case: Case) -> float:
    try:
        tensors = catalogue.of_case(case.workload, case.nbytes, case.scale, case.dilation)
    except (OSError, ValueError):  # a training that was recorded elsewhere
        return NOTHING
    size = traffic.partition_nbytes(case)
    itemsizes = {"float32": 4, "float16": 2}
    count = sum(
        len(partition.split(tensor.numel * itemsizes[tensor.dtype], itemsizes[tensor.dtype], size))
        for tensor in tensors
    )
    services = sum(share > 0 for share in assign.paper_shares(case.n, case.k).all)
    return count / services


def unshaped(case: Case) -> bool:
    """Too small for the emulated NIC to matter: what it shows is the cost of software."""
    return case.nic_bytes_per_s > 0 and case.nbytes < least_shaped_nbytes(case.nic_bytes_per_s)


def least_shaped_nbytes(nic_bytes_per_s: float) -> int:
    """The smallest transfer that says something about the network."""
    return math.ceil(MIN_BURSTS * shaping(nic_bytes_per_s).burst_bytes)
