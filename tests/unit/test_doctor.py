"""What `byteps doctor` makes of facts, and that it reads them anywhere."""

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from byteps import examine
from byteps.doctor import Facts, Interface, findings, fit
from byteps.doctor_view import as_json, as_text, conclusion, show
from byteps.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
LOOPBACK = Interface(name="lo", address="127.0.0.1", mtu=65536, bytes_per_s=0.0)
ETH0 = Interface(name="eth0", address="10.0.0.1", mtu=9000, bytes_per_s=12.5e9)
HEALTHY = Facts(
    system="linux",
    kernel="6.1.0",
    python=(3, 11, 2),
    cores=64,
    memory_bytes=256 * GIB,
    torch="2.13.0",
    torch_cuda="13.0",
    gpus=("NVIDIA H200, 143771 MiB, 580.95",),
    why_no_gpus="",
    tools=dict.fromkeys(("ip", "tc", "nsenter", "unshare", "make", "cmake", "g++", "sshd"), "/usr/bin/it"),
    why_no_namespaces="",
    why_no_shaping="",
    open_files=(65536, -1),
    locked_bytes=-1,
    shm_bytes=64 * GIB,
    disk="/work",
    disk_bytes=100 * GIB,
    interfaces=(LOOPBACK, ETH0),
    chosen="10.0.0.1",
    why_none_chosen="",
    host_name="gpu0",
    host_addresses=("10.0.0.1",),
    port=9000,
    why_no_port="",
    ephemeral_ports=(32768, 60999),
    congestion_controls=("reno", "cubic"),
    congestion_control="cubic",
    why_no_congestion_control="",
    why_default_congestion_control="",
    clock_synchronised=True,
    monotonic_seconds=1e-9,
)


def missing(**changed):
    return {one.check: one for one in findings(replace(HEALTHY, **changed)) if one.state == "missing"}


def test_a_healthy_machine_misses_nothing():
    found = findings(HEALTHY)
    assert missing() == {}
    assert fit(found)
    assert conclusion(found) == f"All {len(found)} checks are ok."


@pytest.mark.parametrize(
    "changed, check, disabled",
    [
        ({"system": "darwin"}, "system", "everything"),
        ({"python": (3, 10, 9)}, "python", "everything"),
        ({"interfaces": (ETH0,)}, "loopback", "launch --workers"),
        ({"open_files": (32, 32)}, "open files", "everything"),
        ({"why_no_congestion_control": "not known to this kernel"}, "congestion control", "every job"),
    ],
)
def test_what_every_job_needs_makes_the_machine_unfit(changed, check, disabled):
    found = missing(**changed)
    assert list(found) == [check]
    assert found[check].essential
    assert disabled in found[check].disables
    everything = findings(replace(HEALTHY, **changed))
    assert not fit(everything)
    assert conclusion(everything) == f"No job can run here until this is mended: {check}."


@pytest.mark.parametrize(
    "changed, check, disabled, do",
    [
        ({"torch": "", "torch_cuda": "", "gpus": (), "why_no_gpus": "x"}, "torch", "byteps.torch", "pip install"),
        ({"torch": "1.13.1"}, "torch", "so old", "torch>=2.2"),
        ({"torch": "2.13.0+cpu", "torch_cuda": ""}, "GPUs", "this torch is for CPUs only", "built for CUDA"),
        ({"gpus": (), "why_no_gpus": "nvidia-smi: No such file"}, "GPUs", "training on GPUs", "nvidia-smi"),
        ({"cores": 1}, "cores", "emulated cluster", "2 or more"),
        ({"memory_bytes": GIB}, "memory", "make reproduce", "fewer workers"),
        ({"clock_synchronised": False}, "clock", "several hosts", "chrony"),
        ({"clock_synchronised": None}, "clock", "several hosts", "chrony"),
        ({"monotonic_seconds": 0.01}, "timer", "measuring", "kernel"),
        ({"open_files": (256, 4096)}, "open files", "more than about 64 workers", "ulimit -n 4096"),
        ({"locked_bytes": 65536}, "locked memory", "RDMA", "ulimit -l unlimited"),
        ({"shm_bytes": 64 * 2**20}, "/dev/shm", "DataLoader", "--shm-size"),
        ({"shm_bytes": -1}, "/dev/shm", "DataLoader", "--shm-size"),
        ({"disk_bytes": GIB}, "disk", "make reproduce", "make smoke"),
        ({"chosen": "", "why_none_chosen": "no route"}, "interface", "across hosts", "DMLC_INTERFACE"),
        ({"host_addresses": ("127.0.1.1",)}, "host name", "gloo", "GLOO_SOCKET_IFNAME"),
        ({"host_addresses": ()}, "host name", "gloo", "/etc/hosts"),
        ({"why_no_port": "cannot be listened on"}, "scheduler port", "scheduler", "DMLC_PS_ROOT_PORT"),
        ({"port": 40000}, "scheduler port", "any connection may have taken", "DMLC_PS_ROOT_PORT"),
        ({"ephemeral_ports": (60000, 60100)}, "ephemeral ports", "large jobs", "ip_local_port_range"),
        ({"why_default_congestion_control": "may not"}, "congestion control", "0.57 to 0.81", "tcp_allowed"),
        ({"tools": HEALTHY.tools | {"tc": "", "nsenter": ""}}, "tools", "Figures 4, 12", "iproute2 util-linux"),
        ({"why_no_namespaces": "not permitted"}, "namespaces", "Figures 4, 12", "sudo"),
        ({"why_no_shaping": "no qdisc"}, "tc", "shaped NICs", "sch_tbf"),
        ({"tools": HEALTHY.tools | {"sshd": ""}}, "sshd", "reached by ssh", "make sshd"),
        ({"tools": HEALTHY.tools | {"cmake": ""}}, "compiler", "Horovod", "apt-get install cmake"),
    ],
)
def test_anything_else_that_is_missing_disables_something_and_says_what_to_do(changed, check, disabled, do):
    found = missing(**changed)
    assert disabled in found[check].disables
    assert do in found[check].do
    assert fit(findings(replace(HEALTHY, **changed)))


