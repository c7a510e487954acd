import re
import time
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import byteps.machine_file
from byteps.machine import PRESETS, Link, Node, Topology
from byteps.machine_file import parse_machine, preset

TEXT = """
source = "data sheet"
peer_efficiency = 0.8

[[cpu]]
names = ["CPU0", "CPU1"]
memory = "1000Gbit"

[[socket]]
between = ["CPU0", "CPU1"]
rate = "300Gbit"

[[switch]]
names = ["P0"]
under = "CPU0"
rate = "100Gbit"

[[switch]]
names = ["P1"]
under = "P0"
rate = "50Gbit"

[[gpu]]
names = ["GPU0", "GPU1"]
under = "P1"
rate = "100Gbit"

[[gpu]]
names = ["GPU2"]
under = "CPU1"
rate = "100Gbit"

[[nic]]
names = ["NIC0"]
under = "P0"
rate = "100Gbit"
network = "90Gbit"

[[fabric]]
name = "NVLink0"
gpus = ["GPU0", "GPU1"]
rate = "1.2Tbit"
"""


def machine():
    return parse_machine(TEXT, "mine.toml")


@pytest.mark.parametrize("name", PRESETS)
def test_every_route_goes_by_links_from_end_to_end_and_never_through_a_device(name):
    topology = preset(name)
    devices = set(topology.gpus + topology.nics)
    for a, b in product((*devices, *topology.cpus, *topology.switches), repeat=2):
        hops = [tuple(link.split("->")) for link in topology.route(a, b)]
        assert {f"{x}->{y}" for x, y in hops} <= set(topology.capacities)
        assert len(hops) == len(topology.route(b, a)) == len(set(hops))
        path = [a, *(y for _, y in hops)]
        assert list(pairwise(path)) == hops
        assert path[-1] == b
        assert not devices & set(path[1:-1])


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_8_gpus_2_cpus_and_rates_or_a_warning(name):
    topology = preset(name)
    assert (len(topology.gpus), len(topology.cpus), topology.name) == (8, 2, name)
    unknown = [link for link, rate in topology.capacities.items() if rate == float("inf")]
    assert bool(unknown) == bool(topology.warnings)
    assert all(link.startswith("CPU") for link in unknown)  # NVIDIA does not say how sockets are joined


def test_every_preset_is_listed():
    files = Path(byteps.machine_file.__file__).with_name("machines").glob("*.toml")
    assert sorted(path.stem for path in files) == list(PRESETS)
    with pytest.raises(ValueError, match="'dgx-2' is no preset; there are dgx-1v, "):
        preset("dgx-2")


def test_the_papers_pcie_machine_has_a_nic_with_lanes_of_its_own():
    topology = preset("pcie-only")
    assert (topology.nic_switches, topology.gpu_switches) == ((), ("P0", "P1"))
    assert topology.route("GPU0", "GPU3") == ("GPU0->P0", "P0->GPU3")
    assert topology.route("GPU7", "NIC0") == ("GPU7->P1", "P1->CPU1", "CPU1->CPU0", "CPU0->NIC0")
    assert topology.capacities["P0->CPU0"] == 105e9 / 8
    assert topology.capacities["NIC0.out"] == topology.capacities["NIC0.in"] == 90e9 / 8
    assert topology.capacities["CPU1.memory"] == 1024e9 / 8
    assert topology.peer_efficiency == pytest.approx(80 / 105)
    assert not topology.has_nvlink


def test_the_papers_nvlink_machine_has_its_nic_on_the_first_switch():
    topology = preset("nvlink")
    assert (topology.nic_switches, topology.gpu_switches) == (("P0",), ("P1", "P2", "P3"))
    assert topology.route("GPU0", "GPU7") == ("GPU0->NVLink0", "NVLink0->GPU7")
    assert topology.route("GPU6", "CPU0") == ("GPU6->P3", "P3->CPU1", "CPU1->CPU0")
    assert topology.has_nvlink


def test_more_nics_change_which_switches_have_one():
    for name, switches in (("multi-nic", 2), ("dgx-1v", 4), ("dgx-a100", 4), ("dgx-h100", 8)):
        assert (len(preset(name).nic_switches), preset(name).gpu_switches) == (switches, ())


def test_each_gpu_of_a_dgx_has_its_nvlinks_together():
    gigabytes = {"dgx-1v": 150, "dgx-a100": 300, "dgx-h100": 450}  # each way; data sheets give twice that
    for name, rate in gigabytes.items():
        fabric = preset(name).fabric_of("GPU0")
        assert preset(name).capacities[f"GPU0->{fabric}"] == rate * 1e9


