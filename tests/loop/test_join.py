"""Experiments under srun and torchrun, both of which are variables here: the processes share this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launchers import LAUNCHERS, ROOT, free_ports, start, variables

from experiments import record

JOIN = ("experiments", "join", "run")
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


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_find_each_other_and_run_an_experiment(tmp_path: Path, launcher: str) -> None:
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    options = ["--tier", "smoke", "--servers", "1", "--nic", "1Gbit", "--results", str(tmp_path)]
    ended = start(launcher, 3, free_ports(), [*JOIN, str(tmp_path / "mine.toml"), *options])
    assert [code for code, _ in ended] == [0, 0, 0], ended
    (one,), _ = record.read(tmp_path / "raw" / "mine.cluster.jsonl")
    assert one.verified, one.error
    assert (one.case.n, one.case.k, one.case.site) == (2, 1, "measured: gpu 2x1000Mbit; cpu 1x1000Mbit")


def test_a_rank_that_does_not_know_its_nic_ends_all_with_one_sentence() -> None:
    ended = start("torchrun", 2, free_ports(), [*JOIN, "fig12"])
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
    env = {**os.environ, **variables("torchrun", 0, 3, free_ports())}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60
    )
    assert "rank 1, 2 of 3 did not call within 0 s" in done.stderr
