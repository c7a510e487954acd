"""What preflight says about the facts of hosts."""

import dataclasses

import pytest

from byteps.hosts import parse_site
from scripts import preflight_rules as rules
from scripts.preflight_rules import Look

SITE = parse_site(
    """
[[machine]]
name = "gpu"
role = "gpu"
nic = "200Mbit"
count = 2
address = ["10.0.0.1", "10.0.0.2"]
interface = "10.0.0.0/16"

[[machine]]
name = "cpu0"
role = "cpu"
nic = "100Mbit"
address = "10.0.0.3"
""",
    "my.toml",
)


def look(number: int = 0, **facts: object) -> Look:
    host = SITE.hosts[number]
    known = {
        "python": [3, 11, 2],
        "executable": "/usr/bin/python3",
        "venv": True,
        "environment": "",
        "root": False,
        "sudo": True,
        "free_bytes": 100 << 30,
        "writable": True,
        "file_system": "ext4",
        "interfaces": {
            "lo": {"addresses": ["127.0.0.1"], "mtu": 65536, "speed": -1},
            "eth1": {"addresses": [host.address], "mtu": 1500, "speed": 1000},
        },
        "address": host.address,
        "tc": True,
        "gpus": ["GPU 0: A"] * host.gpus,
        "topology": "",
        "cores": 4,
    }
    return Look(host=host, facts={**known, **facts})


def told(one: Look, **how: bool) -> list[tuple[str, str]]:
    return [(finding.severity, finding.text) for finding in rules.problems(one, **how)]


def test_nothing_is_said_about_a_host_that_is_all_right():
    assert told(look()) == []
    assert rules.cells(look(), 3)[:5] == ("3.11.2", "107 GB", "ok", "eth1", "1500")


@pytest.mark.parametrize(
    "facts, severity, text",
    [
        ({"python": [3, 9, 1]}, "failed", "/usr/bin/python3 is Python 3.9.1"),
        ({"venv": False}, "failed", "its Python has no venv"),
        ({"free_bytes": 5 << 30}, "failed", "5 GiB free for ~/byteps, 12 GiB are needed"),
        ({"writable": False}, "failed", "~/byteps cannot be made or written"),
        ({"file_system": "nfs4"}, "failed", "~/byteps is on nfs4, which other hosts may share"),
        ({"sudo": False}, "note", "neither root nor `sudo -n`"),
        ({"gpus": []}, "note", "0 of 1 GPUs seen by nvidia-smi"),
        ({"address": ""}, "failed", "10.0.0.1 does not resolve there"),
        (
            {"interfaces": {"eth0": {"addresses": ["192.168.1.5"], "mtu": 1500, "speed": -1}}},
            "failed",
            "none of its interfaces has the address 10.0.0.1; it has eth0 (192.168.1.5)",
        ),
    ],
)
def test_what_is_wrong_is_named(facts, severity, text):
    assert (severity, text) in told(look(**facts))


def test_a_cap_needs_root_and_tc():
    assert ("failed", "neither root nor `sudo -n`") in told(look(sudo=False), cap=True)
    assert ("failed", "tc is not here, which network.cap needs") in told(look(tc=False), cap=True)


def test_emulated_hosts_are_not_asked_for_their_gpus():
    assert told(look(gpus=[]), measured=False) == []


def test_an_environment_that_is_there_makes_the_interpreter_and_its_disk_unimportant():
    one = look(python=[3, 6, 0], free_bytes=2 << 30, environment="3.11.2, torch 2.13.0")
    one.host = dataclasses.replace(one.host, environment="/opt/env")
    assert told(one) == []
    one.facts["environment"] = ""
    assert told(one) == [("failed", "/opt/env is no virtual environment")]


def test_an_interface_is_found_by_name_network_or_address():
    there = {"eth0": {"addresses": ["10.1.0.7", "fd00::7"]}, "down": {"addresses": []}}
    assert rules.find_interface("eth0", there) == "eth0"
    assert rules.find_interface("10.1.0.0/16", there) == "eth0"
    assert rules.find_interface("fd00::7", there) == "eth0"
    assert rules.find_interface("10.2.0.0/16", there) is None
    assert rules.find_interface("ib0", there) is None


def test_hosts_whose_mtu_is_not_that_of_most_are_named():
    jumbo = look(1)
    jumbo.facts["interfaces"]["eth1"]["mtu"] = 9000
    assert rules.unequal([look(0), look(2)]) == {}
    assert {name: one.text for name, one in rules.unequal([look(0), jumbo, look(2)]).items()} == {
        "gpu1": "MTU 9000, 1500 on other hosts"
    }


def test_what_arrives_is_limited_by_the_slower_of_two_neighbours():
    pairs = [(one.host.name, to.host.name, rate) for one, to, rate in rules.ring([look(0), look(1), look(2)])]
    assert [pair[:2] for pair in pairs] == [("gpu0", "gpu1"), ("gpu1", "cpu0"), ("cpu0", "gpu0")]
    assert [round(rate / 1e6, 1) for *_, rate in pairs] == [23.9, 12.0, 12.0]
    assert rules.ring([look(0)]) == []
    assert (rules.flows(12e6), rules.flows(12.5e9)) == (1, 10)


def test_a_link_below_its_promise_and_a_port_that_does_not_answer_are_named():
    one = look()
    one.expected, one.bytes_per_s = 25e6, 12e6
    one.unreached = {"cpu0": "no answer"}
    assert told(one) == [
        ("failed", "cannot connect to cpu0: no answer"),
        ("note", "96 Mbit/s arrive of 200 Mbit/s that nic promises"),
    ]


def test_a_clock_is_off_only_as_far_as_the_answers_way_cannot_explain():
    assert rules.clock_skew(100.0, 100.3, 100.5) == 0.0
    assert rules.clock_skew(100.0, 103.5, 100.5) == 3.0
    assert rules.clock_skew(100.0, 98.0, 100.5) == -2.0
    late = look()
    late.skew_seconds = -2.0
    assert told(late) == [("note", "its clock is -2.0 s off this one's")]


def test_the_inside_is_told_from_the_matrix_of_nvidia_smi():
    assert rules.inside({"gpus": [], "topology": ""}) == "-"
    assert rules.inside({"gpus": ["GPU 0"], "topology": "GPU0 X PIX"}) == "PCIe only"
    assert rules.inside({"gpus": ["GPU 0"], "topology": "GPU0 X NV12"}) == "NVLink"
