from collections import defaultdict

import pytest
from insides import machine

from byteps.machine_file import preset
from byteps.strategy import hierarchical_loads, ring_loads, rule, traffic

PCIE, NVLINK = preset("pcie-only"), preset("nvlink")


# The paper's rule


@pytest.mark.parametrize(
    "topology, name, roots, reason",
    [
        (PCIE, "cpu-assisted", PCIE.gpus, "no NVLink joins all 8 GPUs"),
        (NVLINK, "reduce-broadcast", ("GPU2", "GPU3"), "leave P0-CPU0 to the NIC"),
        (machine([[2], [2]], ["P0"], fabrics=[range(4)]), "reduce-broadcast", ("GPU2", "GPU3"), "P0-CPU0"),
        (machine([[2], [2]], ["P0", "P1"], fabrics=[range(4)]), "reduce-scatter", 4, "every switch"),
        (machine([[2], [2]], ["CPU0"], fabrics=[range(4)]), "reduce-scatter", 4, "no switch"),
        (machine([[2], [2]], fabrics=[range(4)]), "reduce-scatter", 4, "no switch"),
        (machine([[2, 2], [2]], ["P0", "P1"], fabrics=[range(6)]), "reduce-broadcast", 2, "P0-CPU0 and P1-CPU0"),
        (machine([[2, 2]], ["P0"], fabrics=[range(2), range(2, 4)]), "cpu-assisted", 4, "no NVLink joins all"),
        (machine([[3], [2]], ["CPU0"]), "cpu-assisted", 5, "no NVLink"),
        (machine([[0, 0], [0]], ["CPU0"]), "cpu-assisted", 3, "no NVLink"),
        (machine([[1]], ["P0"]), "reduce-broadcast", ("GPU0",), "only one GPU"),
        (machine([[0]]), "reduce-broadcast", ("GPU0",), "only one GPU"),
        (machine([[]], ["CPU0"]), "none", (), "no GPUs"),
        (machine([[]]), "none", (), "no GPUs"),
    ],
)
def test_the_rule_and_its_reason(topology, name, roots, reason):
    plan = rule(topology)
    assert plan.name == name
    assert len(plan.roots) == roots if isinstance(roots, int) else set(plan.roots) == set(roots)
    assert reason in plan.reason
    assert bool(plan.sending) == bool(topology.nics)


def test_a_machine_without_gpus_has_its_network_only():
    plan = rule(machine([[], []], ["CPU0", "CPU1"]))
    assert traffic(plan, 1, 0) == {
        "CPU0.memory": 0.5,
        "CPU1.memory": 0.5,
        "CPU0->NIC0": 0.5,
        "CPU1->NIC1": 0.5,
        "NIC0.out": 0.5,
        "NIC1.out": 0.5,
        "NIC0.in": 0,
        "NIC1.in": 0,
        "NIC0->CPU0": 0,
        "NIC1->CPU1": 0,
    }


# Opponents


@pytest.mark.parametrize("topology", [PCIE, NVLINK, machine([[0, 0], [3]], ["CPU0", "CPU1"])])
@pytest.mark.parametrize("n", [2, 8])
def test_a_ring_over_all_gpus_carries_two_passes_on_every_hop(topology, n):
    loads = defaultdict(float, ring_loads(topology, n))
    ranks = n * len(topology.gpus)
    amount = 2 * (ranks - 1) / ranks
    assert sum(loads[f"{nic}.out"] for nic in topology.nics) == pytest.approx(amount)
    assert sum(loads[f"{nic}.in"] for nic in topology.nics) == pytest.approx(amount)
    for gpu in topology.gpus:
        into = sum(load for link, load in loads.items() if link.endswith(f"->{gpu}"))
        out = sum(load for link, load in loads.items() if link.startswith(f"{gpu}->"))
        assert into >= amount - 1e-9  # more where it comes from beyond a CPU
        assert out >= amount - 1e-9


def test_a_ring_without_gpudirect_crosses_the_switch_of_the_nic_twice():
    loads = ring_loads(NVLINK, 8)
    assert loads["P0->CPU0"] == loads["CPU0->P0"] == pytest.approx(2 * 2 * 63 / 64)
    assert loads["P0->GPU0"] == loads["GPU1->P0"] == loads["P0->CPU0"] / 2
    assert loads["CPU0.memory"] == pytest.approx(4 * 2 * 63 / 64)


def test_a_ring_passes_every_switch_once():
    loads = ring_loads(machine([[2, 2], [2, 2]], ["CPU0"]), 8)
    assert {loads[f"P{i}->CPU{i // 2}"] for i in range(4)} == {2 * 63 / 64}
    assert loads["CPU0->CPU1"] == loads["CPU1->CPU0"] == 2 * 63 / 64


def test_a_ring_inside_one_machine_needs_no_network():
    loads = ring_loads(NVLINK, 1)
    assert set(loads.values()) == {2 * 7 / 8}
    assert all("NVLink0" in link for link in loads)


def test_the_hierarchical_scheme_sends_each_gpus_part_around_a_ring_of_machines():
    loads = hierarchical_loads(NVLINK, 8)
    assert loads["NIC0.out"] == loads["NIC0.in"] == pytest.approx(7 / 4)
    assert loads["GPU5->P2"] == loads["P2->GPU5"] == pytest.approx(7 / 4 / 8)
    assert loads["GPU5->NVLink0"] == pytest.approx(7 / 4)
    assert (
        hierarchical_loads(machine([[1]], ["CPU0"]), 4)["GPU0->P0"]
        == ring_loads(machine([[1]], ["CPU0"]), 4)["GPU0->P0"]
    )