def test_locked_memory_is_of_no_interest_without_gpus():
    assert "locked memory" not in missing(locked_bytes=65536, gpus=(), why_no_gpus="none")


def test_a_name_with_one_address_of_its_own_is_no_trap():
    assert missing(host_addresses=("127.0.1.1", "10.0.0.1")) == {}


def test_the_text_has_a_line_for_each_check_and_two_more_where_something_is_missing():
    found = findings(replace(HEALTHY, cores=1))
    lines = as_text(found).splitlines()
    assert len(lines) == len(found) + 2 + 2
    at = next(index for index, line in enumerate(lines) if line.startswith("missing"))
    assert lines[at + 1].strip().startswith("disables: the emulated cluster")
    assert lines[at + 2].strip() == "do: use a machine with 2 or more"
    assert "1 of" in lines[-1]
    assert lines[-1].endswith("only some uses need: cores.")


def test_the_json_has_facts_and_findings():
    found = findings(HEALTHY)
    decoded = json.loads(as_json(HEALTHY, found))
    assert decoded["fit"] is True
    assert set(decoded["facts"]) == {field.name for field in fields(Facts)}
    assert [one["check"] for one in decoded["findings"]] == [one.check for one in found]


def test_the_table_shows_brackets_as_they_are(capsys):
    show(findings(replace(HEALTHY, why_no_port="cannot be listened on: [::]:9000")))
    assert "[::]:9000" in capsys.readouterr().out


def test_this_machine_is_examined_without_torch_and_within_seconds():
    code = (
        "import sys; from pathlib import Path\nfrom byteps.examine import examine\n"
        "from byteps.settings import Settings\n"
        "facts = examine(Settings(), Path('.')); assert facts.system == sys.platform and facts.cores >= 1\n"
        "assert any(one.name == 'lo' for one in facts.interfaces); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


def test_the_command_prints_plain_lines_into_a_pipe_and_json_on_request():
    command = [sys.executable, "-m", "byteps", "doctor"]
    plain = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=90)
    assert plain.returncode == 0, plain.stdout + plain.stderr
    assert "\x1b" not in plain.stdout
    assert " python " in plain.stdout
    asked = subprocess.run([*command, "--json"], capture_output=True, text=True, cwd=ROOT, timeout=90)
    assert json.loads(asked.stdout)["facts"]["python"] == list(sys.version_info[:3])


def test_a_job_s_variables_count_and_an_interface_that_is_not_there_is_missing():
    facts = examine.examine(Settings(interface="nowhere9"), ROOT)
    assert facts.chosen == ""
    assert "DMLC_INTERFACE='nowhere9'" in facts.why_none_chosen


def test_a_port_that_somebody_listens_on_is_not_free():
    sock = examine.listen("127.0.0.1", 0)
    with sock:
        facts = examine.examine(Settings(root_port=sock.getsockname()[1]), ROOT)
    assert "another program listens there" in facts.why_no_port


def test_a_command_that_hangs_is_given_up(monkeypatch):
    with pytest.raises(RuntimeError, match=r"sleep did not end within 0\.1 s"):
        examine._run(["sleep", "30"], 0.1)


def test_a_command_that_is_not_there_or_fails_says_so():
    assert examine._try(["no-such-command"]) == "no-such-command: No such file or directory"
    assert examine._try(["sh", "-c", "echo no luck >&2; exit 3"]) == "sh: no luck"
    assert examine._try(["sh", "-c", "exit 3"]) == "sh: exit code 3"
    assert examine._try(["true"]) == ""
