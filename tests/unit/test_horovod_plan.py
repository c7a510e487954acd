"""What Horovod's processes are told."""

import json

import pytest

from baselines.launch import Launch, Machine, Process
from baselines.peers import horovod


def _machine(number: int) -> Machine:
    return Machine(host=f"gpu{number}", address=f"10.0.0.{number + 1}", interface="eth0")


def _plan(size: int = 3, **settings: str) -> list[Process]:
    launch = Launch(
        gpu_machines=tuple(_machine(number) for number in range(size)),
        cpu_machines=(Machine(host="cpu0", address="10.0.0.100", interface="eth0"),),
        scheduler=Machine(host="scheduler", address="10.0.0.200", interface="eth0"),
        nic_bytes_per_s=25e6,
        nbytes=2**20,
        settings=settings,
        secret="00",
        port=29_417,
    )
    return horovod.plan(launch)


def _ranks(processes: list[Process]) -> list[Process]:
    return [process for process in processes if process.rank >= 0]


def test_one_rank_per_gpu_machine_and_one_server_on_the_first():
    server, *ranks = _plan()
    assert (server.rank, server.host) == (-1, "gpu0")
    assert [(process.rank, process.host) for process in ranks] == [(0, "gpu0"), (1, "gpu1"), (2, "gpu2")]


def test_all_run_in_the_environment_of_horovod():
    assert {process.argv[0] for process in _plan()} == {horovod.ENVIRONMENT.python}


def test_the_ranks_meet_where_the_server_listens():
    server, *ranks = _plan()
    address, port, *hosts = server.argv[3:]
    meetings = {(rank.env["HOROVOD_GLOO_RENDEZVOUS_ADDR"], rank.env["HOROVOD_GLOO_RENDEZVOUS_PORT"]) for rank in ranks}
    assert meetings == {(address, port)} == {("10.0.0.1", "29417")}
    assert hosts == [rank.env["HOROVOD_HOSTNAME"] for rank in ranks]


def test_no_two_ranks_are_taken_for_processes_of_one_machine():
    ranks = _ranks(_plan(4))
    assert len({rank.env["HOROVOD_HOSTNAME"] for rank in ranks}) == 4
    assert {rank.env["HOROVOD_LOCAL_SIZE"] for rank in ranks} == {"1"}
    assert [rank.env["HOROVOD_CROSS_RANK"] for rank in ranks] == [rank.env["HOROVOD_RANK"] for rank in ranks]


def test_knobs_left_alone_are_the_defaults_of_horovod():
    for rank in _ranks(_plan()):
        assert rank.env["HOROVOD_FUSION_THRESHOLD"] == str(128 * 2**20)
        assert float(rank.env["HOROVOD_CYCLE_TIME"]) == 1.0


def test_settings_reach_every_rank():
    for rank in _ranks(_plan(fusion="2MiB", cycle="5", wait="spin")):
        assert rank.env["HOROVOD_FUSION_THRESHOLD"] == str(2 * 2**20)
        assert float(rank.env["HOROVOD_CYCLE_TIME"]) == 5.0
        assert json.loads(rank.argv[rank.argv.index("--settings") + 1])["wait"] == "spin"


def test_a_way_to_wait_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="'nap'; allowed are poll, spin"):
        _plan(wait="nap")


def test_it_sends_what_a_ring_sends_whatever_k_is():
    (contender,) = horovod.CONTENDERS
    assert contender.nic_nbytes is not None
    assert not contender.uses_k
    assert contender.nic_nbytes(4, 0, 1000) == contender.nic_nbytes(4, 3, 1000) == 1500
