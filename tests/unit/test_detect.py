import subprocess
import sys

import pytest
from typer.testing import CliRunner

from byteps.cli import app
from byteps.machine import PRESETS
from byteps.machine_file import parse_machine, preset
from byteps.topology import detect as detection
from byteps.topology import load_topology
from byteps.topology.detect import detect
from byteps.topology.show import as_text, as_toml

GEN4, GEN3 = ("16.0 GT/s PCIe", "16"), ("8.0 GT/s PCIe", "16")


class Host:
    """A /sys of our own under a temporary folder."""

    def __init__(self, root):
        self.root = root

    def write(self, path, text):
        (self.root / "sys" / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / "sys" / path).write_text(text + "\n")

    def link(self, path, target):
        (self.root / "sys" / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / "sys" / path).symlink_to(self.root / "sys" / target, target_is_directory=True)

    def pci(self, path, kind, vendor="0x8086", link=GEN4, numa=0):
        bus = path.rpartition("/")[2]
        fields = {"class": kind, "vendor": vendor, "numa_node": str(numa)}
        fields |= dict(zip(("max_link_speed", "max_link_width"), link, strict=True)) if link else {}
        for key, value in fields.items():
            self.write(f"devices/{path}/{key}", value)
        self.link(f"bus/pci/devices/{bus}", f"devices/{path}")
        return f"devices/{path}"

    def net(self, name, device="", speed="100000", state="up"):
        self.write(f"class/net/{name}/operstate", state)
        self.write(f"class/net/{name}/speed", speed)
        if device:
            self.link(f"class/net/{name}/device", device)

    def rdma(self, name, device="", rate="200 Gb/sec (4X HDR)", state="4: ACTIVE"):
        self.write(f"class/infiniband/{name}/ports/1/rate", rate)
        self.write(f"class/infiniband/{name}/ports/1/state", state)
        if device:
            self.link(f"class/infiniband/{name}/device", device)

    def nodes(self, count):
        for node in range(count):
            self.write(f"devices/system/node/node{node}/cpulist", f"{8 * node}-{8 * node + 7}")


@pytest.fixture
def server(tmp_path):
    """On CPU 0 a switch with a GPU and a NIC; on CPU 1 a GPU behind a switch and a NIC behind a root port."""
    host = Host(tmp_path)
    host.nodes(2)
    root, other = "pci0000:16/0000:16:01.0", "pci0000:96/0000:96:01.0"
    for path, link in ((root, GEN4), (f"{root}/0000:17:00.0", GEN4), (f"{root}/0000:17:00.0/0000:18:00.0", GEN4)):
        host.pci(path, "0x060400", link=link)
    host.pci(f"{root}/0000:17:00.0/0000:18:01.0", "0x060400", link=GEN3)
    host.pci(f"{root}/0000:17:00.0/0000:18:01.0/0000:1a:00.0", "0x030200", vendor="0x10de")
    nic = host.pci(f"{root}/0000:17:00.0/0000:18:00.0/0000:19:00.0", "0x020700", vendor="0x15b3")
    host.net("ib0", nic, speed="-1")
    host.rdma("mlx5_0", nic)
    for path in (other, f"{other}/0000:97:00.0", f"{other}/0000:97:00.0/0000:98:00.0"):
        host.pci(path, "0x060400", numa=1)
    host.pci(f"{other}/0000:97:00.0/0000:98:00.0/0000:99:00.0", "0x030200", vendor="0x10de", numa=1)
    host.pci("pci0000:96/0000:96:02.0", "0x060400", numa=1)
    ethernet = host.pci("pci0000:96/0000:96:02.0/0000:9b:00.0", "0x020000", numa=1, link=GEN3)
    host.net("eth0", ethernet, speed="25000")
    host.net("lo")
    return host


