from itertools import pairwise, product

import pytest

from byteps.machine import preset, presets

ENDS = ("gpu", "nic", "cpu", "switch")


@pytest.mark.parametrize("name", presets())
def test_every_route_goes_by_links_from_end_to_end_and_never_through_a_device(name):
    topology = preset(name)
    ends = [node.name for node in topology.nodes if node.kind in ENDS]
    devices = set(topology.gpus + topology.nics)
    for a, b in product(ends, ends):
        hops = [tuple(link.split("->")) for link in topology.route(a, b)]
        assert {f"{x}->{y}" for x, y in hops} <= set(topology.capacities)
        assert len(hops) == len(topology.route(b, a)) == len(set(hops))
        path = [a, *(y for _, y in hops)]
        assert list(pairwise(path)) == hops
        assert path[-1] == b
        assert not devices & set(path[1:-1])


def test_the_papers_pcie_machine_has_a_nic_with_lanes_of_its_own():
    topology = preset("pcie-only")
    assert (topology.nic_switches, topology.gpu_switches) == ((), ("P0", "P1"))
    assert topology.route("GPU0", "GPU3") == ("GPU0->P0", "P0->GPU3")
    assert topology.route("GPU7", "NIC0") == ("GPU7->P1", "P1->CPU1", "CPU1->CPU0", "CPU0->NIC0")
    assert topology.capacities["P0->CPU0"] == pytest.approx(13.125e9)
    assert topology.capacities["NIC0.out"] == topology.capacities["NIC0.in"] == pytest.approx(90e9 / 8)
    assert not topology.has_nvlink


def test_the_papers_nvlink_machine_has_its_nic_on_the_first_switch():
    topology = preset("nvlink")
    assert (topology.nic_switches, topology.gpu_switches) == (("P0",), ("P1", "P2", "P3"))
    assert topology.route("GPU0", "GPU7") == ("GPU0->NVLink0", "NVLink0->GPU7")
    assert topology.route("GPU6", "CPU0") == ("GPU6->P3", "P3->CPU1", "CPU1->CPU0")
    assert topology.has_nvlink
