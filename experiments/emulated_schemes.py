"""Schemes on emulated hosts: what records say of them, for tables and figures.  Pure."""

from collections.abc import Iterable
from statistics import median

from baselines.wiring import shape
from byteps.network import bcube, star
from byteps.scheduled import link_loads
from byteps.schedules.catalogue import build
from byteps.theory import TCP_PAYLOAD_FRACTION
from experiments.record import Case, Record
from experiments.statistics import launch_seconds

Line = tuple[float, str, list[float]]
"""What the busiest NIC carries (W), the contender, and times of launches (W/B)."""


def busiest_nic(scheme: str, network: str, n: int) -> float:
    """Bytes through it one way, as a multiple of the tensor's."""
    ports, levels = shape(network)
    there = bcube(ports, levels, 1.0) if ports else star([1.0] * n)
    return max(link_loads(build(scheme, n), there).values())


def network_of(case: Case) -> str:
    return case.settings.get("network", "star")


def lines(records: Iterable[Record]) -> dict[str, Line]:
    """By scheme and network, those on the star first, slow ones first."""
    found: dict[str, Line] = {}
    for one in records:
        if not one.verified:
            continue
        case, network = one.case, network_of(one.case)
        ours = case.contender == "schedule"
        scheme = case.settings.get("scheme", "ring")
        title = "star" if network == "star" else f"BCube({network.partition(':')[2].replace('x', ',')})"
        name = f"{scheme.partition(':')[0] if ours else 'gloo ring'}, {title}"
        per_tensor = case.nbytes / (case.nic_bytes_per_s * TCP_PAYLOAD_FRACTION)
        line = found.setdefault(name, (busiest_nic(scheme, network, case.n), case.contender, []))
        line[2].append(launch_seconds(one.seconds) / per_tensor)
    return dict(sorted(found.items(), key=lambda item: (", star" not in item[0], -item[1][0])))


def iterations(records: Iterable[Record]) -> dict[str, tuple[list[float], list[float]]]:
    """By workload: seconds of an iteration on one NIC per server, and on BCube; those that have both."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for one in records:
        if one.verified:
            both = found.setdefault(one.case.workload, ([], []))
            both[network_of(one.case) != "star"].append(launch_seconds(one.seconds))
    return {workload: both for workload, both in found.items() if all(both)}


def share_of_star(both: tuple[list[float], list[float]]) -> list[float]:
    """BCube's times over the star's median."""
    return [value / median(both[0]) for value in both[1]]
