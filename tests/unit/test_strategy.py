import math
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from insides import machine, machines

from byteps.assign import paper_shares
from byteps.machine_file import preset
from byteps.strategy import (
    brute_force,
    chained,
    cpu_assisted,
    hierarchical_loads,
    islands,
    mixed,
    reduce_broadcast,
    ring_loads,
    rule,
    strawman,
    traffic,
)

PCIE, NVLINK = preset("pcie-only"), preset("nvlink")


def network(n, k):
    """What a GPU machine sends, and as much receives, per gradient byte."""
    return 1 + (n - 2) * paper_shares(n, k).gpu[0]


def loads_of(plan, n=8, k=0):
    """Bytes by link, 0.0 where nothing passes."""
    return defaultdict(float, traffic(plan, network(n, k), network(n, k)))


def strategies(topology):
    return [
        cpu_assisted(topology),
        brute_force(topology),
        strawman(topology),
        rule(topology),
        reduce_broadcast(topology, topology.gpus),
        *(reduce_broadcast(topology, [gpu]) for gpu in topology.gpus),
    ]


def through(loads, node):
    """Bytes into and out of a node."""
    ends = [(*link.split("->"), amount) for link, amount in loads.items() if "->" in link]
    return sum(m for _, b, m in ends if b == node), sum(m for a, _, m in ends if a == node)


def added(stages):
    total = defaultdict(float)
    for loads in stages:
        for link, amount in loads.items():
            total[link] += amount
    return total


# What holds on every machine


@settings(deadline=None, max_examples=40)
@given(machines(efficiencies=[1.0]))
def test_every_gpu_gives_its_gradient_once_and_gets_the_result_once(topology):
    for plan in strategies(topology):
        for gpu in topology.gpus:
            _, given_away = through(added(plan.before), gpu)
            got, _ = through(added(plan.after), gpu)
            assert given_away == pytest.approx(1), (plan.name, gpu)
            assert got == pytest.approx(1), (plan.name, gpu)


@settings(deadline=None, max_examples=40)
@given(machines())
def test_what_enters_a_switch_or_a_fabric_leaves_it(topology):
    nodes = [node.name for node in topology.nodes if node.kind in ("switch", "fabric")]
    for plan in strategies(topology):
        for loads in (*plan.before, plan.sending, plan.receiving, *plan.after):
            for node in nodes:
                into, out = through(loads, node)
                assert into == pytest.approx(out), (plan.name, node)


@settings(deadline=None, max_examples=40)
@given(machines())
def test_the_result_goes_back_the_way_the_gradients_came(topology):
    for plan in strategies(topology):
        before, after = added(plan.before), added(plan.after)
        if plan.name != "strawman":  # whose ring turns one way only
            for link in {link for link in [*before, *after] if "->" in link}:
                back = "->".join(reversed(link.split("->")))
                assert before[link] == pytest.approx(after[back]), (plan.name, link)


@settings(deadline=None, max_examples=40)
@given(machines(least_nics=1))
def test_each_byte_sent_or_received_passes_one_nic_and_the_memory_of_its_cpu(topology):
    rates = [topology.capacities[f"{nic}.out"] for nic in topology.nics]
    for plan in strategies(topology):
        for loads, suffix in ((plan.sending, "out"), (plan.receiving, "in")):
            for nic, rate in zip(topology.nics, rates, strict=True):
                assert loads[f"{nic}.{suffix}"] == pytest.approx(rate / sum(rates))
            assert sum(amount for link, amount in loads.items() if link.endswith(".memory")) == pytest.approx(1)
            assert not any(link.split("->")[0] in topology.cpus and "->CPU" in link for link in loads)


@settings(deadline=None, max_examples=40)
@given(machines())
def test_only_known_links_are_loaded(topology):
    for loads in [ring_loads(topology, 1), ring_loads(topology, 4), hierarchical_loads(topology, 4)] + [
        traffic(plan, 2, 3) for plan in strategies(topology)
    ]:
        assert set(loads) <= set(topology.capacities)
        assert all(0 <= amount < math.inf for amount in loads.values())


