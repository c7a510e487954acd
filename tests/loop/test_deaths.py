"""Deaths and freezes in mid-push: everybody else names the same peer and ends, non-zero, within seconds."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import MARKER, PROGRAMS, Roles, errors, launch_command, marked_processes, plain_environment, wait_until

WITHIN_SECONDS = 10.0


def start(job: Roles, tmp_path: Path) -> None:
    job.everybody("steady.py", str(tmp_path / "stop"))
    for rank in range(job.workers):
        job.wait_for(f"worker {rank}", "pushing")


def check(job: Roles, lost: str, peer: str) -> None:
    """All but the lost process are over within seconds, and say that it was this peer."""
    others = [name for name in job.processes if name != lost]
    codes = job.wait(*others, seconds=WITHIN_SECONDS)
    assert all(codes.values()), codes
    said = {name: errors(job.output(name)) for name in others if name.startswith("worker")}
    assert len({text for texts in said.values() for text in texts}) == 1, said
    assert all(len(texts) == 2 and texts[0].startswith(f"PeerLostError: lost {peer}") for texts in said.values()), said
    for name in others:
        assert f"lost {peer}" in job.output(name), job.report(name)


@pytest.mark.parametrize(
    "victim, peer", [("worker 1", "worker 1:"), ("server 0", "server 0:"), ("scheduler", "the scheduler at 127.0.0.1:")]
)
def test_everybody_names_the_process_that_was_killed(tmp_path, victim, peer):
    with Roles(tmp_path, workers=3, servers=1) as job:
        start(job, tmp_path)
        job.kill(victim)
        check(job, victim, peer)


def test_everybody_names_the_summation_service_that_was_killed(tmp_path):
    with Roles(tmp_path, workers=3, servers=1) as job:
        start(job, tmp_path)
        os.kill(job.service_pid(1), signal.SIGKILL)
        check(job, "", "summation service of worker 1:")


def test_one_of_several_processes_of_a_server_is_named(tmp_path):
    with Roles(tmp_path, workers=2, servers=1, BYTEPS_SERVICE_PROCESSES="2") as job:
        start(job, tmp_path)
        processes = marked_processes(os.environ[MARKER])
        (pid,) = (pid for pid, line in processes.items() if "byteps.server --rank -1 --process 1" in line)
        os.kill(pid, signal.SIGKILL)
        check(job, "", "server 0 (process 2 of 2):")


@pytest.mark.parametrize("victim, peer", [("worker 1", "worker 1:"), ("scheduler", "the scheduler at 127.0.0.1:")])
def test_a_frozen_process_is_found_by_heartbeat(tmp_path, victim, peer):
    with Roles(tmp_path, workers=2, servers=1, BYTEPS_HEARTBEAT_TIMEOUT="3s") as job:
        start(job, tmp_path)
        job.kill(victim, signal.SIGSTOP)
        check(job, victim, peer)
        assert "not heard of for" in job.output("worker 0")


def test_leaving_while_others_still_push_ends_the_job(tmp_path):
    with Roles(tmp_path, workers=3, servers=1) as job:
        job.everybody("steady.py", str(tmp_path / "stop"), "leave-early")
        codes = job.wait(seconds=40)
        assert codes["worker 1"] == 0
        assert all(code for name, code in codes.items() if name != "worker 1"), codes
        said = {text for rank in (0, 2) for text in errors(job.output(f"worker {rank}"))}
        assert len(said) == 1
        assert said.pop().startswith("StallError: rank 1 left (shutdown) while tensor 'steady' needs")


def test_a_killed_worker_of_a_local_job_ends_it(tmp_path):
    command = launch_command(3, 1, [sys.executable, str(PROGRAMS / "steady.py"), str(tmp_path / "stop")])
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command, env=plain_environment({}), stdout=log, stderr=log)
    wait_until(lambda: (tmp_path / "log").read_text().count("pushing") == 3, "all workers to push")
    programs = [
        pid for pid, line in marked_processes(os.environ[MARKER]).items() if line.endswith(f" {tmp_path / 'stop'}")
    ]
    (victim,) = (pid for pid in programs if b"DMLC_WORKER_ID=1" in Path(f"/proc/{pid}/environ").read_bytes())
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    assert process.wait(WITHIN_SECONDS) == 128 + signal.SIGKILL
    assert time.monotonic() - killed < WITHIN_SECONDS
    output = (tmp_path / "log").read_text()
    assert "worker 1 was killed by SIGKILL, which ended the job" in output
    assert "[worker 0] error PeerLostError: lost worker 1: " in output
