"""`byteps bench` on a local job."""

import os
import subprocess
import sys

SMALL = ("--min", "4KiB", "--max", "64KiB", "--factor", "4", "--iterations", "2")


def _byteps(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS_", "DMLC_"))}
    command = [sys.executable, "-m", "byteps", *words]
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True, timeout=60)


def test_a_job_prints_one_table_without_wrong_elements() -> None:
    launch = ("launch", "--workers", "2", "--servers", "1", "--")
    done = _byteps(*launch, sys.executable, "-m", "byteps", "bench", *SMALL, BYTEPS_NIC_RATE="10Gbit")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("[worker 0] ")]
    rows = [words for words in lines if words[2:] and words[2].isdigit()]
    assert [int(words[2]) for words in rows] == [4096, 16384, 65536]
    assert {words[-1] for words in rows} == {"0"}
    assert "wrong elements: 0 OK" in done.stdout
    assert "[worker 1]" not in done.stdout


def test_outside_a_job_it_starts_one() -> None:
    done = _byteps("bench", *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 worker and 1 server" in done.stdout
    assert "wrong elements: 0 OK" in done.stdout


def test_a_size_that_is_none_is_one_line() -> None:
    done = _byteps("bench", "--max", "huge")
    assert done.returncode == 2
    assert "huge" in done.stderr
    assert "Traceback" not in done.stderr