LISTING = "0, 00000000:99:00.0\n1, 00000000:1A:00.0\n"  # by nvidia-smi's index, not by bus
MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t8-15\t1\nGPU1\tNV4\t X \t0-7\t0\n"
LINKS = (
    "GPU 0: NVIDIA X (UUID: GPU-1)\n\t Link 0: 25 GB/s\n\t Link 1: 25 GB/s\nGPU 1: NVIDIA X\n\t Link 0: <inactive>\n"
)


def smi(listing=LISTING, matrix=MATRIX, links=LINKS):
    def run(command):
        text = {"--que": listing, "topo": matrix, "nvlin": links}[command[1][:5]]
        if text.startswith("exit"):
            raise RuntimeError(text)
        return text

    return run


def test_a_server_is_seen_as_its_kernel_sees_it(server):
    topology = detect(server.root, smi())
    assert (topology.gpus, topology.nics, topology.cpus) == (("GPU0", "GPU1"), ("eth0", "mlx5_0"), ("CPU0", "CPU1"))
    assert (topology.nic_switches, topology.gpu_switches) == (("0000:17:00.0",), ("0000:97:00.0",))
    assert topology.route("GPU1", "mlx5_0") == ("GPU1->0000:17:00.0", "0000:17:00.0->mlx5_0")
    assert topology.route("eth0", "CPU1") == ("eth0->CPU1",)
    assert topology.capacities["mlx5_0.out"] == 25e9
    assert topology.capacities["eth0.in"] == 25e9 / 8
    assert topology.source == "/sys of this machine; NVLinks from nvidia-smi"


def test_a_link_is_as_fast_as_its_slower_end(server):
    topology = detect(server.root, smi())
    assert topology.capacities["GPU1->0000:17:00.0"] == pytest.approx(126.03e9 / 8, rel=1e-4)
    assert topology.capacities["GPU0->0000:97:00.0"] == pytest.approx(252.06e9 / 8, rel=1e-4)


def test_nvlinks_have_the_rates_of_those_that_are_active(server):
    topology = detect(server.root, smi())
    assert topology.route("GPU0", "GPU1") == ("GPU0->NVLink0", "NVLink0->GPU1")
    assert topology.capacities["GPU0->NVLink0"] == 50e9
    assert topology.capacities["GPU1->NVLink0"] == float("inf")
    assert "nvlink links (GPU1 to NVLink0)" in topology.warnings[-1]


@pytest.mark.parametrize(
    "broken",
    [
        {"matrix": "exit 255, Failed to run topology matrix"},
        {"matrix": "Failed to run topology matrix"},
        {"listing": "exit 9, no devices were found"},
        {"listing": "garbage"},
        {"listing": "0, 00000000:55:00.0\n"},
    ],
)
def test_where_nvidia_smi_fails_the_rest_is_there_and_the_source_said(server, broken):
    topology = detect(server.root, smi(**broken))
    assert (len(topology.gpus), topology.nic_switches, topology.has_nvlink) == (2, ("0000:17:00.0",), False)
    assert topology.source == "/sys of this machine"
    assert "nvidia-smi failed, so NVLinks or their rates are missing; all else is from /sys" in topology.warnings[0]


def test_a_container_has_the_gpus_that_nvidia_smi_lists(server):
    one = "\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n"
    topology = detect(server.root, smi(listing="0, 00000000:1A:00.0\n", matrix=one))
    assert (topology.gpus, topology.cpu_of("GPU0")) == (("GPU0",), "CPU0")


def test_software_and_virtual_nics_and_those_that_are_down_are_none(server):
    server.rdma("siw_eth0")
    server.net("docker0")
    server.net("eth1", server.pci("pci0000:00/0000:00:05.0", "0x020000"), state="down")
    server.rdma("mlx5_9", server.pci("pci0000:00/0000:00:06.0", "0x020700"), state="1: DOWN")
    function = server.pci("pci0000:00/0000:00:07.1", "0x020000")
    server.link(f"{function}/physfn", server.pci("pci0000:00/0000:00:07.0", "0x020000"))
    server.net("eth2v0", function)
    assert detect(server.root, smi()).nics == ("eth0", "mlx5_0")


