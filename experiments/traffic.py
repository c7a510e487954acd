"""The bytes that NICs carried, against BytePS's plan and against the formula of a contender's algorithm.

Pure: no I/O.
"""

from byteps import assign, partition, theory
from byteps.units import parse_nbytes
from experiments import cluster, lines
from experiments.record import Case, Record


def partition_nbytes(case: Case) -> int:
    """The size of partitions that BytePS uses for this case; a size that was chosen is that of full-size tensors."""
    setting = case.settings.get("partition", "auto")
    if setting == "auto":
        return partition.auto_partition_bytes(case.nbytes, case.nic_bytes_per_s)
    return max(1, round(parse_nbytes(setting) / case.scale))


def planned_payload(one: Record) -> dict[str, int]:
    """Host -> bytes that BytePS's plan makes it send, and as many receive, in one iteration over a single tensor."""
    case = one.case
    if case.workload != "tensor":
        raise ValueError(f"{case.title}: the plan is worked out here for a single tensor only")
    parts = [nbytes for _, nbytes in partition.split(case.nbytes, 4, partition_nbytes(case))]
    shares = assign.cluster_shares(cluster.cluster_of(case)).all
    owned = [0] * len(shares)
    for nbytes, owner in zip(parts, assign.place(parts, shares), strict=True):
        owned[owner] += nbytes
    hosts = [f"gpu{i}" for i in range(case.n)] + [f"cpu{i}" for i in range(case.k)]
    return dict(zip(hosts, theory.traffic_of_placement(owned, case.n, case.k), strict=True))


def has_plan(one: Record) -> bool:
    """Whether `traffic_deviation` can be told."""
    alone = one.case.workload == "tensor" and one.case.n > 1
    return one.verified and one.case.contender == "byteps" and alone and bool(one.nics)


def traffic_deviation(one: Record) -> float:
    """Largest |measured / planned - 1| over the machines and both directions; packet headers do not count.

    What a machine moves that has no part in a small tensor is measured against the tensor.
    """
    worst = 0.0
    for host, planned in planned_payload(one).items():
        for moved in (one.nics[host].payload_sent, one.nics[host].payload_received):
            worst = max(worst, abs(moved / one.case.iterations - planned) / (planned or one.case.nbytes))
    return worst


def payload_of_formula(one: Record) -> float:
    """Payload that a GPU machine sends, mean over them, over what the contender's algorithm says (`nic_nbytes`)."""
    contender = lines.contender_of(one.case.contender)
    sent = [nic.payload_sent for host, nic in one.nics.items() if host.startswith("gpu")][: one.case.n]
    if contender is None or contender.nic_nbytes is None or one.case.n < 2 or not sent:
        return float("nan")
    formula = contender.nic_nbytes(one.case.n, one.case.k, one.case.nbytes)
    return sum(sent) / one.case.n / one.case.iterations / formula
