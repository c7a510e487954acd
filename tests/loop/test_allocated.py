"""`byteps launch` under srun and torchrun: nobody sets a DMLC variable."""

import sys

import pytest
from launchers import LAUNCHERS, free_ports, start

LAUNCH = ("byteps", "launch")
SUMS = """
import os, numpy, byteps
byteps.init()
array = numpy.full(1000, byteps.rank() + 1, numpy.float32)
found = byteps.push_pull(array, "one", op="sum")
print("rank", byteps.rank(), "of", byteps.size(), "world", os.environ["WORLD_SIZE"], "sum", float(found[0]))
byteps.shutdown()
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("servers", [0, 1])
def test_a_job_comes_together_without_a_variable_of_its_own(launcher, servers):
    words = [*LAUNCH, "--servers", str(servers), "--", sys.executable, "-c", SUMS]
    ended = start(launcher, 3, free_ports(), words)
    assert [code for code, _ in ended] == [0, 0, 0], ended
    workers = 3 - servers
    for rank, (_, output) in enumerate(ended[:workers]):
        assert f"rank {rank} of {workers} world {workers} sum {workers * (workers + 1) / 2}" in output


def test_a_worker_that_fails_fails_every_rank():
    program = SUMS.replace("array =", "1 / (1 - byteps.rank())\narray =")
    ended = start("srun", 2, free_ports(), [*LAUNCH, "--", sys.executable, "-c", program])
    assert [code for code, _ in ended] == [1, 1], ended
    assert "worker 1 ended with ZeroDivisionError" in ended[0][1]


def test_more_servers_than_processes_is_one_clear_error():
    ended = start("srun", 2, free_ports(), [*LAUNCH, "--servers", "2", "--", "true"])
    assert [code for code, _ in ended] == [2, 2]
    assert "--servers 2: Slurm started 2 processes, of which at least 1 has to be a worker" in ended[0][1]


def test_a_bad_variable_is_named():
    ended = start("srun", 2, free_ports(), [*LAUNCH, "--", "true"], SLURM_STEP_NODELIST="node[1-")
    assert "SLURM_STEP_NODELIST='node[1-' is not a list of nodes: brackets do not match" in ended[0][1]