def test_display_cards_of_others_are_no_gpus(server):
    server.pci("pci0000:00/0000:00:08.0", "0x030000", vendor="0x1a03")
    assert len(detect(server.root, smi()).gpus) == 2


def test_gpus_of_amd_are_seen_without_their_xgmi(tmp_path):
    host = Host(tmp_path)
    host.pci("pci0000:00/0000:00:01.0", "0x038000", vendor="0x1002", numa=-1, link=("256.0 GT/s PCIe", "16"))
    topology = detect(host.root, smi())
    assert topology.route("GPU0", "CPU0") == ("GPU0->CPU0",)
    assert topology.capacities["GPU0->CPU0"] == float("inf")  # a speed that is newer than this
    assert "xGMI links are not detected" in str(topology.warnings)


def test_a_host_without_gpus_never_asks_nvidia_smi(tmp_path):
    host = Host(tmp_path)
    host.nodes(1)
    virtio = host.pci("pci0000:00/0000:00:03.0", "0x020000", link=None, numa=-1)
    host.write("devices/pci0000:00/0000:00:03.0/virtio2/device", "0x0001")
    host.net("eth0", f"{virtio}/virtio2", speed="-1")
    topology = detect(host.root, None)
    assert (topology.gpus, topology.nics, topology.cpus) == ((), ("eth0",), ("CPU0",))
    assert "S_n, switches with GPUs and NICs: none" in as_text(topology)
    assert "no PCIe switches" not in str(topology.warnings)


def test_an_empty_sys_is_one_cpu(tmp_path):
    assert detect(tmp_path, None).cpus == ("CPU0",)


def test_a_command_that_hangs_or_fails_or_is_not_there_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr(detection, "_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds"):
        detection._run([sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(RuntimeError, match="no-such-command"):
        detection._run(["no-such-command"])
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="exit 255, Failed to run"):
        detection._run([sys.executable, "-c", "print('Failed to run topology matrix'); raise SystemExit(255)"])
    assert detection._run([sys.executable, "-c", "print(1)"]) == "1\n"


def test_what_is_written_as_toml_reads_as_the_same(server):
    for topology in (detect(server.root, smi()), *map(preset, PRESETS)):
        again = parse_machine(as_toml(topology), f"{topology.name}.toml")
        assert (again.nodes, again.links) == (topology.nodes, topology.links)
        assert (again.source, again.peer_efficiency) == (topology.source, topology.peer_efficiency)
        assert again.warnings == topology.warnings[-len(again.warnings) :]


def test_a_tree_shows_rates_and_what_is_unknown(server):
    text = as_text(detect(server.root, smi()))
    for line in (
        "  CPU0  memory rate unknown",
        "    0000:17:00.0  252.1 Gbit/s",
        "      GPU1  126 Gbit/s, NVLink0 rate unknown",
        "      mlx5_0  252.1 Gbit/s, network 200 Gbit/s",
        "  CPU0 - CPU1  rate unknown",
        "S_n, switches with GPUs and NICs: 0000:17:00.0",
    ):
        assert line in text.splitlines()
    assert "warning: rates not known" in text


def test_the_command_shows_this_machine_a_preset_or_a_file_and_writes_toml(tmp_path):
    here = CliRunner().invoke(app, ["topo"])
    assert here.exit_code == 0
    assert here.output.startswith("this machine: /sys of this machine")
    written = CliRunner().invoke(app, ["topo", "--file", "nvlink", "--toml"]).output
    (tmp_path / "mine.toml").write_text(written)
    shown = CliRunner().invoke(app, ["topo", "--file", str(tmp_path / "mine.toml")]).output
    assert shown.splitlines()[1:] == CliRunner().invoke(app, ["topo", "--file", "nvlink"]).output.splitlines()[1:]
    assert load_topology(tmp_path / "mine.toml").links == preset("nvlink").links


def test_the_command_names_a_file_that_is_not_there():
    command = [sys.executable, "-m", "byteps", "topo", "--file", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("byteps: nowhere: No such file or directory; expected a file, or one of dgx-1v")
