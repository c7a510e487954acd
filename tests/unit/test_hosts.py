"""Cluster files of machines to log in to: what is left out, and what every wrong value says."""

import re
from pathlib import Path

import msgspec
import pytest

from byteps.cli import main
from byteps.cluster_file import ClusterFile, InstallTable, Login, MachineTable, NetworkTable, SiteTable, SshTable
from byteps.hosts import Site, load_site, parse_site, resolved

TEXT = """
[[machine]]
name = "gpu"
role = "gpu"
nic = "25Gbit"
count = 2
address = ["10.0.0.1", "10.0.0.2"]

[[machine]]
name = "old"
role = "cpu"
nic = ["10Gbit", "5Gbit"]
address = "old.example.org"
interface = ["eth0", "10.1.0.0/16"]
ssh = { port = 2222 }
install = { python = "/opt/py/bin/python3", peers = [] }
"""


def site(text: str = TEXT, top: str = "") -> Site:
    return parse_site(top + text, "lab/my.toml")


def test_addresses_alone_are_enough():
    host = site().hosts[1]
    assert (host.name, host.role, host.address, host.interfaces) == ("gpu1", "gpu", "10.0.0.2", ())
    assert (host.user, host.port, host.key, host.python) == ("", 22, "", "python3")
    assert (host.workdir, host.suite, host.run) == ("~/byteps", "~/byteps/suite", "~/byteps/run")
    assert (host.environment, host.peers_folder, host.torch_index, host.wheels) == ("", "", "", "")
    assert host.peers == ("horovod", "mxnet")
    assert (host.nic_bytes_per_s, host.gpus) == (3.125e9, 1)
    assert (site().known_hosts, site().host_keys, site().connect_seconds) == ("~/.ssh/known_hosts", "reject", 10.0)
    assert (site().provenance, site().cap_bytes_per_s) == ("measured", 0.0)


def test_hosts_come_in_the_files_order_and_by_role():
    assert [host.name for host in site().hosts] == ["gpu0", "gpu1", "old"]
    assert [host.name for host in site().gpu_hosts] == ["gpu0", "gpu1"]
    assert [host.name for host in site().cpu_hosts] == ["old"]
    assert site().cluster.n == 2
    assert site().host("old").nics == (1.25e9, 0.625e9)
    with pytest.raises(ValueError, match="host is 'new'; use one of gpu0, gpu1, old"):
        site().host("new")


def test_a_machines_own_keys_come_before_the_common_ones():
    top = '[ssh]\nuser = "me"\nport = 23\n[install]\npython = "/usr/bin/python3.12"\npeers = ["mpi"]\n'
    gpu, _, old = site(top=top).hosts
    assert (gpu.user, gpu.port, gpu.python, gpu.peers) == ("me", 23, "/usr/bin/python3.12", ("mpi",))
    assert (old.user, old.port, old.python, old.peers) == ("me", 2222, "/opt/py/bin/python3", ())


def test_paths_here_are_as_seen_from_the_file_and_home_stays():
    top = '[ssh]\nkey = "keys/id"\nknown_hosts = "/etc/known"\n[install]\nwheels = "wheels"\nworkdir = "/data/b/"\n'
    found = site(top=top)
    host = found.hosts[0]
    assert (host.key, found.known_hosts, host.wheels, host.workdir) == (
        "lab/keys/id",
        "/etc/known",
        "lab/wheels",
        "/data/b",
    )
    assert site(top='[ssh]\nkey = "~/.ssh/id"\n').hosts[0].key == "~/.ssh/id"


def test_hosts_get_a_file_with_whole_paths_and_without_the_laptops():
    top = '[site]\nprovenance = "emulated"\n[ssh]\nkey = "/home/me/id"\n[network]\ncap = "2Gbit"\n'
    before = site(top=top)
    text = resolved(before, {host.name: f"/root/{host.name}" for host in before.hosts})
    assert "/home/me" not in text
    after = parse_site(text, "cluster.toml")
    assert [host.workdir for host in after.hosts] == ["/root/gpu0", "/root/gpu1", "/root/old"]
    assert (after.provenance, after.cap_bytes_per_s) == ("emulated", 250e6)
    for old, new in zip(before.hosts, after.hosts, strict=True):
        for key in ("name", "role", "address", "interfaces", "nics", "gpus", "peers"):
            assert getattr(old, key) == getattr(new, key)