def test_a_file_describes_nested_switches_fabrics_and_gpus_right_at_a_cpu():
    topology = machine()
    assert (topology.gpus, topology.nics, topology.switches) == (("GPU0", "GPU1", "GPU2"), ("NIC0",), ("P0", "P1"))
    assert (topology.switch_of("GPU0"), topology.switch_of("GPU2"), topology.cpu_of("GPU2")) == ("P0", "", "CPU1")
    assert (topology.nic_switches, topology.gpu_switches) == (("P0",), ("GPU2",))
    assert topology.route("GPU0", "NIC0") == ("GPU0->P1", "P1->P0", "P0->NIC0")
    assert topology.route("GPU0", "GPU2") == ("GPU0->P1", "P1->P0", "P0->CPU0", "CPU0->CPU1", "CPU1->GPU2")
    assert topology.route("CPU0", "P1") == ("CPU0->P0", "P0->P1")
    assert topology.capacities["GPU1->NVLink0"] == topology.capacities["NVLink0->GPU1"] == 150e9
    assert (topology.name, topology.source, topology.warnings) == ("mine", "data sheet", ())


def test_the_documented_files_are_read_as_the_same():
    short = "\n".join(line for line in byteps.machine_file.__doc__.splitlines() if line.startswith("    "))
    documented = (Path(__file__).parents[2] / "docs" / "machines.md").read_text(encoding="utf-8")
    (long,) = re.findall(r"```toml\n(.*?)```", documented, re.DOTALL)
    topology = parse_machine(short, "mine.toml")
    assert parse_machine(long, "mine.toml") == replace(topology, source="where the rates are from")
    assert topology.nic_switches == ("P0",)


def test_a_rate_that_is_not_given_never_limits_and_is_named():
    topology = parse_machine(TEXT.replace('rate = "300Gbit"', "").replace('"90Gbit"', '""'), "mine.toml")
    assert topology.capacities["CPU1->CPU0"] == topology.capacities["NIC0.in"] == float("inf")
    (warning,) = topology.warnings
    assert "never limiting: socket links (CPU0 to CPU1), network (NIC0)" in warning


def test_cpus_that_are_not_joined_directly_are_reached_over_others_by_the_fewest_links():
    ring = [f"CPU{i}" for i in range(5)]
    links = [Link(a=a, b=b, kind="socket") for a, b in pairwise([*ring, "CPU0"])]
    topology = parse_machine(
        TEXT.split("[[socket]]")[0].replace('"CPU1"]', '"CPU1", "CPU2", "CPU3", "CPU4"]')
        + "".join(f'[[socket]]\nbetween = ["{link.a}", "{link.b}"]\n' for link in links),
        "ring.toml",
    )
    assert topology.route("CPU1", "CPU4") == ("CPU1->CPU0", "CPU0->CPU4")
    assert topology.route("CPU1", "CPU3") == ("CPU1->CPU2", "CPU2->CPU3")


@pytest.mark.parametrize(
    "right, wrong, named",
    [
        ("[[gpu]]", "[[gpus]]", "unknown field `gpus`"),
        ('source = "data sheet"', "", "missing required field `source`"),
        ('under = "P1"', "", r"missing required field `under`.*gpu\[0\]"),
        ('"100Gbit"', '"100"', r"'100' is not a rate.*25Gbit.*switch\[0\].rate"),
        ('"90Gbit"', "90", r"90 is not a rate.*nic\[0\].network"),
        ('"1000Gbit"', '"-1Gbit"', r"'-1Gbit' is not a rate.*cpu\[0\].memory"),
        ("0.8", "80", "peer_efficiency is 80.*at most 1"),
        ('["GPU2"]', '["GPU0"]', "'GPU0' is used 2 times"),
        ('["GPU2"]', '["a->b"]', "'a->b'"),
        (
            'under = "P1"',
            'under = "P9"',
            r"pcie link from 'GPU0' \(gpu\) to 'P9' \(no node\); expected gpu or nic or switch",
        ),
        ('under = "P1"', 'under = "NIC0"', r"to 'NIC0' \(nic\).*to cpu or switch"),
        ('under = "P0"\nrate = "50Gbit"', 'under = "P1"', "'P1' must hang under one switch or CPU.*in no circle"),
        (
            'gpus = ["GPU0", "GPU1"]',
            'gpus = ["GPU0", "NIC0"]',
            r"nvlink link from 'NIC0' \(nic\).*expected gpu to fabric",
        ),
        ('gpus = ["GPU0", "GPU1"]', 'gpus = ["GPU0", "GPU0"]', "'GPU0' must hang under.*in one fabric at most"),
        (
            'between = ["CPU0", "CPU1"]',
            'between = ["CPU0", "P0"]',
            r"socket link.*'P0' \(switch\); expected cpu to cpu",
        ),
        ('between = ["CPU0", "CPU1"]', 'between = ["CPU0", "CPU0"]', "from 'CPU0' to itself"),
        ("[[gpu]]", "[gpu]", "line 28"),
        ("[[gpu]]", "[[gpus]]", "unknown field `gpus`.*keys are source, cpu, peer_efficiency, socket, switch, gpu"),
        ("memory =", "ram =", r"unknown field `ram`.*cpu\[0\].*keys are names, memory$"),
        ('"300Gbit"', "0", r"0 is not a rate.*\"\" if it is unknown.*socket\[0\].rate"),
        ('"300Gbit"', "false", r"False is not a rate.*socket\[0\].rate"),
        ('"300Gbit"', "[]", r"\[\] is not a rate.*socket\[0\].rate"),
        ('"300Gbit"', f'"{"9" * 400}Gbit"', "is not a rate"),
        ("0.8", f"{'9' * 400}", "Number out of range.*peer_efficiency"),
        ('"data sheet"', "[" * 3000, "nested too deeply"),
        (
            'rate = "300Gbit"',
            '[[socket]]\nbetween = ["CPU1", "CPU0"]',
            "'CPU0' and 'CPU1' have 2 socket links; give one",
        ),
        ("[[gpu]]", "gpu!", "line 23.*expected TOML, NCCL's XML or"),
    ],
)
def test_bad_files_are_named_with_the_key(right, wrong, named):
    assert right in TEXT
    with pytest.raises(ValueError, match=r"^mine\.toml: .*(" + named + ")"):
        parse_machine(TEXT.replace(right, wrong, 1), "mine.toml")


