import random
import re
from itertools import permutations, product
from pathlib import Path
from xml.etree import ElementTree

import pytest

from byteps.machine import PRESETS
from byteps.machine_file import preset
from byteps.topology import load_topology, parse_topology
from byteps.topology.nccl_xml import parse_nccl_xml, pcie_bytes_per_s
from byteps.topology.nvidia_smi import parse_matrix

REAL = Path(__file__).parents[3] / "shared" / "reference" / "topologies"

# What the files of RCCL say: S_n, S_g, GPUs, NICs, CPUs, fabrics.
SHAPES = {
    "topo_16p1h_vm": (0, 16, 16, 8, 4, 1),
    "topo_3p_pcie": (0, 3, 3, 1, 2, 0),
    "topo_4p2h": (1, 1, 8, 1, 1, 2),
    "topo_4p2h_2nic": (2, 0, 8, 2, 1, 2),
    "topo_4p3l_n4": (0, 8, 8, 1, 7, 2),
    "topo_4p_940": (0, 4, 4, 4, 4, 1),
    "topo_8p1h_2": (0, 8, 8, 1, 4, 1),
    "topo_8p6l": (0, 8, 8, 1, 2, 1),
    "topo_8p6l_3nic": (0, 8, 8, 3, 2, 1),
    "topo_8p6l_6nic": (0, 8, 8, 6, 2, 1),
    "topo_8p_90a_1": (0, 8, 8, 1, 3, 1),
    "topo_8p_940vm": (0, 8, 8, 8, 2, 1),
    "topo_8p_pcie": (1, 1, 8, 1, 1, 0),
    "topo_8p_pcie_2nic": (2, 0, 8, 2, 1, 0),
    "topo_8p_rome_n2": (0, 8, 8, 1, 4, 2),
    "topo_8p_rome_pcie": (0, 8, 8, 2, 2, 0),
}


def real(name):
    path = REAL / f"{name}.xml"
    if not path.exists():
        pytest.skip(f"{path.name} of RCCL's topology models is not there")
    return load_topology(path)


@pytest.mark.parametrize("name", SHAPES)
def test_real_xml_is_read(name):
    topology = real(name)
    fabrics = sum(node.kind == "fabric" for node in topology.nodes)
    shape = (len(topology.nic_switches), len(topology.gpu_switches), len(topology.gpus))
    assert (*shape, len(topology.nics), len(topology.cpus), fabrics) == SHAPES[name]
    assert topology.gpus == tuple(f"GPU{i}" for i in range(len(topology.gpus)))
    for a, b in product((*topology.gpus, *topology.nics), topology.cpus):
        assert set(topology.route(a, b)) <= set(topology.capacities)
    assert "no PCIe switches visible" in str(topology.warnings) or topology.switches


@pytest.mark.parametrize("name", SHAPES)
def test_the_order_of_elements_means_nothing(name):
    topology = real(name)
    root = ElementTree.parse(REAL / f"{name}.xml").getroot()
    for seed in range(3):
        for element in root.iter():
            children = list(element)
            random.Random(seed).shuffle(children)
            element[:] = children
        assert parse_nccl_xml(ElementTree.tostring(root, "unicode"), topology.source) == topology


def test_real_xml_keeps_domains_and_numbers_gpus_by_dev():
    topology = real("topo_8p_940vm")
    assert topology.cpu_of("GPU0") == topology.cpu_of("GPU3") == "CPU0"
    assert topology.cpu_of("GPU4") == "CPU1"
    assert topology.capacities["GPU0->NVLink0"] == 7 * 64e9  # 7 links of MI300
    assert topology.capacities["GPU0->CPU0"] == pytest.approx(32e9 * 16 * 128 / 130 / 8, rel=1e-5)


def test_real_xml_with_a_speed_in_kilobits_is_read_so_with_a_warning():
    topology = real("topo_4p_940")
    assert topology.capacities["cxi0.out"] == 25e9
    assert '<net name="cxi0">: speed 200000000 cannot be Mbit/s' in str(topology.warnings)


