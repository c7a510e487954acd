"""What the figures of the schemes say: formulas, published trends, and the choice."""

import pytest
from synthetic import made

from byteps import choose
from byteps.cluster import Cluster, Machine, uniform_cluster
from byteps.network import racks, star
from byteps.schedules import passed
from experiments import emulated_schemes, schemes
from experiments.record import Record

RATE = 1.25e9


@pytest.mark.parametrize("servers", [9, 256])
def test_simulations_meet_the_formula_and_on_fat_trees_collisions_come_on_top(servers: int) -> None:
    for point in schemes.topologies(servers):
        if point.topology.startswith("Fat-Tree") and point.scheme != "ring in order":
            assert min(point.times) > point.formula
        else:
            assert point.times == pytest.approx([point.formula] * len(point.times))


def test_bcube_halves_the_time_of_fat_trees_and_more_where_paths_collide() -> None:
    """INFOCOM 2019: 53 to 70 % less at about 250 servers."""
    points = {(point.scheme, point.topology): point for point in schemes.topologies(256)}
    bcube = points["HiPS, BML", "BCube(16,2)"].median
    assert 1 - bcube / points["mesh", "Fat-Tree(10)"].median == pytest.approx(0.57, abs=0.03)


def test_few_levels_win_small_tensors_and_many_levels_large_ones() -> None:
    times = {size: [schemes.level_seconds(count, size) for count in schemes.LEVELS] for size in (1e3, 1e9)}
    assert times[1e3] == sorted(times[1e3])
    assert times[1e9] == sorted(times[1e9], reverse=True)


@pytest.mark.parametrize("model", schemes.MGWFBP_MEASURED)
def test_merging_is_ordered_as_its_authors_measured_it(model: str) -> None:
    one = schemes.merging(model, 8, schemes.mgwfbp_cost(8))
    layerwise, merged, single = schemes.MGWFBP_MEASURED[model]
    assert one.merged >= one.layerwise > one.single
    assert merged > layerwise > single
    assert one.merged == pytest.approx(merged, rel=0.1)


def test_saved_time_on_bcube_shrinks_with_the_batch_and_stays_below_half() -> None:
    for model in schemes.BML_BATCHES:
        saved = [one.saved for one in schemes.bml() if one.model == model]
        assert saved == sorted(saved, reverse=True)
        assert 0 < saved[-1] <= saved[0] < 0.5


def test_a_box_with_more_nics_is_never_slower_and_stops_helping_at_as_many_as_workers() -> None:
    times = [schemes.box(4, count) for count in range(1, 7)]
    assert times == sorted(times, reverse=True)
    assert times[4] == pytest.approx(times[3])


def test_the_choice_is_no_slower_than_any_scheme_and_the_first() -> None:
    ranked = choose.of_cluster(uniform_cluster(4, 4, RATE), 1e8, startup_seconds=1e-5)
    assert [one.seconds for one in ranked] == sorted(one.seconds for one in ranked)
    assert ranked[0].name == "BytePS"
    assert {"ring", "mesh", "tree", "parameter server"} < {one.name for one in ranked}


def test_small_tensors_are_left_to_schemes_of_few_steps() -> None:
    ranked = choose.of_cluster(uniform_cluster(16, 0, RATE), 1e3, startup_seconds=1e-4)
    assert [one.name for one in ranked].index("ring") > [one.name for one in ranked].index("HiPS")


def test_slow_nics_and_racks_are_part_of_the_choice() -> None:
    machines = [Machine(name=f"g{i}", role="gpu", nic_bytes_per_s=RATE, rack=f"r{i // 4}") for i in range(8)]
    crossed = Cluster(machines=tuple(machines), oversubscription=4.0)
    flat = {one.name: one.seconds for one in choose.of_cluster(uniform_cluster(8, 0, RATE), 1e8)}
    behind = {one.name: one.seconds for one in choose.of_cluster(crossed, 1e8)}
    assert behind["ring"] == pytest.approx(flat["ring"])  # one edge leaves each rack
    assert behind["mesh"] > 1.9 * flat["mesh"]


def test_racks_without_uplinks_are_a_star() -> None:
    flat, shelves = star([RATE] * 4), racks([RATE] * 4, [-1] * 4, [])
    times = [choose.rank([passed.ring(4)], 1e8, net)[0].seconds for net in (flat, shelves)]
    assert times[0] == pytest.approx(times[1])
    with pytest.raises(ValueError, match="give one of -1 to 0 each"):
        racks([RATE] * 2, [0, 1], [RATE])


def test_no_fixed_choice_is_the_fastest_everywhere() -> None:
    small = {key: row for key, row in schemes.choices().items() if key[1] == schemes.CHOICE_SIZES[-1]}
    fastest = {min(row, key=lambda name: row[name]) for row in small.values()}
    assert len(fastest) > 1
    assert all(worst > 1.5 for _, worst in schemes.regrets().values())


def of(workload: str, seconds: float, **settings: str) -> Record:
    return made("schedule", seconds, workload=workload, settings=settings, n=9)


def test_emulated_schemes_are_compared_with_what_their_busiest_nic_carries() -> None:
    records = [of("tensor", 1.0, scheme="bml:3x2", network="bcube:3x2"), of("tensor", 2.0, scheme="ring")]
    found = emulated_schemes.lines(records)
    assert list(found) == ["ring, star", "bml, BCube(3,2)"]
    assert found["bml, BCube(3,2)"][0] == pytest.approx(8 / 9)
    assert found["ring, star"][0] == pytest.approx(16 / 9)


def test_iterations_on_both_networks_are_compared_and_single_ones_left_out() -> None:
    records = [of("a", 2.0, network="star"), of("a", 1.0, network="bcube:3x2"), of("b", 1.0, network="star")]
    found = emulated_schemes.iterations(records)
    assert list(found) == ["a"]
    assert emulated_schemes.share_of_star(found["a"]) == [0.5]
