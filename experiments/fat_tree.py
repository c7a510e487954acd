"""Fat-Trees, emulated: cases whose network is "fat-tree:4", and what records of them say.

Hosts gpu0, gpu1, ... are in the order of pods and edge switches, as those of `byteps.network.fat_tree`; a case of fewer
machines leaves the last ones idle.  A record's counters hold, beside the hosts', those of every link between two
switches under its name, "edge0-agg1": tx up, rx down.

Paths are hashed twice, in different ways.  The simulator's hash is seeded, and a pair of hosts keeps its path.  In the
lab it is the kernel's, seeded per switch; but it takes in ports, which are new in every launch.  So neither is the
other's prediction: there is a distribution over seeds, and one over launches.  What joins them are the bytes on the
busiest link of a launch, as the kernel counted them: with it the launch can be held against its own collisions.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from baselines.wiring import fat_tree_ports
from byteps.network import fat_tree as simulated_tree
from byteps.scheduled import simulate
from byteps.schedules.catalogue import build
from byteps.theory import TCP_PAYLOAD_FRACTION
from experiments import networks
from experiments.emulated import Emulated
from experiments.emulated_schemes import busiest_nic
from experiments.record import Case, Record
from experiments.statistics import launch_seconds
from scripts.fat_tree import FatTreeSpec, fat_tree
from scripts.fat_tree_lab import FatTreeLab
from scripts.leftovers import LabError
from scripts.netns import Counters

SEEDS = range(10)  # of the simulator's hash
TITLES = {
    "ring": "ring in order",
    "shuffled-ring": "ring at random",
    "bml": "HiPS, meshes within",
    "torus": "HiPS, rings within",
}


def tree_of(cases: Sequence[Case]) -> FatTreeSpec:
    """The lab for these cases, which are of one network."""
    ports = fat_tree_ports(networks.wiring_of(cases[0]))
    hosts, wanted = ports**3 // 4, max(case.n for case in cases)
    if wanted > hosts or any(case.k for case in cases):
        raise LabError(
            f"{wanted} GPU machines and {max(case.k for case in cases)} CPU machines on a Fat-Tree of {ports} ports; "
            f"it has {hosts} hosts, all of them GPU machines"
        )
    spec = fat_tree(ports, cases[0].nic_bytes_per_s, beside=("scheduler",))
    return FatTreeSpec(hosts=networks.applied(spec.hosts, cases[0]), ports=ports)


class FatTree(Emulated):
    """A lab of `tree_of` as a stage, with counters of every link."""

    def __init__(self, lab: FatTreeLab) -> None:
        super().__init__(lab)
        self._tree = lab

    def __str__(self) -> str:
        tree = self._tree.tree
        return f"Fat-Tree({tree.ports}), {len(tree.routers)} switches, links of {tree.bytes_per_s * 8e-6:g} Mbit/s"

    def all_counters(self) -> dict[str, Counters]:
        return super().all_counters() | self._tree.link_counters()


@contextmanager
def open_stage(cases: Sequence[Case], num_cores: int) -> Iterator[FatTree]:
    """The lab for these cases.  LabError if there is none."""
    spec = tree_of(cases)
    if reason := spec.overload(num_cores):
        raise LabError(reason)
    with FatTreeLab(spec) as lab:
        yield FatTree(lab)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A scheme on a Fat-Tree; times are multiples of W/B, with B what TCP leaves of a link."""

    contender: str
    formula: float  # what the busiest NIC carries, W
    simulated: tuple[float, ...]  # by seed
    times: list[float] = field(default_factory=list)  # by launch
    busiest: list[float] = field(default_factory=list)  # by launch: the fullest link's bytes, W, as counted


def lines(records: Iterable[Record]) -> dict[str, Line]:
    """By scheme and hosts, the fastest by simulation first; of records whose network is a Fat-Tree."""
    found: dict[str, Line] = {}
    for one in records:
        case = one.case
        ports = fat_tree_ports(networks.wiring_of(case))
        if not one.verified or not ports:
            continue
        ours = case.contender == "schedule"
        scheme = case.settings.get("scheme", "ring")
        kind = scheme.partition(":")[0]
        name = f"{TITLES.get(kind, kind) if ours else 'gloo ring'} ({case.n})"
        line = found.setdefault(
            name,
            Line(
                contender=case.contender,
                formula=busiest_nic(scheme, "star", case.n),
                simulated=simulated(scheme, case.n, ports),
            ),
        )
        line.times.append(launch_seconds(one.seconds) * case.nic_bytes_per_s * TCP_PAYLOAD_FRACTION / case.nbytes)
        line.busiest.append(busiest_link(one))
    return dict(sorted(found.items(), key=lambda item: sorted(item[1].simulated)[len(SEEDS) // 2]))


@cache
def simulated(scheme: str, n: int, ports: int) -> tuple[float, ...]:
    """Of the same schedule, by seed of the hash: every message a flow, no start-ups."""
    schedule = build(scheme, n)
    return tuple(simulate([(schedule, 1.0)], simulated_tree(ports, 1.0, seed=seed))[0] for seed in SEEDS)


def busiest_link(record: Record) -> float:
    """The most that one direction of one link carried in one synchronisation, as a multiple of the tensor's bytes."""
    most = max(max(one.payload_sent, one.payload_received) for one in record.nics.values())
    return most / record.case.nbytes / record.case.iterations
