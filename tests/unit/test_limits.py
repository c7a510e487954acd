"""What limits the idea: schemes against closed forms and counted edges; winners, prices; the paper's simple rules."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import failed, loaded, made

from byteps import theory
from byteps.assign import cluster_shares, paper_shares
from experiments import limits, paper, placement, workloads
from experiments.limits import GBIT, SCHEMES, Host, Prices, Setting
from experiments.tables import limits as tables

COUNTS = st.tuples(st.integers(2, 12), st.integers(0, 12))


def at(n=8, k=0, nic=1.0, **changes):
    return Setting(n=n, k=k, nic_bytes_per_s=nic, **changes)


# Schemes


@settings(deadline=None, max_examples=40)
@given(COUNTS)
def test_without_racks_and_with_nics_alone_every_scheme_is_that_of_theory(nk):
    n, k = nk
    setting = at(n, k, 2.0)
    assert SCHEMES["flat"].seconds(setting) == pytest.approx(theory.byteps_seconds(1, n, k, 2.0))
    assert SCHEMES["server"].seconds(setting) == pytest.approx(theory.noncolocated_ps_seconds(1, n, k, 2.0))
    for ring in ("ring", "unordered ring", "staged ring", "hierarchical"):
        assert SCHEMES[ring].seconds(setting) == pytest.approx(theory.ring_seconds(1, n, 2.0))


@pytest.mark.parametrize("outside", [False, True])
def test_racks_are_equal_and_their_uplinks_are_what_their_nics_could_over_the_oversubscription(outside):
    setting = at(8, 4, 3.0, racks=2, oversubscription=2.0, outside=outside)
    cluster = setting.limits.cluster
    sizes = [sum(machine.rack == rack for machine in cluster.machines) for rack in sorted(cluster.uplinks)]
    assert sizes == ([4, 4, 4] if outside else [6, 6])
    assert cluster.uplinks == {rack: size * 3.0 / 2 for rack, size in zip(sorted(cluster.uplinks), sizes, strict=True)}
    assert setting.uplink_bytes_per_s == (6.0 if outside else 9.0)


def test_racks_that_would_not_be_equal_are_refused():
    with pytest.raises(ValueError, match="racks = 3: 8 GPU machines do not fill as many equal racks"):
        at(8, racks=3)


def test_a_ring_in_any_order_crosses_as_often_as_the_mean_over_all_orders():
    n, racks, over = 6, 3, 50.0  # so that uplinks limit
    crossings = [
        sum(a // 2 != b // 2 and a // 2 == 0 for a, b in zip(order, order[1:] + order[:1], strict=True))
        for order in permutations(range(n))
    ]
    setting = at(n, racks=racks, oversubscription=over)
    expected = np.mean(crossings) * 2 * (n - 1) / n / (2 / over)
    assert SCHEMES["unordered ring"].seconds(setting) == pytest.approx(expected)
    assert SCHEMES["ring"].seconds(setting) == pytest.approx(2 * (n - 1) / n / (2 / over))


def test_a_ring_in_the_order_of_the_racks_does_not_feel_an_oversubscription_of_as_many_machines_as_a_rack_has():
    times = [SCHEMES["ring"].seconds(at(8, racks=2, oversubscription=over)) for over in (1.0, 4.0, 8.0)]
    assert times == pytest.approx([1.75, 1.75, 3.5])


def test_phases_one_after_the_other_are_never_faster_than_the_ring_and_equal_without_oversubscription():
    for over in (1.0, 2.0, 4.0):
        setting = at(16, racks=4, oversubscription=over)
        across = 2 * 3 / 4 * over / 4  # M/4 of each of 4 machines, through an uplink of 4/over
        assert SCHEMES["hierarchical"].seconds(setting) == pytest.approx(2 * 3 / 4 + across)
        assert SCHEMES["hierarchical"].seconds(setting) >= SCHEMES["ring"].seconds(setting)


def test_a_ring_through_memory_touches_four_bytes_for_each_that_is_sent():
    host = Host(name="", memory_bytes_per_s=3.0)
    assert SCHEMES["staged ring"].seconds(at(4, host=host)) == pytest.approx(4 / 3 * SCHEMES["ring"].seconds(at(4)))


def test_steps_count_what_waits_for_each_other():
    setting = at(8, 4, racks=2)
    assert {name: scheme.steps(setting) for name, scheme in SCHEMES.items()} == {
        "ring": 14,
        "unordered ring": 14,
        "staged ring": 14,
        "hierarchical": 8,
        "flat": 2,
        "server": 2,
        "two-level": 4,
        "mixed": 4,
    }
    bare = limits.sync_seconds(0, "ring", setting)
    assert bare == pytest.approx(14 * limits.STEP_SECONDS)
    assert limits.sync_seconds(10, "ring", setting) == pytest.approx(bare + 10 * 1.75)


# Iterations


def test_models_demand_their_gradients_in_the_time_that_is_published():
    vgg = workloads.with_times(workloads.read("vgg16"))
    seconds = limits.compute_seconds(vgg.nbytes, np.array([limits.demand(vgg)]))
    assert seconds == pytest.approx([vgg.iteration_seconds])


def test_computation_hides_what_is_shorter():
    setting = at(8, 8, GBIT)
    demands = np.array([1e-9, 1e-1])
    times = limits.iteration_seconds(1e8, "flat", setting, demands)
    assert times[0] == limits.compute_seconds(1e8, demands)[0]
    assert times[1] == limits.sync_seconds(1e8, "flat", setting)


def test_the_simplest_wins_among_equals_and_nothing_is_won_where_the_ring_is_hidden():
    demands = np.array([1e-9, 1.0])
    slow = at(32, 32, GBIT, racks=4)
    assert limits.winners(1e9, slow, demands) == ["", "flat"]
    assert limits.winners(1e9, replace(slow, k=0), demands) == ["", "ring"]
    assert limits.winners(1e9, replace(slow, oversubscription=4.0), demands) == ["", "mixed"]
    # Start-ups decide where there are few bytes: a hierarchy has fewer steps than a ring, and BytePS fewer still.
    unable = Host(name="", memory_bytes_per_s=GBIT)
    assert limits.winners(1e3, replace(slow, k=0), demands)[1] == "flat"
    assert limits.winners(1e5, replace(slow, nic_bytes_per_s=100 * GBIT, host=unable), demands)[1] == "hierarchical"


def test_the_gain_is_the_ratio_of_iterations():
    slow = at(32, 32, GBIT)
    assert limits.gains(1e9, slow, np.array([1e-9, 1.0])) == pytest.approx([1, 2 * 31 / 32], rel=1e-3)


def test_cpu_machines_have_to_earn_their_price():
    slow, demands = at(32, 16, GBIT), np.array([1e-9, 1.0])
    gifts, dear = (Prices(gpu_machine=4.0, cpu_machine=price, source="") for price in (0.0, 4.0))
    assert limits.gains_per_price(1e9, slow, demands, gifts) == pytest.approx(limits.gains(1e9, slow, demands))
    assert limits.gains_per_price(1e9, slow, demands, dear) == pytest.approx(limits.gains(1e9, slow, demands) / 1.5)


def test_the_highest_rate_is_found():
    assert limits.highest_rate(lambda rate: rate <= 123 * GBIT) == pytest.approx(123 * GBIT)
    assert limits.highest_rate(lambda rate: True, high=500 * GBIT) == 500 * GBIT


# Hosts


def test_the_papers_adder_and_memory_limit_at_twice_its_nic():
    host = limits.paper_host()
    assert (host.adder_bytes_per_s, host.memory_bytes_per_s) == (276 * GBIT, 1024 * GBIT)

    def fraction(gbps):
        return SCHEMES["flat"].seconds(at(32, 32, gbps * GBIT, host=host)) * gbps * GBIT

    assert fraction(100) == pytest.approx(1)
    assert fraction(208) == pytest.approx(1)  # 1024 / ((5n - 3) / n) = 208.7
    assert fraction(212) > 1.005


def test_the_measured_adder_is_the_median_of_all_cores_in_fp32():
    def adder(seconds, block, **settings):
        settings = {"dtype": "fp32", "cores": "all", **settings}
        return made("cpu-adder", seconds, n=1, nbytes=10**9, settings=settings, block=block, experiment="fig9b")

    records = [adder(1.0, 0), adder(2.0, 1), adder(3.0, 2), adder(9.0, 0, cores="1"), adder(9.0, 0, dtype="fp16")]
    host = limits.measured_host(loaded("fig9b", records))
    assert host.adder_bytes_per_s == pytest.approx(5e8)
    assert limits.measured_host(loaded("fig9b", [])) is None
    assert (
        limits.measured_host(loaded("fig9b", [failed("cpu-adder", settings={"dtype": "fp32", "cores": "all"})])) is None
    )


# The paper's rules against exact plans

RATES = st.lists(st.sampled_from([25.0, 40.0, 100.0]), min_size=2, max_size=8)


@settings(deadline=None, max_examples=60)
@given(RATES, st.lists(st.sampled_from([10.0, 25.0, 100.0]), max_size=8))
def test_scaled_k_is_exact_for_equal_gpu_machines_and_never_faster_than_the_programme(gpu, cpu):
    for rates in (gpu, [gpu[0]] * len(gpu)):
        cluster = placement.unequal_cluster(rates, cpu)
        rule = placement.scaled_k_shares(cluster)
        assert sum(rule.all) == pytest.approx(1)
        exact = placement.seconds_of(cluster, cluster_shares(cluster))
        assert exact <= placement.seconds_of(cluster, rule) * (1 + 1e-6)
        if len(set(rates)) == 1:
            assert exact == pytest.approx(placement.seconds_of(cluster, rule))


def test_four_slow_cpu_machines_count_as_one():
    cluster = placement.unequal_cluster([100.0] * 8, [25.0] * 4)
    rule = placement.scaled_k_shares(cluster)
    assert rule.gpu == pytest.approx(paper_shares(8, 1).gpu)
    assert rule.cpu == pytest.approx([paper_shares(8, 1).cpu[0] / 4] * 4)


def test_the_rule_is_read_in_its_favour():
    """With the mean or the fastest NIC for b, GPU machines would get more, and the slow ones would be later."""
    cluster = placement.unequal_cluster([25.0] * 4 + [100.0] * 4, [25.0] * 4)
    rule = placement.seconds_of(cluster, placement.scaled_k_shares(cluster))
    assert rule == pytest.approx(theory.byteps_seconds(1, 8, 4, 25.0))


def test_ring_and_server_are_as_fast_as_the_slowest():
    cluster = placement.unequal_cluster([4.0, 2.0], [1.0, 2.0])
    assert placement.ring_seconds(cluster) == pytest.approx(0.5)
    assert placement.server_seconds(cluster) == pytest.approx(2 / 3)


@pytest.mark.parametrize("kind", ["exact", "hash"])
def test_no_placement_beats_the_optimum_and_smaller_partitions_come_closer(kind):
    found = [placement.balance("gpt2", 8, 4, size, kind) for size in (2**24, 2**18)]
    assert all(one.time >= 1 - 1e-9 and one.load >= 1 for one in found)
    assert found[0].time > found[1].time
    assert found[0].num_partitions < found[1].num_partitions


@pytest.mark.parametrize("model", paper.TITLES)
def test_exact_placement_is_better_balanced_than_the_hash(model):
    exact, by_hash = (placement.balance(model, 8, 4, 4_096_000, kind) for kind in ("exact", "hash"))
    assert exact.num_partitions == by_hash.num_partitions
    assert exact.time < 1.02
    assert by_hash.time > 1.05


def test_every_number_in_the_document_is_printed():
    """But for those of the measured adder, which is another one on another machine."""
    document = (Path(__file__).resolve().parents[2] / "docs" / "limits.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in document.splitlines()]
    printed = [line for line in tables.text(loaded("fig9b", [])).splitlines() if line.startswith("| ")]
    assert len(printed) > 40
    assert [line for line in printed if [cell.strip() for cell in line.split("|")] not in rows] == []
