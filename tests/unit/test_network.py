"""Networks and the time that schedules take on them: formulas, counted bytes and simulation agree."""

import numpy as np
import pytest

from byteps.cluster import uniform_cluster
from byteps.network import NOWHERE, Network, bcube, fat_tree, hops, star
from byteps.schedule import Schedule
from byteps.scheduled import estimate, link_loads, simulate
from byteps.schedules import costs, levels, passed, served

RATE, NBYTES = 1e9, 1e8
STAR9, BCUBE = star([RATE] * 9), bcube(3, 2, RATE)

TABLE: list[tuple[Schedule, Network, costs.Cost]] = [
    (served.mesh(9), STAR9, costs.mesh(9)),
    (passed.ring(9), STAR9, costs.ring(9)),
    (levels.hips(3, 2), STAR9, costs.Cost(carried=16 / 9, startups=4)),
    (served.mesh(9), BCUBE, costs.mesh_on_bcube(3, 2)),
    (passed.bcube_ring(3), BCUBE, costs.ring(9)),
    (passed.bcube_rings(3, 2), BCUBE, costs.rings_on_bcube(3, 2)),
    (levels.bml(3, 2), BCUBE, costs.levels_on_bcube(3, 2)),
    (levels.hips(3, 2, within="ring"), BCUBE, costs.levels_on_bcube(3, 2, ring_within=True)),
    (passed.halving_doubling(8), star([RATE] * 8), costs.halving_doubling(8)),
    (levels.torus(2, 4), star([RATE] * 8), costs.torus(2, 4)),
    (served.byteps(uniform_cluster(8, 4, RATE)), star([RATE] * 12), costs.byteps(8, 4)),
    (served.parameter_server(8, 2), star([RATE] * 10), costs.parameter_server(8, 2)),
    (served.phub(8, 10), star([RATE] * 18), costs.Cost(carried=1, startups=2)),
    (served.in_network(4), star([RATE] * 4 + [100 * RATE]), costs.in_network()),
]


@pytest.mark.parametrize(("schedule", "network", "cost"), TABLE, ids=[f"{s.name} on {t.name}" for s, t, _ in TABLE])
def test_formula_counted_bytes_and_both_simulations_agree(
    schedule: Schedule, network: Network, cost: costs.Cost
) -> None:
    loads = link_loads(schedule, network)
    busiest = max(
        load / RATE for name, load in loads.items() if name.startswith("h") and int(name[1:].split(".")[0]) < 12
    )
    ends = 2 if schedule.name in ("BytePS", "parameter server", "PHub", "in-network aggregation") else 1
    if schedule.name in ("mesh", "ring", "multi-ring", "HiPS", "BML"):
        assert busiest * RATE == pytest.approx(cost.carried)
    (seconds,) = simulate([(schedule, NBYTES)], network)
    apart = 0.15 if schedule.name == "BytePS" else 1e-6  # its services' rounds overlap, and get in each other's way
    assert seconds == pytest.approx(estimate(schedule, NBYTES, network).seconds, rel=apart)
    # two rounds of a server use its NIC one way each: what a pipeline overlaps, whole chunks do not
    assert cost.seconds(NBYTES, RATE) <= seconds * (1 + 1e-9)
    assert seconds <= ends * cost.seconds(NBYTES, RATE) * (1 + apart)


def test_the_theoretical_table_of_fat_tree_and_bcube() -> None:
    """W/B of N = 9, and of 256 and 1024 servers."""
    assert costs.mesh_on_bcube(3, 2).carried == pytest.approx(4 / 3)
    assert costs.levels_on_bcube(3, 2).carried == pytest.approx(8 / 9)
    assert costs.levels_on_bcube(16, 2).carried == pytest.approx(0.996, abs=5e-4)
    assert costs.levels_on_bcube(4, 4).carried == pytest.approx(0.498, abs=5e-4)
    assert costs.mesh_on_bcube(32, 2).carried == pytest.approx(1.938, abs=5e-4)


@pytest.mark.parametrize(("ports", "count"), [(3, 2), (4, 2), (2, 3), (3, 3)])
def test_a_mesh_on_bcube_loads_every_nic_alike(ports: int, count: int) -> None:
    network = bcube(ports, count, RATE)
    loads = link_loads(served.mesh(ports**count), network)
    assert len(loads) == network.rates.size
    assert np.allclose(list(loads.values()), 2 * (ports - 1) / ports)


