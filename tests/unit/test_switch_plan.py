"""What the processes of a switch that sums are told, and where they run."""

import json

import pytest

from baselines import contenders
from baselines.launch import SWITCH, Launch, Machine, Process
from scripts import lab


def launch(n: int = 3, rate: float = 6.25e6, **settings: str) -> Launch:
    return Launch(
        gpu_machines=tuple(Machine(host=f"gpu{i}", address=f"10.0.0.{i + 1}", interface="eth0") for i in range(n)),
        cpu_machines=(),
        scheduler=Machine(host="scheduler", address="10.0.0.200", interface="eth0"),
        nic_bytes_per_s=rate,
        nbytes=2**20,
        settings=settings,
        secret="00",
        port=29_417,
        switch_address="10.0.255.254",
    )


def plan(task: Launch) -> list[Process]:
    chosen = contenders.get("switch-sum").plan
    assert chosen is not None
    return chosen(task)


def told(process: Process) -> dict[str, str]:
    return dict(json.loads(process.argv[process.argv.index("--settings") + 1]))


def test_the_switch_runs_in_the_switch_and_all_know_its_address() -> None:
    processes = plan(launch())
    assert [(one.host, one.rank) for one in processes] == [(SWITCH, -1), ("gpu0", 0), ("gpu1", 1), ("gpu2", 2)]
    assert SWITCH == lab.SWITCH
    assert {(told(one)["switch"], told(one)["port"], told(one)["n"]) for one in processes} == {
        ("10.0.255.254", "29417", "3")
    }


def test_a_worker_alone_needs_no_switch() -> None:
    assert [one.name for one in plan(launch(1))] == ["worker 0"]


@pytest.mark.parametrize(
    ("n", "rate", "pool"), [(4, 6.25e6, 15), (4, 3.125e6, 8), (4, 125e6, 64), (16, 125e6, 16), (64, 125e6, 8)]
)
def test_the_pool_follows_the_rate_as_far_as_the_switch_holds_that_of_all(n: int, rate: float, pool: int) -> None:
    assert told(plan(launch(n, rate))[0])["pool"] == str(pool)


def test_what_is_said_holds_and_a_time_out_is_longer_than_a_pool_takes() -> None:
    settings = told(plan(launch(pool="100", block="4KiB", timeout="5ms", loss="0.001", seed="7"))[1])
    assert {name: settings[name] for name in ("pool", "block", "timeout", "loss", "seed")} == {
        **{"pool": "100", "block": "1024", "timeout": "0.005", "loss": "0.001", "seed": "7"},
    }
    assert float(told(plan(launch())[0])["timeout"]) > 15 * 8192 / 6.25e6


def test_it_is_only_emulated() -> None:
    contender = contenders.get("switch-sum")
    assert contender.uses_switch
    assert "no host of a cluster is a switch" in contender.only_emulated
