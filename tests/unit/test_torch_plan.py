"""What the processes of torch.distributed are told."""

import json

import pytest

from baselines.launch import LEADER_PORT_DISTANCE, Launch, Machine, Process
from baselines.peers import torch


def launch(scale: float = 1.0, **settings: str) -> Launch:
    return Launch(
        gpu_machines=tuple(Machine(host=f"gpu{i}", address=f"10.0.0.{i + 1}", interface="eth0") for i in range(3)),
        cpu_machines=(),
        scheduler=Machine(host="scheduler", address="10.0.0.200", interface="eth0"),
        nic_bytes_per_s=25e6,
        nbytes=2**20,
        settings=settings,
        scale=scale,
        secret="00",
        port=29_417,
    )


def told(processes: list[Process]) -> list[dict[str, str]]:
    return [json.loads(process.argv[process.argv.index("--settings") + 1]) for process in processes]


def plan(name: str, task: Launch) -> list[Process]:
    contender = next(one for one in torch.CONTENDERS if one.name == name)
    assert contender.plan is not None
    return contender.plan(task)


@pytest.mark.parametrize("name", ["gloo-ring", "ddp"])
def test_all_ranks_meet_at_the_first(name):
    processes = plan(name, launch())
    assert [(process.rank, process.host) for process in processes] == [(0, "gpu0"), (1, "gpu1"), (2, "gpu2")]
    for process, settings in zip(processes, told(processes), strict=True):
        assert settings["rendezvous"] == "tcp://10.0.0.1:29417"
        assert settings["backend"] == "gloo"
        assert process.env["GLOO_SOCKET_IFNAME"] == process.env["NCCL_SOCKET_IFNAME"] == "eth0"


@pytest.mark.parametrize(
    "settings, first, bucket",
    [
        ({}, 2**20, 25 * 2**20),
        ({"bucket": "4MiB"}, 4 * 2**20, 4 * 2**20),
        ({"bucket": "4MiB", "first": "512KiB"}, 2**19, 4 * 2**20),
    ],
)
def test_buckets_are_those_of_ddp_unless_told_otherwise_and_as_small_as_the_tensors(settings, first, bucket):
    for scale in (1, 64):
        for one in told(plan("ddp", launch(scale=scale, **settings))):
            assert (int(one["first"]), int(one["bucket"])) == (first // scale, bucket // scale)


def test_ddp_takes_no_strategy_and_neither_takes_an_unknown_back_end():
    with pytest.raises(ValueError, match="'fused'; DDP is a strategy itself"):
        plan("ddp", launch(strategy="fused"))
    with pytest.raises(ValueError, match="'mpi'; it takes one of gloo, nccl"):
        plan("gloo-ring", launch(backend="mpi"))


def test_a_strategy_comes_with_scaled_sizes_and_the_place_where_rank_0_decides():
    settings = {"strategy": "scheduled", "piece": "4MiB", "credit": "64MiB"}
    for one in told(plan("gloo-ring", launch(scale=32, **settings))):
        assert (one["piece"], one["credit"]) == (str(2**17), str(2**21))
        assert one["leader"] == f"10.0.0.1:{29_417 + LEADER_PORT_DISTANCE}"
    assert "leader" not in told(plan("gloo-ring", launch()))[0]