def test_rings_on_bcube_never_share_a_nic() -> None:
    for ports in (2, 3, 4, 7):
        network = bcube(ports, 2, RATE)
        schedule = passed.bcube_rings(ports, 2)
        one = schedule.rounds[0]
        links = network.ways(one.src, one.dst)
        links = links[links != NOWHERE]
        assert links.size == np.unique(links).size == network.rates.size
    with pytest.raises(ValueError, match="1 and 2 levels"):
        passed.bcube_rings(2, 3)


def test_ways_of_a_fat_tree_are_up_and_down_and_spread_by_the_seed() -> None:
    tree = fat_tree(4, RATE)
    assert (tree.num_hosts, tree.num_switches) == (16, 20)
    assert tree.way(0, 1) == ("host-edge.0", "edge-host.1")
    assert [name.split(".")[0] for name in tree.way(0, 2)] == [
        "host-edge",
        "edge-aggregation",
        "aggregation-edge",
        "edge-host",
    ]
    assert len(tree.way(0, 15)) == 6
    assert tree.way(0, 15) == tree.way(0, 15)
    assert len({fat_tree(4, RATE, seed=seed).way(0, 15) for seed in range(20)}) == 4


def test_ecmp_collides_and_no_seed_beats_the_network_without_collisions() -> None:
    (ideal,) = simulate([(served.mesh(16), NBYTES)], star([RATE] * 16))
    times = [simulate([(served.mesh(16), NBYTES)], fat_tree(4, RATE, seed=seed))[0] for seed in range(5)]
    assert min(times) > ideal * (1 + 1e-9)
    assert len({round(one, 6) for one in times}) > 1


def test_messages_on_bcube_hop_over_the_hosts_between() -> None:
    assert hops(0, 8, 3, 2) == ((0, 2), (1, 8))
    assert hops(0, 1, 3, 2) == ((0, 1),)
    assert hops(0, 7, 2, 3) == ((0, 1), (1, 3), (2, 7))
    cube = bcube(3, 2, RATE)
    for src, dst in ((0, 8), (4, 5), (7, 2)):
        here, links = src, []
        for nic, then in hops(src, dst, 3, 2):
            links += [f"h{here}.{nic}.out", f"h{then}.{nic}.in"]
            here = then
        assert tuple(links) == cube.way(src, dst)


def test_two_jobs_on_one_network_take_longer_than_each_alone_and_not_longer_than_both() -> None:
    job = (passed.ring(4), NBYTES)
    network = star([RATE] * 4)
    (alone,) = simulate([job], network)
    both = simulate([job, job], network)
    assert both == pytest.approx([2 * alone, 2 * alone])
    apart = simulate([job, job], star([RATE] * 8), places=[range(4), range(4, 8)])
    assert apart == pytest.approx([alone, alone])


def test_a_slow_link_slows_a_ring_and_names_itself() -> None:
    network = star([RATE] * 4).with_rates({"h2.0.in": RATE / 4})
    found = estimate(passed.ring(4), NBYTES, network)
    assert found.bottleneck == "h2.0.in"
    assert found.seconds == pytest.approx(4 * costs.ring(4).seconds(NBYTES, RATE))
    with pytest.raises(ValueError, match="has no link 'h9'"):
        network.with_rates({"h9": 1.0})


def test_startups_count_every_message_in_a_row() -> None:
    (seconds,) = simulate([(passed.ring(8), NBYTES)], star([RATE] * 8), startup_seconds=1e-3)
    assert seconds == pytest.approx(costs.ring(8).seconds(NBYTES, RATE, 1e-3))


def test_more_nodes_than_hosts_are_refused() -> None:
    with pytest.raises(ValueError, match="BytePS has 6 nodes"):
        simulate([(served.byteps(uniform_cluster(4, 2, RATE)), 1.0)], star([RATE] * 4))


def test_pieces_that_overlap_are_estimated_close_to_what_they_take() -> None:
    schedule, network = served.mesh(8, pieces=8), star([RATE] * 8)
    (exact,) = simulate([(schedule, NBYTES)], network)
    apart = estimate(schedule, NBYTES, network).seconds
    assert estimate(schedule, NBYTES, network, overlapping=True).seconds == pytest.approx(exact, rel=0.1)
    assert apart == pytest.approx(exact, rel=0.1)  # a mesh's rounds are alike both ways, so that nothing is gained
    servers, beside = served.parameter_server(8, 8, pieces=8), star([RATE] * 16)
    (exact,) = simulate([(servers, NBYTES)], beside)
    assert estimate(servers, NBYTES, beside).seconds > 1.6 * exact
    assert estimate(servers, NBYTES, beside, overlapping=True).seconds == pytest.approx(exact, rel=0.1)
