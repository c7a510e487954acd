from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from insides import GBIT, machine, machines

from byteps import planner
from byteps.machine import Link, Node
from byteps.machine_file import preset
from byteps.planner import choose, fastest_mixture, simulated_seconds
from byteps.strategy import brute_force, cpu_assisted, reduce_broadcast, rule, traffic
from byteps.topology import load_topology

TOPOLOGIES = Path(__file__).parents[3] / "shared" / "reference" / "topologies"
XML_FILES = sorted(TOPOLOGIES.glob("*.xml")) or [
    pytest.param(TOPOLOGIES, marks=pytest.mark.skip(reason=f"no machine descriptions in {TOPOLOGIES}"))
]
LOADS = [(1.0, 1.0), (1.75, 1.75)]  # of the network, with as many CPU machines as GPU machines, and with none of 8
PAPER = machine([[4], [4]], ["CPU0"], nic=0, memory=0)  # its argument about mixtures: only PCIe counts


def with_rates(topology, **rates):
    """`rates`: Gbit/s of the links of so named switches to their CPUs."""
    links = [replace(ln, bytes_per_s=rates[ln.a] * GBIT) if ln.a in rates else ln for ln in topology.links]
    return replace(topology, links=tuple(links))


# What holds on every machine


@settings(deadline=None, max_examples=20)
@given(machines(), st.sampled_from(LOADS))
def test_the_choice_is_never_slower_than_the_rule_and_never_faster_than_the_programme(topology, load):
    choice = choose(topology, *load, partitions=8)
    assert choice.best.seconds <= choice.rule.seconds
    assert choice.rule.plan == rule(topology)
    for candidate in choice.candidates:
        assert choice.least_seconds <= candidate.least_seconds * (1 + 1e-6)
        assert candidate.least_seconds <= candidate.seconds * (1 + 1e-6)
    assert choice.best.seconds <= choice.candidates[0].seconds / (1 - planner._AS_FAST)
    assert choice.best.plan.reason


@settings(deadline=None, max_examples=10)
@given(machines(), st.sampled_from([0.25, 8.0]))
def test_links_that_are_all_faster_make_it_as_many_times_faster(topology, times):
    nodes = tuple(replace(node, bytes_per_s=node.bytes_per_s * times) for node in topology.nodes)
    links = tuple(replace(link, bytes_per_s=link.bytes_per_s * times) for link in topology.links)
    slow, fast = (choose(t, 1.5, 1.5, 4) for t in (topology, replace(topology, nodes=nodes, links=links)))
    assert slow.best.plan.name == fast.best.plan.name
    assert slow.best.seconds == pytest.approx(fast.best.seconds * times)
    assert slow.least_seconds == pytest.approx(fast.least_seconds * times)


@settings(deadline=None, max_examples=10)
@given(machines(least_gpus=2, least_nics=1), st.integers(0, 2), st.sampled_from(LOADS))
def test_one_more_nic_never_makes_the_least_time_longer(topology, cpu, load):
    more = replace(
        topology,
        nodes=(*topology.nodes, Node(name="NIC9", kind="nic", bytes_per_s=25 * GBIT)),
        links=(*topology.links, Link(a="NIC9", b=topology.cpus[cpu % len(topology.cpus)], kind="pcie")),
    )
    few, many = (choose(t, *load, partitions=2).least_seconds for t in (topology, more))
    assert many <= few * (1 + 1e-6)


@settings(deadline=None, max_examples=20)
@given(machines(least_gpus=2), st.integers(1, 20))
def test_partitions_overlap_but_each_goes_through_all_stages(topology, partitions):
    plan = rule(topology)
    stages = [(1, loads) for loads in (*plan.before, *plan.after)] + [(1.5, plan.sending), (0.5, plan.receiving)]
    each = [
        max((times * load / topology.capacities[link] for link, load in loads.items()), default=0)
        for times, loads in stages
    ]
    busiest = max(amount / topology.capacities[link] for link, amount in traffic(plan, 1.5, 0.5).items())
    seconds = simulated_seconds(plan, topology.capacities, 1.5, 0.5, partitions)
    assert seconds == pytest.approx(sum(each)) if partitions == 1 else seconds <= sum(each) * (1 + 1e-9)
    assert seconds >= busiest * (1 - 1e-9)
    assert seconds >= max(each) + (sum(each) - max(each)) / partitions - 1e-9 * sum(each)


