"""What MXNet's processes are told."""

import json

import pytest

from baselines.launch import Launch, Machine, Process
from baselines.peers import mxnet

CONTENDERS = {contender.name: contender for contender in mxnet.CONTENDERS}


def _machine(host: str, number: int) -> Machine:
    return Machine(host=host, address=f"10.0.0.{number}", interface="eth0")


def _plan(name: str = "mxnet-sync", n: int = 3, k: int = 2, **settings: str) -> list[Process]:
    launch = Launch(
        gpu_machines=tuple(_machine(f"gpu{number}", 1 + number) for number in range(n)),
        cpu_machines=tuple(_machine(f"cpu{number}", 101 + number) for number in range(k)),
        scheduler=_machine("scheduler", 200),
        nic_bytes_per_s=25e6,
        nbytes=2**20,
        settings=settings,
        secret="00",
        port=29_417,
    )
    plan = CONTENDERS[name].plan
    assert plan is not None
    return plan(launch)


def _told(process: Process) -> dict[str, str]:
    settings: dict[str, str] = json.loads(process.argv[process.argv.index("--settings") + 1])
    return settings


def _by_role(processes: list[Process], role: str) -> list[Process]:
    return [process for process in processes if process.env["DMLC_ROLE"] == role]


def test_servers_are_on_the_cpu_machines_if_there_are_any():
    servers = _by_role(_plan(k=2), "server")
    assert [process.host for process in servers] == ["cpu0", "cpu1"]
    assert {process.env["DMLC_NUM_SERVER"] for process in _plan(k=2)} == {"2"}


def test_without_cpu_machines_every_gpu_machine_has_a_server_beside_its_worker():
    processes = _plan(n=3, k=0)
    assert [process.host for process in _by_role(processes, "server")] == ["gpu0", "gpu1", "gpu2"]
    assert [process.host for process in _by_role(processes, "worker")] == ["gpu0", "gpu1", "gpu2"]
    assert {process.env["DMLC_NUM_SERVER"] for process in processes} == {"3"}


def test_only_workers_run_the_driver_and_they_are_numbered():
    processes = _plan(n=3)
    assert [process.rank for process in _by_role(processes, "worker")] == [0, 1, 2]
    assert {process.rank for process in processes if process.env["DMLC_ROLE"] != "worker"} == {-1}
    assert len({process.name for process in processes}) == len(processes)


def test_all_run_in_the_environment_of_mxnet_and_meet_at_the_scheduler():
    processes = _plan()
    assert {process.argv[0] for process in processes} == {mxnet.ENVIRONMENT.python}
    assert {process.env["DMLC_PS_ROOT_URI"] for process in processes} == {"10.0.0.200"}
    assert {process.env["DMLC_PS_ROOT_PORT"] for process in processes} == {"29417"}
    assert [process.host for process in _by_role(processes, "scheduler")] == ["scheduler"]


def test_each_process_is_told_its_own_address():
    addresses = {process.host: process.env["DMLC_NODE_HOST"] for process in _plan(n=2, k=1)}
    assert addresses == {"scheduler": "10.0.0.200", "cpu0": "10.0.0.101", "gpu0": "10.0.0.1", "gpu1": "10.0.0.2"}


def test_the_priority_store_needs_its_transport_in_every_process_and_the_others_must_not_have_it():
    assert {process.env["DMLC_PS_VAN_TYPE"] for process in _plan("mxnet-p3")} == {"p3"}
    assert not any(
        "DMLC_PS_VAN_TYPE" in process.env for name in ("mxnet-sync", "mxnet-async") for process in _plan(name)
    )


@pytest.mark.parametrize(
    ("name", "store"), [("mxnet-sync", "dist_sync"), ("mxnet-p3", "dist_sync"), ("mxnet-async", "dist_async")]
)
def test_each_contender_opens_its_store(name: str, store: str):
    assert {_told(process)["store"] for process in _by_role(_plan(name), "worker")} == {store}


def test_knobs_left_alone_are_the_defaults_of_mxnet_and_16_keys():
    process = _by_role(_plan(), "worker")[0]
    assert process.env["MXNET_KVSTORE_BIGARRAY_BOUND"] == "1000000"
    assert process.env["MXNET_KVSTORE_SLICE_THRESHOLD"] == "40000"
    told = _told(process)
    assert (told["keys"], told["split"], told["call"]) == ("16", str(2**20), "pushpull")


def test_the_priority_store_slices_by_itself_so_a_tensor_is_one_key():
    assert _told(_by_role(_plan("mxnet-p3"), "worker")[0])["keys"] == "1"
    assert _told(_by_role(_plan("mxnet-p3", keys="8"), "worker")[0])["keys"] == "8"


def test_the_priority_store_gets_the_low_watermark_without_which_its_queue_is_always_empty():
    assert {process.env["DMLC_PS_WATER_MARK"] for process in _plan("mxnet-p3")} == {"10"}
    assert {process.env["DMLC_PS_WATER_MARK"] for process in _plan("mxnet-p3", watermark="3")} == {"3"}
    assert not any("DMLC_PS_WATER_MARK" in process.env for process in _plan("mxnet-sync"))


def test_settings_reach_workers_and_servers():
    processes = _plan(keys="4", split="64KiB", bigarray="5000", slice="700", threads="2", call="push+pull")
    assert {process.env["MXNET_KVSTORE_BIGARRAY_BOUND"] for process in processes} == {"5000"}
    assert {process.env["MXNET_KVSTORE_SLICE_THRESHOLD"] for process in processes} == {"700"}
    assert {process.env["OMP_NUM_THREADS"] for process in processes} == {"2"}
    told = _told(_by_role(processes, "worker")[0])
    assert (told["keys"], told["split"], told["call"]) == ("4", "65536", "push+pull")


@pytest.mark.parametrize(
    ("name", "value"), [("keys", "0"), ("keys", "many"), ("bigarray", "4MB"), ("slice", "-1"), ("threads", "")]
)
def test_a_knob_that_is_no_number_is_refused_by_name(name: str, value: str):
    with pytest.raises(ValueError, match=rf"mxnet: {name} = '{value}'; it takes a whole number of at least 1"):
        _plan(**{name: value})


def test_a_call_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"'pull'; it takes one of pushpull, push\+pull"):
        _plan(call="pull")


@pytest.mark.parametrize("name", ["mxnet-sync", "mxnet-p3"])
def test_a_worker_sends_all_to_cpu_machines_and_what_a_ring_sends_if_there_are_none(name: str):
    formula = CONTENDERS[name].nic_nbytes
    assert formula is not None
    assert formula(4, 2, 1000) == 1000
    assert formula(4, 0, 1000) == 1500