def test_real_xml_without_a_known_rate_of_xgmi_says_so():
    topology = real("topo_4p2h")  # gfx906
    assert topology.capacities["GPU0->NVLink0"] == float("inf")
    assert "nvlink links (GPU0 to NVLink0" in topology.warnings[-1]


def test_slow_nics_are_left_out_beside_faster_ones_only():
    assert real("topo_8p1h_2").nics == ("vethe2d5378",)
    assert real("topo_8p_90a_1").nics == ("bond0",)
    for name in ("topo_8p1h_2", "topo_8p_90a_1"):
        assert "does 1 Gbit/s: is it for management only?" in str(real(name).warnings)


def test_the_ports_of_a_card_share_its_lanes():
    topology = real("topo_8p_rome_pcie")
    assert topology.route("mlx5_0", "CPU1") == ("mlx5_0->0000:a1:00.0", "0000:a1:00.0->CPU1")
    assert topology.route("mlx5_1", "CPU1") == ("mlx5_1->0000:a1:00.0", "0000:a1:00.0->CPU1")


def test_nested_switches_count_as_the_top_one_but_keep_their_links():
    topology = real("topo_8p_pcie")
    assert topology.switch_of("GPU0") == topology.switch_of("mlx5_0") == "0000:18:00.0"
    assert topology.route("GPU0", "GPU1") == (
        "GPU0->0000:1b:00.0",
        "0000:1b:00.0->0000:18:00.0",
        "0000:18:00.0->0000:1e:00.0",
        "0000:1e:00.0->GPU1",
    )
    assert topology.capacities["0000:1b:00.0->0000:18:00.0"] == pytest.approx(126.03e9 / 8, rel=1e-4)


def nvidia(
    gpu_link='<nvlink target="0000:05:00.0" count="18" tclass="0x068000"/>', width="16", sm="90", speed="400000"
):
    """Our own: two GPUs behind a switch each, with a NIC, all at one NVSwitch."""
    side = """
    <cpu host_hash="0x1" numaid="{i}" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
      <pci busid="0000:{i}1:00.0" class="0x060400" link_speed="{bridge}" link_width="{bridge_width}">
        <pci busid="0000:{i}3:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="{width}">
          <gpu dev="{i}" sm="{sm}" rank="{i}" gdr="1">{link}</gpu>
        </pci>
        <pci busid="0000:{i}4:00.0" class="0x020700" link_speed="32.0 GT/s" link_width="16">
          <nic><net name="mlx5_{i}" dev="{i}" speed="{speed}" port="1" guid="0x0" maxconn="131072" gdr="1"/></nic>
        </pci>
      </pci>
    </cpu>"""
    bridge, bridge_width = ("2.5 GT/s PCIe", "1") if width == "0" else ("32.0 GT/s PCIe", "16")
    fields = {
        "bridge": bridge,
        "bridge_width": bridge_width,
        "width": width,
        "sm": sm,
        "link": gpu_link,
        "speed": speed,
    }
    return f'<system version="1">{"".join(side.format(i=i, **fields) for i in range(2))}</system>'


def test_nvidias_xml_with_an_nvswitch_makes_one_fabric():
    topology = parse_topology(nvidia(), "h100.xml")
    assert (topology.nic_switches, topology.gpu_switches) == (("0000:01:00.0", "0000:11:00.0"), ())
    assert topology.route("GPU0", "GPU1") == ("GPU0->NVLink0", "NVLink0->GPU1")
    assert topology.capacities["GPU0->NVLink0"] == 450e9
    assert "optimistic" not in str(topology.warnings)


def test_emulated_bridges_and_widths_of_zero_are_unknown():
    topology = parse_topology(nvidia(width="0"), "vm.xml")
    assert topology.capacities["GPU0->0000:01:00.0"] == topology.capacities["0000:01:00.0->CPU0"] == float("inf")
    assert "switch 0000:01:00.0 does 2 Gbit/s: that of an emulated bridge" in str(topology.warnings)


