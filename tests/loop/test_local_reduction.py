"""Workers that are summed on their machine: right sums, refusals in words, and the same ends as elsewhere."""

import os
import re
from pathlib import Path

import pytest
from jobs import Result, Roles, errors, launch

WITHIN_SECONDS = 10.0


def start(job: Roles, local_size: int, program: str, *arguments: str) -> None:
    """Every worker as a process of its own, as a cluster's scheduler starts them."""
    job.scheduler()
    for rank in range(job.workers * local_size):
        machine, local = divmod(rank, local_size)
        places = {"DMLC_WORKER_ID": str(machine), "BYTEPS_LOCAL_RANK": str(local), "BYTEPS_LOCAL_SIZE": str(local_size)}
        job.worker(machine, program, *arguments, name=f"worker {rank}", **places)


def sums(workers: int, servers: int, local_size: int, seen: int) -> Result:
    arguments = (str(seen), str(workers))
    result = launch("local_sums.py", *arguments, workers=workers, servers=servers, local_size=local_size)
    assert result.code == 0, result.output
    assert len(re.findall(r"rank \d+: 0 wrong", result.output)) == workers, result.output
    return result


@pytest.mark.parametrize(
    ("workers", "servers", "local_size"), [(4, 0, 4), (6, 1, 3)], ids=["1 machine of 4", "2 of 3, a server"]
)
def test_all_types_and_operations_are_the_oracles(workers: int, servers: int, local_size: int) -> None:
    sums(workers, servers, local_size, seen=local_size)


def test_a_local_size_of_one_sums_nobody_together() -> None:
    sums(4, 0, 1, seen=4)  # local_size() is what torchrun would say


@pytest.mark.parametrize("victim", [0, 3], ids=["a root", "a worker that is no root"])
def test_everybody_names_the_worker_that_was_killed(tmp_path: Path, victim: int) -> None:
    with Roles(tmp_path, workers=2, servers=0) as job:
        start(job, 2, "steady.py", str(tmp_path / "stop"))
        for rank in range(4):
            job.wait_for(f"worker {rank}", "pushing")
        job.kill(f"worker {victim}")
        others = [name for name in job.processes if name != f"worker {victim}"]
        assert all(job.wait(*others, seconds=WITHIN_SECONDS).values())
        for name in others[1:]:
            said = errors(job.output(name))
            assert len(said) == 2, job.report(name)
            assert all(text.startswith(f"PeerLostError: lost worker {victim}") for text in said), said


def quarrel(tmp_path: Path, what: str, **environment: str) -> set[str]:
    """What the workers of two machines of two, the last of which disagrees, say about it."""
    with Roles(tmp_path, workers=2, servers=0, **environment) as job:
        start(job, 2, "quarrel.py", what)
        codes = job.wait()
        assert all(code == 1 for code in codes.values()), job.report(str(codes))
        return {text for rank in range(4) for text in errors(job.output(f"worker {rank}"))}


def test_a_worker_that_never_submits_is_named(tmp_path: Path) -> None:
    (said,) = quarrel(tmp_path, "stall", BYTEPS_STALL_WARNING="1", BYTEPS_STALL_TIMEOUT="3")
    expected = r"StallError: stalled: tensor 'half' waits for rank 3 for \d+ s; ready: rank (0, 1, )?2; "
    assert re.match(expected, said), said


def test_a_tensor_of_another_shape_is_one_mismatch_everywhere(tmp_path: Path) -> None:
    (said,) = quarrel(tmp_path, "shape")
    assert said.startswith("MismatchError: tensor 'fc.weight': rank ")
    assert "(3, 5) float32" in said
    assert "(5, 3) float32" in said


def test_what_needs_every_worker_on_its_own_is_refused_and_codecs_work() -> None:
    result = launch("local_limits.py", "together", workers=4, servers=0, local_size=2)
    assert result.code == 0, result.output
    assert result.output.count("right") == 4


def test_without_local_reduction_every_worker_is_on_its_own(tmp_path: Path) -> None:
    with Roles(tmp_path, workers=2, servers=0, BYTEPS_LOCAL_REDUCTION="0", BYTEPS_LOCAL_SIZE="2") as job:
        job.scheduler()
        for rank in range(2):
            job.worker(rank, "local_limits.py", "apart", BYTEPS_LOCAL_RANK=str(rank))
        assert not any(job.wait().values()), job.report("a worker failed")


def test_machines_of_different_sizes_are_refused(tmp_path: Path) -> None:
    with Roles(tmp_path, workers=2, servers=0, BYTEPS_START_TIMEOUT="8") as job:
        job.scheduler()
        for machine, local_size in ((0, 1), (1, 2)):
            places = {"BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": str(local_size)}
            job.worker(machine, "steady.py", str(tmp_path / "stop"), **places)
        assert all(job.wait().values())
        everything = "".join(map(job.output, job.processes))
        assert "give every machine as many (BYTEPS_LOCAL_SIZE)" in everything, job.report("not said")


def test_a_worker_that_does_not_come_is_named(tmp_path: Path) -> None:
    with Roles(tmp_path, workers=1, servers=0, BYTEPS_START_TIMEOUT="2", BYTEPS_LOCAL_SIZE="2") as job:
        job.scheduler()
        job.worker(0, "steady.py", str(tmp_path / "stop"), BYTEPS_LOCAL_RANK="0")
        assert all(job.wait().values())
        assert all("missing rank 1" in job.output(name) for name in job.processes), job.report("not named")


def test_a_local_size_that_does_not_divide_the_workers_is_refused() -> None:
    result = launch("steady.py", os.devnull, workers=4, servers=0, local_size=3)
    assert result.code == 2
    assert "--local-size 3 with --workers 4: use a number that divides the workers" in result.output
