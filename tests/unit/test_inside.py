"""Schedules of the inside of machines: right, and on every link what `byteps.strategy` counts."""

from collections import defaultdict

import pytest

from byteps.assign import paper_shares
from byteps.machine_file import preset
from byteps.machine_network import network_of
from byteps.scheduled import link_loads, simulate
from byteps.schedules.inside import Machines, build, parts_of, read, reduced, ring, schedule
from byteps.strategy import LocalPlan, brute_force, cpu_assisted, reduce_broadcast, ring_loads, strawman, traffic
from byteps.symbolic import check

PCIE, NVLINK = preset("pcie-only"), preset("nvlink")
MACHINES = [("pcie-only", 1), ("pcie-only", 2), ("pcie-only", 4), ("nvlink", 1), ("nvlink", 2)]
WAYS = ("cpu-assisted", "brute-force", "strawman", "root=all", "root=0", "ring")


def machines(name: str, per_switch: int, count: int = 2, servers: int = 0) -> Machines:
    return Machines(topology=reduced(preset(name), per_switch), count=count, servers=servers)


def plan_of(one: Machines, way: str) -> LocalPlan:
    makers = {"cpu-assisted": cpu_assisted, "brute-force": brute_force, "strawman": strawman}
    if way in makers:
        return makers[way](one.topology)
    names = way.partition("=")[2]
    return reduce_broadcast(
        one.topology, one.topology.gpus if names == "all" else [f"GPU{number}" for number in names.split(",")]
    )


def by_formula(one: Machines, way: str) -> dict[str, float]:
    if way == "ring":
        return dict(ring_loads(one.topology, one.count))
    carried = 0.0
    if one.count > 1:
        carried = 1 + (one.count - 2) * paper_shares(one.count, one.servers).gpu[0]
    return traffic(plan_of(one, way), carried, carried)


@pytest.mark.parametrize(("name", "per_switch"), MACHINES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("count", "servers"), [(1, 0), (2, 0), (3, 0), (2, 1), (2, 2)])
def test_every_way_sums_right_and_loads_every_link_as_the_formulas_say(
    name: str, per_switch: int, way: str, count: int, servers: int
) -> None:
    one = machines(name, per_switch, count, servers)
    made = schedule(one, way, pieces=3)
    check(made)
    counted = defaultdict(float, link_loads(made, network_of(one)))
    for link, load in by_formula(one, way).items():
        if not link.endswith(".memory"):
            for machine in range(count):
                assert counted.pop(f"m{machine}.{link}", 0.0) == pytest.approx(load), (machine, link)
    servers_links = {link: load for link, load in counted.items() if link.startswith("s")}
    assert not {link: load for link, load in counted.items() if link not in servers_links and load > 1e-12}
    if way != "ring" and servers:
        owned = paper_shares(count, servers).cpu[0]
        for index in range(servers):
            assert servers_links[f"s{index}.in"] == pytest.approx(count * owned)
            assert servers_links[f"s{index}.out"] == pytest.approx(count * owned)


@pytest.mark.parametrize(
    ("way", "on_p0", "on_p1", "on_p2", "on_socket"),
    [
        ("root=2", 1.75, 1.0, 0.0, 0.0),
        ("root=2,3", 1.75, 1.0, 0.0, 0.0),
        ("root=all", 2.0, 0.25, 0.25, 0.5),
        ("root=0", 2.75, 0.0, 0.0, 0.0),
    ],
)
def test_the_nvlink_machine_loads_its_links_as_the_paper_says(
    way: str, on_p0: float, on_p1: float, on_p2: float, on_socket: float
) -> None:
    one = Machines(topology=NVLINK, count=8)
    found = defaultdict(float, link_loads(schedule(one, way, pieces=1), network_of(one)))
    seen = [found[f"m3.{link}"] for link in ("P0->CPU0", "P1->CPU0", "P2->CPU1", "CPU1->CPU0")]
    assert seen == pytest.approx([on_p0, on_p1, on_p2, on_socket])


def test_cpu_assisted_sends_each_gradient_once_over_a_switch_and_seven_quarters_over_a_gpu_link() -> None:
    one = Machines(topology=PCIE, count=2)
    found = link_loads(schedule(one, "cpu-assisted", pieces=1), network_of(one))
    assert found["m0.P0->CPU0"] == found["m1.P1->CPU1"] == pytest.approx(1)
    assert found["m0.GPU0->P0"] == found["m1.GPU7->P1"] == pytest.approx(7 / 4)


def test_roots_away_from_the_nic_are_faster_than_one_beside_it() -> None:
    one = machines("nvlink", 1)
    network = network_of(one)
    times = {way: simulate([(schedule(one, way), 1e9)], network)[0] for way in ("root=2", "root=all", "root=0", "ring")}
    bound = 1e9 / (90e9 / 8)
    assert bound <= times["root=2"] < 1.35 * bound
    assert times["root=2"] < times["root=all"] < times["root=0"]


def test_more_pieces_come_closer_to_what_the_busiest_link_needs() -> None:
    one = machines("pcie-only", 2)
    network = network_of(one)
    times = [simulate([(schedule(one, "root=0", pieces=count), 1e9)], network)[0] for count in (2, 8, 32)]
    bound = 2e9 / (105e9 / 8)
    assert times[0] > times[1] > times[2] > bound
    assert times[2] < 1.06 * bound


def test_links_that_are_a_thousand_times_slower_take_a_thousand_times_as_long() -> None:
    one = machines("nvlink", 1)
    made = schedule(one, "root=2", pieces=4)
    (fast,), (slow,) = (simulate([(made, 1e6)], network_of(one, slower)) for slower in (1.0, 1000.0))
    assert slow == pytest.approx(1000 * fast)


def test_a_scheme_is_read_from_text() -> None:
    one, way = read("pcie-only/root=all", 8, 5)
    assert (one.count, len(one.topology.gpus), one.servers, way) == (2, 4, 1, "root=all")
    one, _ = read("nvlink/ring/3", 12, 6)
    assert (one.count, one.topology.gpus) == (3, ("GPU0", "GPU2", "GPU4", "GPU6"))
    assert build("nvlink/root=2", 8, 4).num_nodes == 12


@pytest.mark.parametrize(
    ("detail", "n", "k", "said"),
    [
        ("pcie-only", 8, 4, "PRESET/WAY"),
        ("pcie-only/ring/0", 8, 4, "PRESET/WAY"),
        ("pcie-only/ring/x", 8, 4, "PRESET/WAY"),
        ("pcie-only/ring", 7, 4, "multiple of 4 GPUs"),
        ("pcie-only/ring", 8, 3, "4 further nodes"),
        ("pcie-only/ring", 20, 4, "5 GPUs per switch"),
        ("pcie-only/rings", 8, 4, "use cpu-assisted"),
        ("nvlink/root=3", 8, 4, "GPU0, GPU2, GPU4, GPU6"),
        ("nvlinks/ring", 8, 4, "nvlinks"),
        ("multi-nic/ring", 8, 4, "1 NIC"),
    ],
)
def test_what_cannot_be_built_is_refused_with_what_was_allowed(detail: str, n: int, k: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build(detail, n, k)


def test_a_ring_between_machines_needs_a_piece_for_every_stage_of_a_hop() -> None:
    with pytest.raises(ValueError, match="2 pieces"):
        ring(machines("nvlink", 1), pieces=2)


def test_shares_of_all_parts_sum_to_the_tensor() -> None:
    for way in ("cpu-assisted", "brute-force", "strawman", "root=all", "root=2,3"):
        assert sum(share for share, _ in parts_of(NVLINK, way)) == pytest.approx(1)
