"""Experiments under srun and torchrun, both of which are variables here: the processes share this machine."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from jobs import free_port

from experiments import record

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENT = """
name = "mine"
title = "t"
provenance = "emulated"
warmups = 1
iterations = 1
[[contender]]
name = "byteps"
[tier.smoke]
blocks = 1
n = 2
ks = [1]
nbytes = ["1MiB"]
nic = "200Mbit"
"""
OWN = ("SLURM_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "BYTEPS_", "DMLC_")


def under_srun(rank: int, size: int, job: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(rank),
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": str(size),
        "SLURM_STEP_NODELIST": f"127.0.0.[1-{size}]",
    }


def under_torchrun(rank: int, size: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def start(variables: list[dict[str, str]], *words: str) -> list[tuple[int, str]]:
    """Exit code and output of every rank."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    processes = [_rank([*words], {**kept, **own}) for own in variables]
    try:
        return [(process.wait(100.0), output) for process in processes for output in [_output(process)]]
    finally:
        for process in processes:
            process.kill()
            process.wait(10.0)


def _rank(words: list[str], env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-m", "experiments", "join", "run", *words]
    return subprocess.Popen(argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _output(process: "subprocess.Popen[bytes]") -> str:
    return process.communicate(timeout=100.0)[0].decode(errors="replace")


@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_ranks_find_each_other_and_run_an_experiment(tmp_path: Path, launcher: str) -> None:
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    port = free_port()
    variables = [under_srun(r, 3, port) if launcher == "srun" else under_torchrun(r, 3, port) for r in range(3)]
    words = [str(tmp_path / "mine.toml"), "--tier", "smoke", "--servers", "1", "--nic", "1Gbit"]
    ended = start(variables, *words, "--results", str(tmp_path))
    assert [code for code, _ in ended] == [0, 0, 0], ended
    (one,), _ = record.read(tmp_path / "raw" / "mine.cluster.jsonl")
    assert one.verified, one.error
    assert (one.case.n, one.case.k, one.case.site) == (2, 1, "measured: gpu 2x1000Mbit; cpu 1x1000Mbit")


def test_a_rank_that_does_not_know_its_nic_ends_all_with_one_sentence() -> None:
    ended = start([under_torchrun(rank, 2, port) for port in [free_port()] for rank in range(2)], "fig12")
    assert [code for code, _ in ended] == [1, 1]
    for _, output in ended:
        assert "the kernel does not know the rate of lo; say it, such as --nic 25Gbit" in output
        assert "rank 1 on " in output


def test_a_rank_without_its_others_says_whom_it_misses(tmp_path: Path) -> None:
    program = (
        "from experiments import rollcall\n"
        "from byteps.allocation import from_environment\nimport os\n"
        "found = from_environment(os.environ)\n"
        "with rollcall.RollCall(found, b'loopback 1', seconds=0.5) as calls: calls.callers()"
    )
    env = {**os.environ, **under_torchrun(0, 3, free_port())}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60
    )
    assert "rank 1, 2 of 3 did not call within 0 s" in done.stderr