@settings(deadline=None, max_examples=40)
@given(machines(least_gpus=2))
def test_gpus_of_an_island_never_meet_at_a_cpu(topology):
    for island in islands(topology):
        for a, b in pairwise(island):
            assert not any(cpu in link for cpu in topology.cpus for link in topology.route(a, b))


@settings(deadline=None, max_examples=40)
@given(machines(least_gpus=2, efficiencies=[1.0]))
def test_brute_force_and_cpu_assisted_cross_each_socket_link_at_most_once_each_way(topology):
    for plan in (brute_force(topology), cpu_assisted(topology)):
        for stages in (plan.before, plan.after):
            for link, amount in added(stages).items():
                if all(end in topology.cpus for end in link.split("->")):
                    assert amount <= 1 + 1e-9


# The paper's machines


@pytest.mark.parametrize("k, load", [(0, 1.75), (8, 1.0)])
@pytest.mark.parametrize(
    "roots, p0, p1, p2, socket",
    [
        (["GPU2"], 0, 1, 0, 0),
        (["GPU2", "GPU3"], 0, 1, 0, 0),
        (NVLINK.gpus, 1 / 4, 1 / 4, 1 / 4, 1 / 2),
        (["GPU0"], 1, 0, 0, 0),
    ],
)
def test_what_the_choice_of_roots_costs_on_the_nvlink_machine(roots, p0, p1, p2, socket, k, load):
    loads = loads_of(reduce_broadcast(NVLINK, roots), k=k)
    ways = [("P0", "CPU0"), ("P1", "CPU0"), ("P2", "CPU1"), ("P3", "CPU1"), ("CPU1", "CPU0")]
    for (a, b), amount in zip(ways, [load + p0, p1, p2, p2, socket], strict=True):
        assert loads[f"{a}->{b}"] == pytest.approx(amount)
        assert loads[f"{b}->{a}"] == pytest.approx(amount)


@pytest.mark.parametrize("k, load", [(0, 1.75), (8, 1.0)])
def test_cpu_assisted_aggregation_on_the_pcie_only_machine(k, load):
    loads = loads_of(cpu_assisted(PCIE), k=k)
    for ends, amount in [
        *((f"GPU{i} P{i // 4}", 7 / 4) for i in range(8)),
        ("P0 CPU0", 1),
        ("P1 CPU1", 1),
        ("CPU1 CPU0", 1),
        ("NIC0 CPU0", load),
    ]:
        a, b = ends.split()
        assert loads[f"{a}->{b}"] == pytest.approx(amount)
        assert loads[f"{b}->{a}"] == pytest.approx(amount)
    assert loads["NIC0.out"] == loads["NIC0.in"] == pytest.approx(load)


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 5])
def test_cpu_assisted_aggregation_with_any_number_of_gpus_under_a_switch(gpus):
    loads = loads_of(cpu_assisted(machine([[gpus], [gpus]], ["CPU0"])))
    assert loads["GPU0->P0"] == pytest.approx((2 * gpus - 1) / gpus)
    assert loads["P0->CPU0"] == loads["CPU1->CPU0"] == pytest.approx(1)


def test_unequal_switches_each_share_their_own_copying_equally():
    loads = loads_of(cpu_assisted(machine([[3, 2], [0]], ["CPU0"])))
    assert [loads[f"GPU{i}->P{i // 3}"] for i in range(5)] == pytest.approx([5 / 3] * 3 + [3 / 2] * 2)
    assert loads["GPU5->CPU1"] == loads["P0->CPU0"] == loads["P1->CPU0"] == pytest.approx(1)


def test_cpu_assisted_aggregation_takes_a_quarter_less_than_the_direct_collective():
    scatter, gather = (stages for stages in (strawman(PCIE).before[0], strawman(PCIE).after[1]))
    direct = added([scatter, gather])
    assert direct["P0->CPU0"] == pytest.approx(7 / 4 * 105 / 80)
    assert direct["GPU3->P0"] == pytest.approx(7 / 4 * 105 / 80)
    assert direct["GPU0->P0"] == pytest.approx(7 / 4)
    assert direct["CPU0->CPU1"] == pytest.approx(7 / 4)
    assisted = loads_of(cpu_assisted(PCIE))
    longest = max(assisted[link] for link in direct if "GPU" in link)
    assert 1 - longest / max(direct.values()) == pytest.approx(0.238, abs=0.001)


