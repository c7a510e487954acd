"""An installation on a host ends with whoever waits for it, and is alone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import host_install
from scripts.host_run import start_ticks

PATIENCE_SECONDS = 15.0


def begun(workdir: Path, script: str) -> "subprocess.Popen[str]":
    (workdir / "suite").mkdir(exist_ok=True)
    argv = [sys.executable, "-I", "-S", host_install.__file__, str(workdir), script]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_output_and_exit_code_are_those_of_the_script(tmp_path):
    with begun(tmp_path, "pwd; exit 5") as process:
        assert process.stdout is not None
        assert process.stdout.read() == f"{tmp_path}/suite\n"
        assert process.wait(PATIENCE_SECONDS) == 5
    with begun(tmp_path, "kill -9 $$") as process:
        assert process.wait(PATIENCE_SECONDS) == 137


def disconnect(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.close()


def terminate(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("interrupt", [disconnect, terminate])
def test_it_ends_with_its_listener_and_takes_all_below_it_along(
    tmp_path: Path, interrupt: Callable[["subprocess.Popen[str]"], None]
) -> None:
    deaf = "import os, signal, time; signal.signal(15, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(60)"
    with begun(tmp_path, f"{sys.executable} -c '{deaf}' & wait") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        interrupt(process)
        assert process.wait(PATIENCE_SECONDS) == 143
    deadline = time.monotonic() + 5.0
    while start_ticks(pid) is not None:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError("what ignores SIGTERM is left after 5 s")
        time.sleep(0.02)


def test_a_second_one_is_refused_until_the_first_one_is_over(tmp_path):
    with begun(tmp_path, "echo here; sleep 60") as first:
        assert first.stdout is not None
        first.stdout.readline()
        with begun(tmp_path, "echo never") as second:
            assert second.wait(PATIENCE_SECONDS) == 1
            assert second.stdout is not None
            assert second.stderr is not None
            assert second.stdout.read() == ""
            assert second.stderr.read().startswith("something is being sent or installed here already")
        disconnect(first)
        assert first.wait(PATIENCE_SECONDS) == 143
    with begun(tmp_path, "true") as third:
        assert third.wait(PATIENCE_SECONDS) == 0