# The paper's machines


def test_the_papers_mixed_optimum():
    seconds, mixture = fastest_mixture([cpu_assisted(PAPER), brute_force(PAPER)], PAPER.capacities, 1, 1)
    assert mixture.name == "80% cpu-assisted + 20% brute-force"
    loads = traffic(mixture, 1, 1)
    assert [loads["P0->CPU0"], loads["GPU0->P0"]] == pytest.approx([1.6, 1.6], rel=1e-5)
    assert seconds == pytest.approx(1.6 / (105 * GBIT))
    assisted = traffic(cpu_assisted(PAPER), 1, 1)["GPU0->P0"]
    assert assisted / 1.6 == pytest.approx(1.09, abs=0.005)


def test_no_other_strategy_improves_on_the_papers_mixed_optimum():
    choice = choose(PAPER, 1, 1)
    assert choice.best.plan.name == "80% cpu-assisted + 20% brute-force"
    assert choice.least_seconds == pytest.approx(1.6 / (105 * GBIT))
    assert "less time than cpu-assisted, which GPU0->P0 limits" in choice.best.plan.reason


@pytest.mark.parametrize("memory, brute_share", [(530, 0), (600, 0.0886), (690, 0.2), (1024, 0.2)])
def test_host_memory_limits_the_mixture_since_brute_force_needs_four_times_as_much(memory, brute_share):
    topology = machine([[4], [4]], ["CPU0"], memory=memory)
    _, mixture = fastest_mixture([cpu_assisted(topology), brute_force(topology)], topology.capacities, 1, 1)
    copied = sum(amount for link, amount in mixture.before[1].items() if link.endswith(".memory"))
    assert copied / 2 == pytest.approx(1 + 3 * brute_share, rel=0.01)


def test_what_more_host_memory_bandwidth_would_bring_is_said():
    choice = choose(machine([[4], [4]], ["CPU0"], memory=530), 1, 1)
    assert "with more host memory bandwidth 80% cpu-assisted + 20% brute-force would take" in choice.best.plan.reason
    assert "memory" not in choose(machine([[4], [4]], ["CPU0"], memory=1024), 1, 1).best.plan.reason


def test_the_papers_choice_on_its_pcie_only_machine_while_the_nic_is_the_limit():
    choice = choose(preset("pcie-only"), 1.75, 1.75)
    assert (choice.best.plan.name, choice.best.bottleneck) == ("cpu-assisted", "NIC0.out")
    assert choice.best.least_seconds == pytest.approx(choice.least_seconds)


def test_something_faster_on_the_pcie_only_machine_while_pcie_is_the_limit():
    choice = choose(preset("pcie-only"), 1, 1)
    assert choice.least_seconds < 0.92 * choice.rule.least_seconds
    assert choice.best.seconds < 0.95 * choice.rule.seconds
    assert choice.best.seconds < 1.05 * choice.least_seconds


@pytest.mark.parametrize("load", LOADS)
def test_the_papers_choice_on_its_nvlink_machine(load):
    choice = choose(preset("nvlink"), *load)
    assert choice.best.plan.name == "reduce-broadcast"
    assert set(choice.best.plan.roots) == {"GPU2", "GPU3"}
    assert choice.best.plan.reason == "roots elsewhere leave P0-CPU0 to the NIC; NIC0.out is the limit"
    assert choice.best.least_seconds == pytest.approx(choice.least_seconds)


