"""Which address each summation process of a machine listens on, and how many processes there are."""

import pytest

from byteps import interfaces, server
from byteps.errors import StartError
from byteps.interfaces import own_address
from byteps.settings import read_settings


def listening(processes: int, **environment: str) -> list[str]:
    settings, _ = read_settings(environment)
    return [own_address(settings, "10.0.0.9", process) for process in range(processes)]


@pytest.fixture(autouse=True)
def _two_nics(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "eth0": "10.1.0.3", "eth1": "10.2.0.3"}
    monkeypatch.setattr(interfaces, "interface_addresses", lambda: found)


def test_all_processes_are_where_the_scheduler_is_unless_told_otherwise():
    assert listening(3) == ["10.0.0.9"] * 3


@pytest.mark.parametrize(
    "environment",
    [
        {"DMLC_INTERFACE": "eth0,eth1"},
        {"DMLC_INTERFACE": "10.1.0.0/16, 10.2.0.0/16"},
        {"DMLC_NODE_HOST": "10.1.0.3,10.2.0.3"},
        {"DMLC_NODE_HOST": "10.1.0.3, 10.2.0.3", "DMLC_INTERFACE": "docker0"},
    ],
)
def test_processes_take_the_nics_in_turn(environment):
    assert listening(4, **environment) == ["10.1.0.3", "10.2.0.3"] * 2


def test_one_of_several_that_is_not_there_is_named():
    with pytest.raises(StartError, match=r"DMLC_INTERFACE='ib0' is no interface .* eth1 \(10.2.0.3\)"):
        listening(2, DMLC_INTERFACE="eth0,ib0")


@pytest.mark.parametrize(
    "cores, nics, processes", [(2, "", 1), (16, "", 4), (2, "eth0,eth1", 2), (16, "eth0,eth1,eth2", 6), (8, "eth0", 2)]
)
def test_every_nic_has_equally_many_processes(monkeypatch, cores, nics, processes):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    settings, _ = read_settings({"DMLC_INTERFACE": nics})
    assert server.num_processes(settings) == processes
    settings, _ = read_settings({"DMLC_INTERFACE": nics, "BYTEPS_SERVICE_PROCESSES": "5"})
    assert server.num_processes(settings) == 5