def test_nvlinks_of_a_new_generation_have_no_rate():
    topology = parse_topology(nvidia(sm="999"), "new.xml")
    assert topology.capacities["GPU0->NVLink0"] == float("inf")
    assert "nvlink links" in topology.warnings[-1]


def test_links_that_lead_elsewhere_are_left_out_with_a_warning():
    to_cpu = parse_topology(
        nvidia('<nvlink target="0" count="3" tclass="0x068001"/><c2c bw="1" count="1"/>'), "grace.xml"
    )
    assert not to_cpu.has_nvlink
    assert "GPU0 has 3 links to 0, which is no GPU here" in str(to_cpu.warnings)
    assert "NVLink-C2C" in str(to_cpu.warnings)


def test_a_socket_nic_listed_under_every_cpu_is_one():
    text = nvidia().replace("</cpu>", '<nic><net name="eth0" dev="7" speed="10000"/></nic></cpu>')
    topology = parse_topology(text, "container.xml")
    assert topology.nics == ("mlx5_0", "mlx5_1", "eth0")
    assert topology.cpu_of("eth0") == "CPU0"
    assert "eth0 is listed under several CPUs" in str(topology.warnings)


def test_no_numa_node_is_cpu_0_and_a_nic_that_is_down_has_no_rate():
    text = nvidia(speed="-1").replace('numaid="0"', 'numaid="-1"')
    assert parse_topology(text, "vm.xml").cpus == ("CPU0", "CPU1")
    assert parse_topology(text, "vm.xml").capacities["mlx5_0.in"] == float("inf")


@pytest.mark.parametrize(
    "speed, width, gigabits",
    [
        ("2.5 GT/s", "1", 2),
        ("2.5 GT/s PCIe", "16", 32),
        ("5 GT/s", "8", 32),
        ("5.0 GT/s PCIe", "4", 16),
        ("8 GT/s", "16", 126.031),
        ("8.0 GT/s PCIe", "4", 31.508),
        ("16 GT/s", "16", 252.062),
        ("16.0 GT/s PCIe", "8", 126.031),
        ("32.0 GT/s PCIe", "16", 504.123),
        ("64.0 GT/s PCIe", "2", 118),
        ("Unknown speed", "16", 0),
        ("Unknown", "16", 0),
        ("", "", 0),
        ("16.0 GT/s PCIe", "0", 0),
        ("16.0 GT/s PCIe", "255", 0),
    ],
)
def test_every_spelling_of_a_pcie_link(speed, width, gigabits):
    assert pcie_bytes_per_s(speed, width) == gigabits * 1e9 / 8


@pytest.mark.parametrize(
    "right, wrong, named",
    [
        ("<system", "<graphs", "mismatched tag: line"),
        ('version="1">', 'version="1"', "not well-formed.*line 2"),
        ('numaid="1"', "", "<cpu>: numaid is None; expected a whole number"),
        ('numaid="1"', 'numaid="0"', r"numaid \[0, 0\].*a different one each"),
        ('dev="1" sm', 'dev="one" sm', "<gpu dev=\"one\">: dev is 'one'; expected a whole number"),
        ('dev="1" sm', 'dev="0" sm', '<gpu dev="0"> is there twice'),
        ('"32.0 GT/s"', '"33 GT/s"', "<pci busid=\"0000:04:00.0\">: link_speed '33 GT/s'.*expected one of 2.5"),
        ('"32.0 GT/s"', '"fast"', "<pci busid=\"0000:04:00.0\">: link_speed 'fast'"),
        ('link_width="16"', 'link_width="3"', "<pci busid=\"0000:01:00.0\">.*link_width '3'"),
        ('speed="400000"', 'speed="quick"', "<net name=\"mlx5_0\">: speed is 'quick'"),
        ('count="18"', 'count=""', "<nvlink target=\"0000:05:00.0\">: count is ''"),
        ('busid="0000:01:00.0" ', "", "<pci> has no busid"),
        ('count="18"', 'count="-1"', '<nvlink target="0000:05:00.0">: count is -1; expected 1 to 1000'),
        ('count="18"', f'count="{"9" * 17}"', "expected 1 to 1000"),
        ('speed="400000"', f'speed="{"9" * 400}"', "speed is '9999.*at most 18 digits"),
        ('speed="400000"', f'speed="{"9" * 5000}"', "speed is '9999.*at most 18 digits"),
    ],
)
def test_bad_xml_is_named_by_file_and_element(right, wrong, named):
    text = nvidia()
    assert right in text
    with pytest.raises(ValueError, match=r"^bad\.xml: .*" + named):
        parse_topology(text.replace(right, wrong), "bad.xml")