@pytest.mark.parametrize("load", LOADS)
def test_the_order_of_roots_on_the_nvlink_machine_is_that_of_figure_14(load):
    nvlink = preset("nvlink")
    away, everywhere, at_the_nic = (
        simulated_seconds(reduce_broadcast(nvlink, roots), nvlink.capacities, *load, 400)
        for roots in (["GPU2"], nvlink.gpus, ["GPU0"])
    )
    assert away < 1.005 * everywhere  # bandwidths alone tell no difference; contention does
    assert 1.3 * everywhere < at_the_nic


# What the rule does not see


def test_roots_behind_a_slow_link_are_left():
    topology = with_rates(machine([[2, 2], [2]], ["P0"], fabrics=[range(6)]), P1=25)
    assert set(rule(topology).roots) == {"GPU2", "GPU3"}
    choice = choose(topology, 1, 1)
    assert choice.rule.bottleneck == "P1->CPU0"
    assert choice.best.seconds < 0.3 * choice.rule.seconds
    assert "keeps P0-CPU0 for the NIC, takes 7" in choice.best.plan.reason
    assert "less time than reduce-broadcast, which P1->CPU0 limits" in choice.best.plan.reason


def test_a_mixture_weighs_unequal_ways():
    topology = with_rates(machine([[1, 1], []], fabrics=[range(2)]), P0=90, P1=30)
    seconds, mixture = fastest_mixture(
        [reduce_broadcast(topology, ["GPU0"]), reduce_broadcast(topology, ["GPU1"])], topology.capacities, 0, 0
    )
    assert mixture.name == "weighted reduce-broadcast"
    assert mixture.before[1]["P0->CPU0"] == pytest.approx(3 / 4)
    assert seconds == pytest.approx(1 / (120 * GBIT))


def test_crumbs_are_left_out_of_a_mixture():
    topology = with_rates(machine([[1, 1], []], fabrics=[range(2)]), P0=104, P1=1)
    columns = [reduce_broadcast(topology, ["GPU0"]), reduce_broadcast(topology, ["GPU1"])]
    seconds, mixture = fastest_mixture(columns, topology.capacities, 0, 0)
    assert mixture.before[1]["P0->CPU0"] == pytest.approx(1)
    assert seconds == pytest.approx(1 / (105 * GBIT))


# Odd machines


@pytest.mark.parametrize(
    "topology, bottleneck",
    [
        (machine([[]], ["CPU0"]), "NIC0.out"),
        (machine([[1]], ["P0"], nic=400), "P0->CPU0"),
        (machine([[0]], ["CPU0"]), "NIC0.out"),
        (machine([[2]]), "GPU0->P0"),
        (machine([[0, 0], [0]], ["CPU1"]), "NIC0.out"),
        (machine([[2]], ["P0"], gpu=0, switch=0, socket=0, nic=0, memory=0), ""),
        (machine([[]]), ""),
    ],
)
def test_machines_with_little_to_choose(topology, bottleneck):
    choice = choose(topology, 1, 1)
    assert choice.best.bottleneck == bottleneck
    assert (choice.best.seconds > 0) == bool(bottleneck)
    assert choice.best.plan.reason.endswith(f"{bottleneck} is the limit" if bottleneck else "no rate is known")


# Real machines


@pytest.mark.parametrize("file", XML_FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("load", LOADS)
def test_real_machines_are_planned_at_least_as_well_as_by_the_rule(file, load):
    choice = choose(load_topology(file), *load, partitions=32)
    assert choice.best.seconds <= choice.rule.seconds
    assert choice.best.bottleneck
    assert choice.best.seconds < 1.2 * choice.least_seconds


@pytest.mark.skipif(not TOPOLOGIES.exists(), reason=f"no machine descriptions in {TOPOLOGIES}")
@pytest.mark.parametrize("load", LOADS)
def test_more_nics_make_a_real_machine_faster(load):
    one, three, six = (
        choose(load_topology(TOPOLOGIES / f"topo_8p6l{nics}.xml"), *load, partitions=32).best.seconds
        for nics in ("", "_3nic", "_6nic")
    )
    assert one > 2.8 * three > 5 * six
