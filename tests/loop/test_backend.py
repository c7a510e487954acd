"""The backend "byteps" of torch.distributed, in real jobs.  Few jobs, many checks in each: see programs/torch_*.py."""

import re
import sys

import pytest
from jobs import PROGRAMS, Roles, errors, free_port, launch

pytest.importorskip("torch", reason="torch is not installed")
PARTITION = 4096


def passed(output: str) -> list[int]:
    return sorted(int(rank) for rank in re.findall(r"rank (\d+): \d+ checks passed", output))


@pytest.mark.parametrize("workers, servers", [(1, 0), (2, 1), (3, 0), (4, 2)])
def test_every_collective_equals_the_oracle_and_gloo(workers, servers):
    size = str(PARTITION)
    result = launch(
        "torch_collectives.py", size, workers=workers, servers=servers, seconds=110, BYTEPS_PARTITION_BYTES=size
    )
    assert result.code == 0, result.output
    assert passed(result.output) == list(range(workers))


@pytest.mark.parametrize("workers, servers", [(1, 1), (2, 2), (3, 1), (4, 2)])
def test_ddp_trains_as_one_process_with_all_samples(workers, servers):
    result = launch("torch_ddp.py", "backend", workers=workers, servers=servers, seconds=110)
    assert result.code == 0, result.output
    assert result.output.count("all right") == workers


@pytest.mark.parametrize("workers, servers", [(2, 1), (3, 0), (4, 2)])
def test_fsdp_trains_as_one_process_with_all_samples(workers, servers):
    result = launch("torch_fsdp.py", workers=workers, servers=servers, seconds=110)
    assert result.code == 0, result.output
    assert result.output.count("all right") == workers


def test_torchrun_starts_the_workers_of_a_job(tmp_path):
    with Roles(tmp_path, workers=2, servers=1) as job:
        job.scheduler()
        job.server(0)
        torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
        command = [sys.executable, "-m", *torchrun, str(PROGRAMS / "torch_ranks.py")]
        job.start("torchrun", "worker", *command)
        codes = job.wait()
    assert set(codes.values()) == {0}, job.report(f"{codes}")
    assert passed(job.output("torchrun")) == [0, 1]


def test_workers_know_their_ranks_as_under_torchrun():
    result = launch("torch_ranks.py", workers=2, servers=0)
    assert result.code == 0, result.output
    assert passed(result.output) == [0, 1]


def quarrel(tmp_path, *arguments: str, workers: int = 3, **environment: str) -> Roles:
    with Roles(tmp_path, workers=workers, servers=1, **environment) as job:
        job.everybody("torch_quarrel.py", *arguments)
        job.codes = job.wait()
    return job


def verdicts(job: Roles, *ranks: int) -> set[str]:
    """What these ranks said, at first and afterwards."""
    said = {rank: errors(job.output(f"worker {rank}")) for rank in ranks}
    assert all(len(texts) == 2 for texts in said.values()), job.report(f"{said}")
    return {text for texts in said.values() for text in texts}


@pytest.mark.parametrize(
    "what, tensor, difference",
    [
        ("shape", "all_reduce SUM #2", r"(.*shape \((5, 3|3, 5)\) float32 sum){2} \(shape"),
        ("gathered shape", r"all_gather from \d #1", r"(.*shape \([23],\) float32 copy){2} \(shape"),
    ],
)
def test_ranks_whose_tensors_differ_are_told_alike_at_once(tmp_path, what, tensor, difference):
    job = quarrel(tmp_path, "backend", what)
    (verdict,) = verdicts(job, 0, 1, 2)
    text = f"MismatchError: tensor 'world: {tensor}': {difference} of a name must stay the same"
    assert re.match(text, verdict), verdict
    assert all(code == 1 for code in job.codes.values()), job.codes
    waited = [float(re.search(r"^after ([\d.]+) s", job.output(f"worker {rank}"), re.M)[1]) for rank in range(3)]
    assert max(waited) < 5


def test_bytes_of_other_lengths_are_an_error_where_they_arrive_and_then_everywhere(tmp_path):
    job = quarrel(tmp_path, "backend", "bytes")
    text = "MismatchError: world: broadcast from 0: it gives 6 bytes, rank 2 has room for 7; shapes must be the same on"
    assert text in job.output("worker 2")
    assert f"worker 2 ended with {text}" in job.output("scheduler")


@pytest.mark.parametrize(
    "what, text",
    [
        ("kind", r"stalled: tensor 'world: (all_reduce SUM #2|broadcast from 0 #1)' waits for rank [\d, ]+"),
        ("absent", r"rank 2 left \(shutdown\) while tensor 'world: all_reduce SUM #2' needs its contribution"),
    ],
)
def test_ranks_that_do_something_else_are_a_named_stall(tmp_path, what, text):
    job = quarrel(tmp_path, "backend", what, BYTEPS_STALL_WARNING="1", BYTEPS_STALL_TIMEOUT="4")
    (verdict,) = verdicts(job, 0, 1)
    assert re.match(f"StallError: {text}", verdict), verdict


def test_a_barrier_keeps_the_time_out_of_its_group(tmp_path):
    job = quarrel(tmp_path, "backend", "late")
    late = "world: barrier is not over after 1 s, the time-out of its call or process group"
    first = [text for rank in (0, 1) for text in errors(job.output(f"worker {rank}"))]
    assert any(text.endswith(late) for text in first)
    assert all(late in text for text in first)
    assert re.search(rf"^error PeerLostError: worker [01] ended with \w+: {late}", job.output("worker 2"), re.M)


def test_a_rank_with_another_model_ends_all_with_a_named_error(tmp_path):
    """DDP compares the models when they are wrapped; whom it does not tell, hears how the others ended."""
    job = quarrel(tmp_path, "backend", "another layer")
    assert all(code == 1 for code in job.codes.values()), job.codes
    for rank in range(3):
        (said,) = errors(job.output(f"worker {rank}"))
        assert "DDP expects same model across all ranks, but Rank" in said


@pytest.mark.parametrize("what", ["killed in DDP", "killed in FSDP"])
def test_a_rank_killed_in_its_backward_pass_is_named_on_all_others(tmp_path, what):
    job = quarrel(tmp_path, "backend", what)
    (verdict,) = verdicts(job, 0, 1)
    assert re.match(r"PeerLostError: lost worker 2: ", verdict), verdict
    assert job.codes["worker 2"] == -9
    assert {code for name, code in job.codes.items() if name != "worker 2"} == {1}