def test_xml_of_something_else_is_refused():
    with pytest.raises(ValueError, match=r"^g\.xml: <graphs> is the root; expected <system>"):
        parse_topology("<graphs/>", "g.xml")
    hint = '<system version="1"><cpu numaid="0"><pci busid="0000:00:1b.0"/></cpu></system>'
    with pytest.raises(ValueError, match=r"^hint\.xml: no <gpu> and no <net>.*NCCL_TOPO_DUMP_FILE"):
        parse_topology(hint, "hint.xml")


LEGEND = """
Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_bond_0
"""


def matrix(relations, affinities, tail="CPU Affinity\tNUMA Affinity\tGPU NUMA ID", blank="\t\t\t\t", sep="\t"):
    """A text as `nvidia-smi topo -m` writes it; relations: by pair of names, SYS where not given."""
    names = list(dict.fromkeys(name for pair in relations for name in pair))
    names.sort(key=lambda name: (not name.startswith("GPU"), int(re.findall(r"[0-9]+", name)[-1])))
    lines = [sep + sep.join(names) + sep + tail]
    for row in names:
        cells = [" X " if row == n else relations.get((row, n), relations.get((n, row), "SYS")) for n in names]
        lines.append(sep.join([row, *cells]) + (sep + affinities[row] if row in affinities else blank))
    return "\n".join(lines) + "\n" + LEGEND


PAIRED = {("GPU0", "GPU1"): "NV18", ("GPU0", "NIC0"): "PIX", ("GPU1", "NIC1"): "PXB"}
TWO_NODES = {"GPU0": "0-55,112-167\t0\t\tN/A", "GPU1": "56-111,168-223\t1\t\tN/A"}


def test_a_matrix_says_what_is_under_the_same_switch_and_who_has_nvlinks():
    topology = parse_topology(matrix(PAIRED, TWO_NODES), "h100.txt")
    assert topology.nics == ("mlx5_0", "mlx5_bond_0")
    assert topology.nic_switches == ("P0", "P1")
    assert [topology.cpu_of(name) for name in (*topology.gpus, *topology.nics)] == ["CPU0", "CPU1", "CPU0", "CPU1"]
    assert topology.route("GPU0", "GPU1") == ("GPU0->NVLink0", "NVLink0->GPU1")


def test_a_matrix_gives_no_rates_and_says_so():
    topology = parse_topology(matrix(PAIRED, TWO_NODES), "h100.txt")
    assert set(topology.capacities.values()) == {float("inf")}
    for kind in ("socket links", "pcie links", "nvlink links", "memory", "network"):
        assert kind in topology.warnings[-1]


def spaced(text):
    return text.replace("\t\t", "\t").replace("\t", "     ")


@pytest.mark.parametrize(
    "changed",
    [
        lambda text: text.replace("GPU0\tGPU1", "\x1b[4mGPU0\tGPU1", 1).replace("GPU NUMA ID", "GPU NUMA ID\x1b[0m", 1),
        spaced,
        lambda text: "$ nvidia-smi topo -m\r\n" + text.replace("\n", "\r\n"),
        lambda text: "\n".join(line.rstrip() for line in text.splitlines()),
        lambda text: "\n".join(line for line in text.splitlines() if not line.startswith("NIC")),
    ],
    ids=["ANSI codes", "spaces", "prompt and CRLF", "no blank cells", "no rows of NICs"],
)
def test_variants_of_a_matrix_read_the_same(changed):
    text = matrix(PAIRED, TWO_NODES)
    assert changed(text) != text
    assert parse_topology(changed(text), "h100.txt") == parse_topology(text, "h100.txt")


