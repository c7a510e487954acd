"""What records say of the inside of emulated machines (`experiments.inside`): speeds over the ring's, and bytes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from byteps.machine_network import network_of
from byteps.scheduled import link_loads
from byteps.schedules import inside
from experiments.inside import LinkCount, link_counts, machines_of, simulated_seconds, slower
from experiments.record import Case, Record
from experiments.statistics import launch_seconds

RING = "ring"
TITLES: Mapping[str, str] = {"pcie-only": "PCIe only", "nvlink": "NVLink"}
IN_THE_PAPER: Mapping[str, str] = {"cpu-assisted": "optimal"}
"""Ways whose name in Figure 14 is another."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to sum on an emulated machine, all launches of it."""

    machine: str  # the preset
    name: str
    gpus: int  # of one machine
    slower: float
    seconds: tuple[float, ...]  # by launch
    speeds: tuple[float, ...]  # by launch: over the ring, of the same block where there is one
    simulated: float  # over the ring, the same schedules on the same links
    by_bandwidth: float  # over the ring, if only the busiest link counted
    worst: LinkCount  # the link, of all launches, whose bytes differ most from the formula

    @property
    def worst_share(self) -> float:
        """Of a tensor's bytes."""
        return abs(self.worst.counted - self.worst.expected)


def ways(records: Iterable[Record]) -> list[Way]:
    """By machine, in the order of the records; a machine without a usable ring is left out."""
    groups: dict[tuple[str, float], dict[str, list[Record]]] = {}
    for one in records:
        if one.verified and one.case.settings.get("network") == "inside":
            machines, way = machines_of(one.case)
            groups.setdefault((machines.topology.name, one.case.nic_bytes_per_s), {}).setdefault(way, []).append(one)
    found = []
    for (machine, _), by_way in groups.items():
        if RING in by_way:
            found += [_way(machine, name, some, by_way[RING]) for name, some in by_way.items()]
    return found


def _way(machine: str, name: str, records: list[Record], rings: list[Record]) -> Way:
    case = records[0].case
    of_block = {one.case.block: launch_seconds(one.seconds) for one in rings}
    usual = median(of_block.values())
    seconds = tuple(launch_seconds(one.seconds) for one in records)
    counts = [count for one in records for count in link_counts(one)]
    return Way(
        machine=machine,
        name=name,
        gpus=len(machines_of(case)[0].topology.gpus),
        slower=slower(case),
        seconds=seconds,
        speeds=tuple(of_block.get(one.case.block, usual) / taken for one, taken in zip(records, seconds, strict=True)),
        simulated=simulated_seconds(rings[0].case) / simulated_seconds(case),
        by_bandwidth=_busiest_seconds(rings[0].case) / _busiest_seconds(case),
        worst=max(counts, key=lambda count: abs(count.counted - count.expected)),
    )


def _busiest_seconds(case: Case) -> float:
    """Of a tensor of one byte on links as fast as the real ones."""
    machines, way = machines_of(case)
    network = network_of(machines)
    rates: dict[str, float] = dict(zip(network.link_names, network.rates.tolist(), strict=True))
    return max(load / rates[link] for link, load in link_loads(inside.schedule(machines, way), network).items())
