"""`byteps launch`: its own end, however it comes, is the end of everything that it started."""

import os
import signal
import subprocess
import sys
import time

import pytest
from jobs import (
    MARKER,
    PATIENCE_SECONDS,
    PROGRAMS,
    launch,
    launch_command,
    marked_processes,
    plain_environment,
    wait_until,
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_is_alive_five_seconds_after_the_launcher(tmp_path, number):
    command = launch_command(3, 1, [sys.executable, str(PROGRAMS / "family.py"), "sleep"])
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command, env=plain_environment({}), stdout=log, stderr=log, start_new_session=True)
    wait_until(lambda: (tmp_path / "log").read_text().count("family is up") == 3, "the job to run")
    marker = os.environ[MARKER]
    grandchildren = [line for line in marked_processes(marker).values() if line == "sleep 1000"]
    assert len(grandchildren) == 3
    process.send_signal(number)
    ended = time.monotonic()
    code = process.wait(PATIENCE_SECONDS)
    assert code == (-number if number == signal.SIGKILL else 130)
    wait_until(lambda: not marked_processes(marker), "all processes to be gone", 5 - (time.monotonic() - ended))


def test_a_worker_that_raises_ends_the_job_at_once_and_its_traceback_comes_last():
    result = launch("family.py", "raise", workers=3, servers=1)
    assert result.code == 1
    assert result.seconds < 30  # the others sleep for minutes
    head, _, tail = result.output.rpartition("byteps launch: worker 2 exited with code 1, which ended the job.")
    assert head, result.output
    assert "Traceback (most recent call last)" in tail
    assert "ZeroDivisionError: rank 2 had enough" in tail
    assert "[server 0] byteps server: worker 2 ended with ZeroDivisionError: rank 2 had enough" in head


def test_an_exit_code_is_handed_on():
    command = launch_command(2, 0, ["sh", "-c", "exit $((7 * DMLC_WORKER_ID))"])
    result = subprocess.run(
        command, env=plain_environment({}), capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert result.returncode == 7
    assert "worker 1 exited with code 7, which ended the job" in result.stdout


def test_children_of_a_successful_job_are_ended_too():
    result = launch("family.py", "succeed", workers=2, servers=1)
    assert result.code == 0, result.output


def test_a_program_that_does_not_exist_is_named():
    command = launch_command(2, 0, ["no-such-program"])
    result = subprocess.run(
        command, env=plain_environment({}), capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert result.returncode == 127
    assert "cannot start 'no-such-program': No such file or directory" in result.stderr


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--workers", "2"], "no program given"),
        (["--workers", "-2", "--", "true"], "use 1 or more workers"),
        (["--", "true"], "say --workers N for a local job, or set DMLC_ROLE"),
    ],
)
def test_misuse_is_one_line_that_says_what_to_do(arguments, text):
    command = [sys.executable, "-m", "byteps", "launch", *arguments]
    result = subprocess.run(
        command, env=plain_environment({}), capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert result.returncode == 2
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_a_closed_output_does_not_hang_the_job():
    command = launch_command(2, 1, [sys.executable, str(PROGRAMS / "tiny.py")])
    with subprocess.Popen(
        command, env=plain_environment({}), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE_SECONDS) is not None


def test_variables_of_the_launcher_do_not_leak_into_a_local_job():
    result = launch(
        "tiny.py", workers=2, servers=1, DMLC_ROLE="server", DMLC_PS_ROOT_PORT="1", DMLC_PS_ROOT_URI="203.0.113.7"
    )
    assert result.code == 0, result.output