def test_a_machine_has_a_cpu_and_hangs_each_device_once():
    topology = machine()
    with pytest.raises(ValueError, match="there is no CPU"):
        Topology(name="", nodes=(), links=(), source="")
    with pytest.raises(ValueError, match="'GPU0' must hang under one switch"):
        replace(topology, links=(*topology.links, Link(a="GPU0", b="CPU1", kind="pcie")))
    with pytest.raises(ValueError, match="no way from 'GPU9'"):
        topology.route("GPU9", "GPU0")


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 7), st.data())
def test_ways_over_sockets_are_those_of_a_plain_search(count, data):
    cpus = [f"CPU{i}" for i in range(count)]
    pairs = data.draw(st.permutations([(a, b) for a in cpus for b in cpus if a < b]))
    joined = pairs[: data.draw(st.integers(1, len(pairs)))]
    links = tuple(Link(a=a, b=b, kind="socket") for a, b in joined)
    nodes = tuple(Node(name=cpu, kind="cpu") for cpu in cpus)
    if len({end for pair in searched(cpus[0], joined).values() for end in pair}) < count:
        with pytest.raises(ValueError, match="no way from 'CPU0'"):
            Topology(name="", nodes=nodes, links=links, source="")
        return
    topology = Topology(name="", nodes=nodes, links=links, source="")
    for a in cpus:
        for b, path in searched(a, joined).items():
            assert topology.route(a, b) == tuple(f"{x}->{y}" for x, y in pairwise(path))


def searched(start, joined):
    """The first of the shortest ways to each CPU, as all ways grow link by link."""
    both = [ends for a, b in joined for ends in ((a, b), (b, a))]
    paths = [(start,)]
    for path in paths:
        for x, y in both:
            if x == path[-1] and all(other[-1] != y for other in paths):
                paths.append((*path, y))
    return {path[-1]: path for path in paths}


def test_a_hundred_numa_nodes_that_are_all_joined_take_no_time():
    cpus = [f"CPU{i}" for i in range(100)]
    links = tuple(Link(a=a, b=b, kind="socket") for a, b in combinations(cpus, 2))
    start = time.process_time()
    topology = Topology(name="", nodes=tuple(Node(name=cpu, kind="cpu") for cpu in cpus), links=links, source="")
    assert topology.route("CPU0", "CPU99") == ("CPU0->CPU99",)
    assert time.process_time() - start < 1  # 5 s and more, before


def test_switches_above_each_other_without_end_are_refused():
    switches = "".join(f'[[switch]]\nnames = ["S{i}"]\nunder = "{f"S{i - 1}" if i else "P1"}"\n' for i in range(1500))
    with pytest.raises(ValueError, match=r"mine\.toml: 'S\d+' hangs under more than 64 switches"):
        parse_machine(TEXT + switches, "mine.toml")


@pytest.mark.parametrize("rate", [-1.0, float("inf"), float("nan")])
def test_a_rate_that_is_no_rate_is_refused(rate):
    topology = machine()
    with pytest.raises(ValueError, match="rate of CPU0 is"):
        replace(topology, nodes=(replace(topology.nodes[0], bytes_per_s=rate), *topology.nodes[1:]))
    with pytest.raises(ValueError, match="rate of the link from CPU0 to CPU1 is"):
        replace(topology, links=(replace(topology.links[0], bytes_per_s=rate), *topology.links[1:]))


def test_a_byte_order_mark_is_no_part_of_the_text():
    assert parse_machine("\ufeff" + TEXT, "mine.toml") == machine()
