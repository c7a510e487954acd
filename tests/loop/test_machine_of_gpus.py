"""Jobs of machines with several GPUs, pretended: from the user's call to the services and back."""

import subprocess
import sys

import pytest
from jobs import PATIENCE_SECONDS, PROGRAMS, plain_environment

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("byteps.local_worker", reason="the workers of a machine are not summed together here")


def job(workers: int, servers: int, local_size: int, *arguments: str, **environment: str) -> str:
    numbers = ("--workers", str(workers), "--servers", str(servers), "--local-size", str(local_size))
    program = (sys.executable, str(PROGRAMS / "pretended_gpus.py"), *arguments)
    done = subprocess.run(
        [sys.executable, "-m", "byteps", "launch", *numbers, "--", *program],
        env=plain_environment(environment),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (done.returncode == 0) == (not arguments), done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("workers", "servers", "local_size", "environment"),
    [
        (4, 1, 2, {}),
        (4, 0, 4, {"BYTEPS_PCIE_SWITCH_SIZE": "2"}),
    ],
    ids=["two machines by NCCL alone", "one machine by switches"],
)
def test_gradients_on_gpus_are_summed_over_all_workers(
    workers: int, servers: int, local_size: int, environment: dict[str, str]
) -> None:
    assert job(workers, servers, local_size, **environment).count("right") == workers


def test_workers_that_disagree_about_a_tensor_on_gpus_all_say_so() -> None:
    said = job(2, 0, 2, "mismatch")
    assert "right" not in said
    assert said.count("MismatchError: tensor 'odd'") >= 2