@pytest.mark.parametrize(
    "right, wrong, named",
    [
        ('"10.0.0.2"', '"10.0.0.1"', r"machine\[0\].address of 'gpu' is '10.0.0.1': 'gpu0' has it, too; use another"),
        ('"old.example.org"', '"10.0.0.2"', r"machine\[1\].address of 'old' is '10.0.0.2': 'gpu1' has it"),
        ('address = "old.example.org"', "", r"machine\[1\].address of 'old' is missing"),
        (', "10.0.0.2"', "", r"machine\[0\].address of 'gpu' is \['10.0.0.1'\]; use a list of 2, since count is 2"),
        ('"old.example.org"', '["a", "b"]', r"machine\[1\].address of 'old' is \['a', 'b'\]; use one"),
        ('"10.0.0.2"', '"10.0.0.256"', r"machine\[0\].address of 'gpu' is .*256.*; use a host's name or IP address"),
        ('"10.0.0.2"', '"10.0.0.{2-3}"', r"machine\[0\].address of 'gpu' is"),
        ('"10.0.0.2"', '"-oProxyCommand=x"', r"machine\[0\].address of 'gpu' is"),
        ('"10.1.0.0/16"', '"10.1.0.0/33"', r"machine\[1\].interface of 'old' is .*10.1.0.0/33' does not appear"),
        (', "10.1.0.0/16"', "", r"machine\[1\].interface of 'old' is \['eth0'\]; use a list of 2"),
        ("count = 2", 'count = 2\ninterface = ["a", "b"]', r"machine\[0\].interface of 'gpu' is .*use one"),
        ('"eth0"', '"an interface"', r"machine\[1\].interface of 'old' is .*use an interface such as"),
        ("port = 2222", "port = 0", r"machine\[1\].ssh.port of 'old' is 0; use a port from 1 to 65535"),
        ("port = 2222", "prot = 1", r"machine\[1\].ssh of 'old' has an unknown key 'prot', perhaps 'port' is meant"),
        ("peers = []", 'peers = ["mpx"]', r"machine\[1\].install.peers\[0\] of 'old' is 'mpx'; use a list of horovod"),
        ("peers = []", 'workdir = "here"', r"machine\[1\].install.workdir of 'old' is 'here'; use a path that begins"),
        ("[[machine]]", '[install]\ntorch_index = "x"\n[[machine]]', r"install.torch_index is 'x'; use the address"),
        ("[[machine]]", '[ssh]\nhost_keys = "any"\n[[machine]]', r"ssh.host_keys is 'any'; use \"reject\", or"),
        ("[[machine]]", '[ssh]\nconnect_timeout = "0s"\n[[machine]]', r"ssh.connect_timeout is '0s'; use a time above"),
        ("[[machine]]", '[ssh]\nuser = "a b"\n[[machine]]', r"ssh.user is 'a b'"),
        ("[[machine]]", '[site]\nprovenance = "paper"\n[[machine]]', r"site.provenance is 'paper'; use \"measured\""),
        ("[[machine]]", '[network]\ncap = "10"\n[[machine]]', r"network.cap is '10': .*use a rate for every NIC"),
        ("[[machine]]", "ssh = 3\n[[machine]]", r"ssh is 3; use a table"),
        ("[[machine]]", "[sshd]\n[[machine]]", r"the file has an unknown key 'sshd', perhaps 'ssh' is meant"),
        ('"old"', '"../old"', r"machine\[1\].name of '../old' is '../old'; use letters, digits"),
        ("[[machine]]", "[[machine]", r"this is not TOML: .*line 2"),
    ],
)
def test_errors_name_file_machine_key_value_and_what_is_allowed(right, wrong, named):
    assert right in TEXT
    with pytest.raises(ValueError, match=rf"^lab/my\.toml: {named}"):
        site(TEXT.replace(right, wrong, 1))


def test_a_machine_without_any_keys_or_no_machine_is_named():
    with pytest.raises(ValueError, match=r"x: the file has no key 'machine'; use \[\[machine\]\] tables"):
        parse_site("", "x")
    with pytest.raises(ValueError, match=r"x: machine is \[\]; use \[\[machine\]\] tables"):
        parse_site("machine = []", "x")
    with pytest.raises(ValueError, match=r"x: machine\[0\] has no key 'name'"):
        parse_site("[[machine]]", "x")


def test_a_site_is_read_from_its_file(tmp_path):
    path = tmp_path / "my.toml"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert load_site(path) == parse_site(TEXT, str(path))


def test_check_shows_the_hosts_and_what_will_be_done(tmp_path, capsys):
    path = tmp_path / "my.toml"
    path.write_text('[network]\ncap = "2Gbit"\n' + TEXT)
    with pytest.raises(SystemExit) as ended:
        run_cli("cluster", "check", str(path))
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert "my.toml: 2 GPU machines, 1 CPU machine\n" in shown
    assert "NOT ENOUGH" not in shown
    assert re.search(r"old +cpu +old.example.org port 2222 +10 Gbit/s \+ 5 Gbit/s +eth0, 10.1.0.0/16 +0", shown)
    assert "install on gpu0, gpu1: suite into ~/byteps/suite, an environment made by python3 with torch" in shown
    assert "install on old: suite into ~/byteps/suite, an environment made by /opt/py/bin/python3 without" in shown
    assert "every NIC capped to 2 Gbit/s" in shown


@pytest.mark.parametrize(
    "top, named",
    [
        ('[ssh]\nkey = "none"\n', r"ssh.key of 'gpu0' is '.*none'; use a private key that is here"),
        ('[install]\nwheels = "."\n', r"install.wheels of 'gpu0' is '.*'; use a folder here that has \*.whl"),
    ],
)
def test_check_misses_files_of_this_machine(tmp_path, capsys, top, named):
    path = tmp_path / "my.toml"
    path.write_text(top + TEXT)
    with pytest.raises(SystemExit) as ended:
        run_cli("cluster", "check", str(path))
    assert ended.value.code == 2
    assert re.fullmatch(rf"byteps: {path}: {named}.*\n", capsys.readouterr().err)


def run_cli(*argv: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["byteps", *argv])
        main()


def test_the_reference_explains_every_key():
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    tables: list[type[msgspec.Struct]] = [
        ClusterFile, InstallTable, Login, MachineTable, NetworkTable, SiteTable, SshTable
    ]  # fmt: skip
    keys = {key for table in tables for key in table.__struct_fields__}
    assert [key for key in sorted(keys) if not re.search(rf"^\[*{key}\b|`\[*{key}\b", page, re.MULTILINE)] == []
