"""The tasks of a TensorFlow cluster: where they are, how they find each other, and what a setting becomes."""

import json

import pytest

from baselines.launch import Launch, Machine, Process
from baselines.peers import tensorflow


def launch(n: int, k: int, settings: dict[str, str] | None = None, *, scale: float = 1.0) -> Launch:
    def machine(host: str, number: int) -> Machine:
        return Machine(host=host, address=f"10.77.0.{number}", interface="eth0")

    return Launch(
        gpu_machines=tuple(machine(f"gpu{i}", i + 1) for i in range(n)),
        cpu_machines=tuple(machine(f"cpu{i}", n + i + 1) for i in range(k)),
        scheduler=machine("scheduler", 99),
        nic_bytes_per_s=25e6,
        nbytes=1 << 20,
        settings=settings or {},
        scale=scale,
        secret="00",
        port=29_417,
    )


def settings_of(worker: Process) -> dict[str, str]:
    told: dict[str, str] = json.loads(worker.argv[worker.argv.index("--settings") + 1])
    return told


def test_servers_are_on_the_cpu_machines() -> None:
    processes = tensorflow.plan(launch(2, 3))
    assert [(p.name, p.host, p.rank) for p in processes] == [
        ("server 0", "cpu0", -1),
        ("server 1", "cpu1", -1),
        ("server 2", "cpu2", -1),
        ("worker 0", "gpu0", 0),
        ("worker 1", "gpu1", 1),
    ]


def test_without_cpu_machines_a_server_stands_beside_every_worker_with_a_port_of_its_own() -> None:
    processes = tensorflow.plan(launch(2, 0))
    assert [p.host for p in processes] == ["gpu0", "gpu1", "gpu0", "gpu1"]
    cluster = json.loads(processes[0].env["TF_CONFIG"])["cluster"]
    assert cluster == {
        "ps": ["10.77.0.1:29417", "10.77.0.2:29417"],
        "worker": ["10.77.0.1:29418", "10.77.0.2:29418"],
    }


def test_every_task_knows_the_same_cluster_and_which_task_it_is() -> None:
    configs = [json.loads(process.env["TF_CONFIG"]) for process in tensorflow.plan(launch(3, 2))]
    assert all(config["cluster"] == configs[0]["cluster"] for config in configs)
    assert [(config["task"]["type"], config["task"]["index"]) for config in configs] == [
        ("ps", 0),
        ("ps", 1),
        ("worker", 0),
        ("worker", 1),
        ("worker", 2),
    ]


def test_the_least_slice_is_scaled_with_the_tensors_and_their_number_is_not() -> None:
    worker = tensorflow.plan(launch(1, 1, {"slice": "1MiB", "partitions": "4"}, scale=8.0))[-1]
    assert {key: settings_of(worker)[key] for key in ("slice", "partitions")} == {"slice": "131072", "partitions": "4"}


@pytest.mark.parametrize("settings", [{"partitions": "0"}, {"partitions": "all"}, {"slice": "many"}])
def test_a_setting_that_makes_no_sense_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"partitions|many"):
        tensorflow.plan(launch(1, 1, settings))


def test_workers_send_all_their_bytes_to_cpu_machines_and_as_a_ring_to_each_other() -> None:
    (contender,) = tensorflow.CONTENDERS
    assert contender.nic_nbytes is not None
    assert contender.nic_nbytes(4, 2, 100) == 100
    assert contender.nic_nbytes(4, 0, 100) == 150
