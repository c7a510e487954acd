"""Jobs that follow a plan file: `BYTEPS_PLAN`, read by the scheduler, or by the launcher of a local job."""

from pathlib import Path

import pytest
from jobs import Roles, launch

from byteps.plan import Plan, PlannedMachine, write_plan

PARTITION = 4000  # bytes; 100 of them are what programs/owners.py sums


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """For 2 GPU machines and 1 CPU machine, whose shares would be 1/4, 1/4 and 1/2 without a plan."""
    path = tmp_path / "plan.json"
    gpu, cpu = (
        tuple(PlannedMachine(name=name, share=share, nics_bytes_per_s=(1e9,)) for name, share in machines)
        for machines in ([("a", 0.0), ("b", 0.7)], [("c", 0.3)])
    )
    write_plan(
        Plan(
            cluster="my.toml",
            n=2,
            k=1,
            partition_bytes=PARTITION,
            predicted_seconds=1.0,
            gpu_machines=gpu,
            cpu_machines=cpu,
        ),
        path,
    )
    return path


def test_a_local_job_sums_where_its_plan_says(plan):
    result = launch("owners.py", workers=2, servers=1, BYTEPS_PLAN=str(plan), BYTEPS_SERVICE_PROCESSES="1")
    assert result.code == 0, result.output
    for rank in range(2):
        assert f"rank {rank}: cut {PARTITION}, owners [(1, 70), (2, 30)]" in result.output, result.output
    assert "[scheduler] byteps scheduler: shares are those planned for my.toml" in result.output


def test_a_partition_size_that_is_set_goes_before_the_plans(plan):
    options = {"BYTEPS_PLAN": str(plan), "BYTEPS_SERVICE_PROCESSES": "1", "BYTEPS_PARTITION_BYTES": "40000"}
    result = launch("owners.py", workers=2, servers=1, **options)
    assert result.output.count("cut 40000, owners [(1, 7), (2, 3)]") == 2, result.output


def test_the_scheduler_alone_needs_the_file(plan, tmp_path):
    with Roles(tmp_path, workers=2, servers=1, BYTEPS_SERVICE_PROCESSES="1") as job:
        job.scheduler(BYTEPS_PLAN=str(plan))
        job.server(0, BYTEPS_PLAN="/nowhere/plan.json")
        for rank in range(2):
            job.worker(rank, "owners.py")
        assert set(job.wait().values()) == {0}, job.report("the job failed")
        assert f"rank 0: cut {PARTITION}, owners [(1, 70), (2, 30)]" in job.output("worker 0")


@pytest.mark.parametrize(
    "workers, environment, text",
    [
        (3, {}, "is for 2 GPU machines and 1 CPU machines, the job has 3 workers and 1 servers"),
        (2, {"BYTEPS_PLAN": "/nowhere/plan.json"}, "BYTEPS_PLAN='/nowhere/plan.json' is not usable: "),
        (2, {"BYTEPS_KEY_HASH_FN": "hash"}, "BYTEPS_KEY_HASH_FN=hash knows the paper's shares only"),
    ],
)
def test_a_plan_that_does_not_fit_is_one_line_before_anything_starts(plan, workers, environment, text):
    result = launch("owners.py", workers=workers, servers=1, **{"BYTEPS_PLAN": str(plan)} | environment)
    assert result.code == 2
    (line,) = result.output.splitlines()
    assert text in line


def test_a_scheduler_whose_plan_does_not_fit_says_so_and_ends(plan, tmp_path):
    with Roles(tmp_path, workers=2, servers=0) as job:
        job.scheduler(BYTEPS_PLAN=str(plan))
        assert job.wait()["scheduler"] == 1
        assert "the job has 2 workers and 0 servers; plan for as many" in job.output("scheduler")
