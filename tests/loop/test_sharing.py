"""Weights in the services in real jobs: asynchronous and with a staleness bound.  The checks are in sharing.py."""

import re

import numpy as np
import pytest
from jobs import Roles, errors, launch


@pytest.mark.parametrize(
    "case, workers, servers",
    [
        ("conservation", 3, 1),
        ("conservation", 2, 0),
        ("conservation", 1, 0),
        ("order", 2, 1),
        ("straggler", 3, 1),
        ("free", 3, 1),
        ("misuse", 2, 0),
    ],
)
def test_weights_are_the_initial_ones_and_all_differences(tmp_path, case, workers, servers):
    np.zeros(workers, np.int64).tofile(tmp_path / "clocks")
    result = launch(
        "sharing.py", case, str(tmp_path), workers=workers, servers=servers, BYTEPS_PARTITION_BYTES="256KiB"
    )
    assert result.code == 0, result.output
    assert result.output.count("right") == workers


def test_a_worker_that_finishes_early_holds_nobody_back(tmp_path):
    with Roles(tmp_path, workers=3, servers=0, BYTEPS_PARTITION_BYTES="256KiB") as job:
        job.everybody("sharing.py", "early", str(tmp_path))
        assert set(job.wait(seconds=30).values()) == {0}, job.report("failed")
        assert "keeps weights for the others" in job.output("worker 1")
        # 3 workers' 13 differences of 5 partitions, each partition at one of the services
        added = [
            int(n) for rank in range(3) for n in re.findall(r"added (\d+) differences", job.output(f"worker {rank}"))
        ]
        assert sum(added) == 13 * 5


@pytest.mark.parametrize(
    "case, kind, text",
    [
        ("stall", "StallError", "waits for rank 1 for"),
        ("two_roots", "MismatchError", "set weights that are set; give every rank the same root"),
        ("no_root", "StallError", "stalled: tensor 'weights' waits for rank 0, 1 for"),
        ("quarrel", "MismatchError", "(staleness of a name must stay the same on every rank"),
    ],
)
def test_workers_that_wait_in_vain_are_told(tmp_path, case, kind, text):
    result = launch(
        "sharing.py", case, str(tmp_path), workers=2, servers=1, BYTEPS_STALL_WARNING="1s", BYTEPS_STALL_TIMEOUT="2s"
    )
    assert result.code == 1
    said = errors(result.output)
    assert all(line.startswith(kind) for line in said), result.output
    assert text in result.output


def test_a_dead_worker_is_named_by_those_that_wait_for_it(tmp_path):
    with Roles(tmp_path, workers=3, servers=1) as job:
        job.everybody("sharing.py", "dead", str(tmp_path))
        for rank in range(3):
            job.wait_for(f"worker {rank}", "sharing")
        job.kill("worker 1")
        codes = job.wait("worker 0", "worker 2", "server 0", "scheduler", seconds=10)
        assert all(codes.values()), codes
        for rank in (0, 2):
            assert errors(job.output(f"worker {rank}"))[0].startswith("PeerLostError: lost worker 1")


@pytest.mark.parametrize(
    "case, workers, environment",
    [
        ("training", 3, {}),
        ("alone", 1, {}),
        ("variable", 2, {"BYTEPS_ENABLE_ASYNC": "1"}),
    ],
)
def test_optimizers_without_a_common_step(tmp_path, case, workers, environment):
    np.zeros(workers, np.int64).tofile(tmp_path / "clocks")
    result = launch("own_pace.py", case, str(tmp_path), workers=workers, servers=1, **environment)
    assert result.code == 0, result.output
    assert result.output.count("right") == workers
    assert "has no effect" not in result.output


def test_ranks_with_different_modes_are_told(tmp_path):
    result = launch("own_pace.py", "quarrel", str(tmp_path), workers=2, servers=0)
    assert result.code == 1
    assert all(line.startswith("MismatchError: declare(): the name sets differ") for line in errors(result.output))