def test_old_matrices_name_nics_in_the_header_and_have_no_numa_column():
    relations = {("GPU0", "GPU1"): "SOC", ("GPU0", "mlx5_0"): "PIX", ("GPU1", "mlx5_0"): "SOC"}
    topology = parse_topology(
        matrix(relations, {"GPU0": "0-13", "GPU1": "14-27"}, tail="CPU Affinity", blank="\t"), "old.txt"
    )
    assert (topology.nics, topology.nic_switches, topology.gpu_switches) == (("mlx5_0",), ("P0",), ("GPU1",))
    assert (topology.cpu_of("GPU1"), topology.cpu_of("mlx5_0")) == ("CPU1", "CPU0")


def test_eighteen_nics_are_no_trouble():
    relations = {(f"GPU{i}", f"GPU{j}"): "NV12" for i, j in permutations(range(8), 2)}
    relations |= {(f"GPU{i}", f"NIC{j}"): "PXB" for i in range(8) for j in range(18) if i // 2 == j // 4}
    relations |= {(f"NIC{i}", f"NIC{j}"): "PXB" for i, j in permutations(range(16), 2) if i // 4 == j // 4}
    relations |= {("NIC16", "NIC17"): "PIX"}
    affinities = {f"GPU{i}": f"{i // 2}-9\t{i // 2}\t\tN/A" for i in range(8)}
    topology = parse_topology(matrix(relations, affinities), "big.txt")
    assert topology.nic_switches == ("P0", "P1", "P2", "P3")
    assert len(topology.nics) == 18
    assert topology.cpu_of("NIC17") == "CPU4"  # near nobody: a NUMA node of its own


def test_gpus_that_share_a_numa_node_share_a_cpu_whatever_else_is_said():
    relations = {("GPU0", "GPU1"): "SYS", ("GPU0", "NIC0"): "NODE"}
    topology = parse_topology(matrix(relations, {"GPU0": "0-9\t3\t\tN/A", "GPU1": "0-9\t3\t\tN/A"}), "vm.txt")
    assert topology.cpus == ("CPU3",)


def test_one_gpu_and_four_nics_all_node():
    topology = parse_topology(
        matrix({("GPU0", f"NIC{i}"): "NODE" for i in range(4)}, {"GPU0": "0-19\t0\t\tN/A"}), "gb10.txt"
    )
    assert (topology.nic_switches, topology.gpu_switches, topology.has_nvlink) == ((), ("GPU0",), False)


def test_a_lone_gpu_without_a_numa_node_is_fine():
    text = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-7\t\tN/A\t\tN/A\n"
    assert parse_topology(text, "vm.txt").route("GPU0", "CPU0") == ("GPU0->CPU0",)


def test_everything_phb_without_numa_nodes_tells_nothing():
    relations = {("GPU0", "GPU1"): "PHB", ("GPU0", "NIC0"): "PHB", ("GPU1", "NIC0"): "PHB"}
    for node in ("N/A", "-1"):
        text = matrix(relations, dict.fromkeys(("GPU0", "GPU1"), f"0-7\t{node}\t\tN/A"))
        with pytest.raises(ValueError, match=r"^vm\.txt: everything is PHB.*NCCL_TOPO_DUMP_FILE"):
            parse_topology(text, "vm.txt")
    with_node = matrix(relations, dict.fromkeys(("GPU0", "GPU1"), "0-7\t0\t\tN/A"))
    assert "no PCIe switches visible" in str(parse_topology(with_node, "desktop.txt").warnings)


def test_nvlinks_that_hide_the_switches_are_pointed_out():
    relations = {("GPU0", "GPU1"): "NV4", ("GPU0", "NIC0"): "NODE", ("GPU1", "NIC0"): "NODE"}
    affinities = dict.fromkeys(("GPU0", "GPU1"), "0-7\t0\t\tN/A")
    assert "topo -mp" in str(parse_topology(matrix(relations, affinities), "a.txt").warnings)
    seen = relations | {("GPU0", "NIC0"): "PIX"}
    assert "topo -mp" not in str(parse_topology(matrix(seen, affinities), "a.txt").warnings)


@pytest.mark.parametrize(
    "right, wrong, named",
    [
        (
            "GPU1\tNV18",
            "GPU1\tNV18\nrest",
            "line 3: the row of GPU1 does not fit the 4 columns named on line 1; is a line wrapped",
        ),
        ("\tNIC1\tCPU", "\tCPU", "line 2: the row of GPU0 does not fit the 3 columns"),
        ("\tNIC1\tCPU", "\n\tNIC1\tCPU", "line 3: the row of GPU0 does not fit the 3 columns"),
        ("GPU0\tNV18", "GPU0\t X \tNV18", "line 2"),
        ("GPU1\tNV18\t X ", "GPU1\t X \tNV18", "line 3: the row of GPU1"),
        ("GPU1\tNV18", "GPU1\tOK", "line 3: the row of GPU1"),
        ("GPU1\tNV18", "GPU5\tNV18", "line 3: 'GPU5' is none of the columns named on line 1"),
        ("GPU1\tNV18", "# GPU1\tNV18", "no row of GPU1, which line 1 names"),
        ("GPU1\tNV18", "GPU1\tNV12", "GPU0 to GPU1 is NV18, but GPU1 to GPU0 is NV12"),
        ("\tGPU0\tGPU1\tNIC0", "\tNIC0", "no line names the columns; expected one that begins with GPU0"),
    ],
)
def test_bad_matrices_are_named_by_file_and_line(right, wrong, named):
    text = matrix(PAIRED, TWO_NODES)
    if right not in text:
        right = right.replace("GPU0\tNV18", "GPU0\t X \tNV18")
        wrong = "GPU0\t X \t X \tNV18"
    assert right in text
    with pytest.raises(ValueError, match=r"^bad\.txt: .*" + named):
        parse_matrix(text.replace(right, wrong, 1), "bad.txt")


def test_a_preset_is_loaded_by_name_and_any_format_by_content(tmp_path):
    for name in PRESETS:
        assert load_topology(name) == preset(name)
    for text in (nvidia(), matrix(PAIRED, TWO_NODES)):
        path = tmp_path / "machine"
        path.write_text(text)
        assert load_topology(path) == parse_topology(text, str(path))


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere: No such file.*expected a file, or one of.*nvlink"):
        load_topology(tmp_path / "nowhere")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"binary is not text in UTF-8 \(byte 0xff at 0\); save it as UTF-8"):
        load_topology(tmp_path / "binary")
    (tmp_path / "failed").write_text("Failed to run topology matrix\n")
    with pytest.raises(ValueError, match=r"failed: .*line 1.*expected TOML, NCCL's XML or what `nvidia-smi topo -m`"):
        load_topology(tmp_path / "failed")


def test_a_byte_order_mark_is_no_part_of_any_format(tmp_path):
    for text in (nvidia(), matrix(PAIRED, TWO_NODES), 'source = ""\n[[cpu]]\nnames = ["CPU0"]\n'):
        (tmp_path / "marked").write_text("\ufeff" + text, encoding="utf-8")
        (tmp_path / "plain").write_text(text, encoding="utf-8")
        marked, plain = load_topology(tmp_path / "marked"), load_topology(tmp_path / "plain")
        assert (marked.nodes, marked.links) == (plain.nodes, plain.links)


@pytest.mark.parametrize("depth", [100, 1500, 20000])
def test_bridges_nested_without_end_are_refused(depth):
    bridges = "".join(f'<pci busid="{i:04x}:00:00.0">' for i in range(depth))
    text = f'<system version="1"><cpu numaid="0">{bridges}{"</pci>" * depth}</cpu></system>'
    with pytest.raises(ValueError, match=r"^deep\.xml: <pci busid=.*nested in more than 64 <pci> elements"):
        parse_topology(text, "deep.xml")