def test_the_strawman_copies_an_eighth_per_gpu():
    plan = strawman(PCIE)
    assert plan.before[1]["GPU5->P1"] == plan.after[0]["P1->GPU5"] == pytest.approx(1 / 8)
    assert plan.before[1]["P1->CPU1"] == pytest.approx(1 / 2)


def test_brute_force_copies_everything_and_needs_four_times_the_memory_bandwidth():
    brute, assisted = loads_of(brute_force(PCIE)), loads_of(cpu_assisted(PCIE))
    assert [brute[link] for link in ("GPU0->P0", "P0->CPU0", "P1->CPU1", "CPU1->CPU0")] == [1, 4, 4, 1]

    def copied_to_memory(plan):
        return sum(amount for link, amount in plan.before[1].items() if link.endswith(".memory"))

    assert copied_to_memory(brute_force(PCIE)) == pytest.approx(4 * copied_to_memory(cpu_assisted(PCIE)))
    # All of it: 8 written, 4 + 1 and 4 + 1 for two sums, 1 read from afar, 1.75 each way, 2 between CPUs, 8 read.
    assert brute["CPU0.memory"] + brute["CPU1.memory"] == 8 + 5 + 5 + 1 + 3.5 + 2 + 8
    assert assisted["CPU0.memory"] + assisted["CPU1.memory"] == pytest.approx(2 + 3 + 3.5 + 2)


def test_chains_cross_sockets_and_switches_once():
    two_each = machine([[2, 2], [2, 2]], ["CPU0"])
    loads = loads_of(reduce_broadcast(two_each, ["GPU1"]), k=8)
    assert loads["CPU1->CPU0"] == loads["CPU0->CPU1"] == 1
    # Once up on the way to the root, and once more on the way back where the chain goes on; the root copies as well.
    assert [loads[f"P{i}->CPU{i // 2}"] for i in range(4)] == [2, 2, 1, 2]


def test_a_root_serves_the_nic_of_its_own_cpu():
    topology = machine([[2], [2]], ["CPU1", "CPU0"], fabrics=[range(4)])
    loads = loads_of(reduce_broadcast(topology, ["GPU0", "GPU2"]))
    assert loads["CPU0->CPU1"] == loads["CPU1->CPU0"] == 0
    assert loads["NIC0.out"] == loads["NIC1.out"] == pytest.approx(1.75 / 2)


def test_nics_carry_in_proportion_to_their_rates():
    topology = machine([[2], [2]], ["CPU0", "CPU1"])
    slow = [replace(node, bytes_per_s=node.bytes_per_s / 2) if node.name == "NIC1" else node for node in topology.nodes]
    topology = replace(topology, nodes=tuple(slow))
    for plan in strategies(topology):
        assert plan.sending["NIC0.out"] == pytest.approx(2 / 3)


def test_a_mixture_is_the_weighted_sum_of_its_parts():
    one, other = brute_force(PCIE), cpu_assisted(PCIE)
    both = loads_of(mixed("both", [(0.25, one), (0.75, other)]))
    for link in PCIE.capacities:
        assert both[link] == pytest.approx(0.25 * loads_of(one)[link] + 0.75 * loads_of(other)[link])


# What is refused


@pytest.mark.parametrize("roots", [[], ["GPU8"], ["P0"]])
def test_unknown_roots_are_named(roots):
    with pytest.raises(ValueError, match="has the GPUs"):
        reduce_broadcast(PCIE, roots)


@pytest.mark.parametrize("scheme", [cpu_assisted, strawman, lambda t: ring_loads(t, 2), lambda t: ring_loads(t, 1)])
def test_schemes_between_gpus_need_some(scheme):
    with pytest.raises(ValueError, match="no GPUs"):
        scheme(machine([[]], ["CPU0"]))


def test_a_chain_of_one_gpu_is_a_copy():
    plan = chained(PCIE, [("GPU4",)], "NIC0")
    assert plan.before == ({}, {"GPU4->P1": 1, "P1->CPU1": 1, "CPU1->CPU0": 1, "CPU0.memory": 1}, {})
