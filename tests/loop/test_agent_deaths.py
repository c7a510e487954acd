"""Whatever ends an agent or its conductor, nothing that ran on the host is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest
from fleets import PYTHON, ROOT, agents, fleet
from jobs import MARKER, PATIENCE_SECONDS, marked_processes, wait_until

from scripts.descent import MARK
from scripts.fleet import Fleet, HostLost
from scripts.leftovers import LabError

SLEEPER = [PYTHON, "-c", "import time; time.sleep(600)"]
# A child, and two that their parent has left, in sessions of their own; one of them has lost the mark.
FAMILY = f"""
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleep)
if os.fork() == 0:
    subprocess.Popen(sleep, start_new_session=True)
    kept = {{name: value for name, value in os.environ.items() if name != {MARK!r}}}
    if sys.argv[1] == "True":
        subprocess.Popen(sleep, env=kept, start_new_session=True)
    os._exit(0)
os.wait()
print("born", flush=True)
time.sleep(600)
"""


def start_family(one: Fleet, host: str, *, unmarked: bool = True) -> None:
    process = one.popen(host, [PYTHON, "-c", FAMILY, str(unmarked)], stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    with process.stdout, process.stdin:
        assert process.stdout.readline() == b"born\n"


def sleepers() -> dict[int, str]:
    return {pid: line for pid, line in marked_processes(os.environ[MARKER]).items() if "time.sleep(600)" in line}


def helper_of(pid: int) -> int:
    """The agent's second process, which talks."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.mark.parametrize("victim", ["guardian", "helper", "group"])
def test_an_agent_that_is_killed_takes_everything_with_it_and_the_fleet_names_it(tmp_path: Path, victim: str) -> None:
    with fleet(tmp_path, "gpu0", "gpu1") as (one, made):
        start_family(one, "gpu0", unmarked=victim == "helper")  # the heir of orphans is the guardian
        kept = one.popen("gpu1", SLEEPER)
        lost = one.popen("gpu0", SLEEPER, stdout=PIPE)
        wait_until(lambda: len(sleepers()) == (6 if victim == "helper" else 5), "all processes")
        agent = made.processes["gpu0"].pid
        if victim == "group":
            os.killpg(agent, signal.SIGKILL)
        else:
            os.kill(agent if victim == "guardian" else helper_of(agent), signal.SIGKILL)
        assert lost.wait(timeout=10) in (-signal.SIGKILL, -signal.SIGTERM)  # the helper still ends it in order
        assert lost.stdout is not None
        with lost.stdout:
            assert lost.stdout.read() == b""
        wait_until(lambda: list(sleepers()) == [kept.pid], "the end of everything on gpu0", 8.0)
        wait_until(lambda: bool(one.lost), "the news that gpu0 is lost")
        assert one.lost == {"gpu0": "connection closed"}
        with pytest.raises(HostLost, match="lost host gpu0: connection closed"):
            one.popen("gpu0", SLEEPER)
        assert one.names == ("gpu1",)
        assert one.popen("gpu1", [PYTHON, "-c", "pass"]).wait(timeout=PATIENCE_SECONDS) == 0
        assert list(one.all_counters()) == ["gpu1"]
        with pytest.raises(LabError, match="between 2 hosts, here is gpu1; lost host gpu0"):
            one.calibrate(0.1)
        assert one.end_orphans() == 1


def test_an_agent_that_ended_does_not_come_back_into_the_same_run(tmp_path: Path) -> None:
    with fleet(tmp_path, "gpu0", "gpu1") as (one, made):
        made.processes["gpu0"].send_signal(signal.SIGTERM)
        assert made.wait("gpu0") == 0
        wait_until(lambda: "gpu0" in one.lost, "the news that gpu0 is lost")
        made.start("gpu0", key="again")
        assert made.wait("again") == 1
        assert "host gpu0 was lost before (connection closed); start the run again" in made.log("again")


def test_signals_end_an_agent_and_all_that_it_started(tmp_path: Path) -> None:
    with fleet(tmp_path, "a", "b") as (one, made):
        for name, number in (("a", signal.SIGTERM), ("b", signal.SIGINT)):
            start_family(one, name)
            assert (tmp_path / f"{name}.pid").read_text() == f"{made.processes[name].pid}\n"
            made.processes[name].send_signal(number)
            assert made.wait(name) == 0
            assert not (tmp_path / f"{name}.pid").exists()
            assert sleepers() == {}


def test_the_end_of_a_fleet_ends_everything_before_it_returns(tmp_path: Path) -> None:
    with fleet(tmp_path, "a", "b") as (one, _):
        start_family(one, "a")
        start_family(one, "b")
        one.__exit__(None, None, None)
        assert sleepers() == {}
        with pytest.raises(LabError, match="not up"):
            one.popen("a", SLEEPER)


CONDUCTOR = """
import sys, time
from fleets import Agents, up
from test_agent_deaths import start_family
made = Agents(None, port=int(sys.argv[1]))
with up(made, "a", "b") as one:
    start_family(one, "a")
    start_family(one, "b")
    print("up", flush=True)
    time.sleep(600)
"""


def test_a_conductor_that_is_killed_takes_all_agents_with_it(tmp_path: Path) -> None:
    with agents(tmp_path) as made:
        made.start("a")
        made.start("b")
        command = [PYTHON, "-c", CONDUCTOR, str(made.port)]
        path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
        environment = {**os.environ, "PYTHONPATH": path}
        with subprocess.Popen(command, env=environment, stdout=PIPE) as conductor:
            assert conductor.stdout is not None
            assert conductor.stdout.readline() == b"up\n"
            wait_until(lambda: len(sleepers()) == 9, "all processes")  # the conductor's command line is one
            conductor.kill()
        started = time.monotonic()
        assert {made.wait(name, 5.0) for name in ("a", "b")} == {1}
        assert time.monotonic() - started < 5.0
        assert sleepers() == {}
        assert "lost the conductor: connection closed" in made.log("a")


def test_a_frozen_host_is_lost_after_its_silence_and_ends_its_processes_when_it_wakes(tmp_path: Path) -> None:
    with fleet(tmp_path, "a", "b", silence_seconds=2.0) as (one, made):
        process = one.popen("a", SLEEPER)
        helper = helper_of(made.processes["a"].pid)
        os.kill(helper, signal.SIGSTOP)
        try:
            assert process.wait(timeout=10) == -9
            assert one.lost == {"a": "no sign of life for 2 s"}
            assert one.popen("b", [PYTHON, "-c", "pass"]).wait(timeout=PATIENCE_SECONDS) == 0
        finally:
            os.kill(helper, signal.SIGCONT)
        assert made.wait("a", 10.0) == 1
        assert sleepers() == {}


def test_an_agent_without_a_conductor_gives_up_and_says_for_whom_it_waited(tmp_path: Path) -> None:
    with agents(tmp_path) as made:
        made.start("a", seconds=6.0)
        assert made.wait("a") == 1
        assert f"a: waiting for the conductor at 127.0.0.1:{made.port}, 5 s of 6 s" in made.log("a")
        assert "cannot reach the conductor" in made.log("a").splitlines()[-1]


def test_a_signal_ends_an_agent_that_waits_for_its_conductor(tmp_path: Path) -> None:
    with agents(tmp_path) as made:
        made.start("a")
        wait_until((tmp_path / "a.pid").exists, "the agent's pid file")
        made.processes["a"].send_signal(signal.SIGTERM)
        assert made.wait("a", 10.0) != 0
        wait_until(lambda: not (tmp_path / "a.pid").exists(), "the end of the pid file")


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"\n")
    for arguments, reason in (
        (["--conductor", "here", "--secret-file", str(empty)], "'here' is not HOST:PORT"),
        (["--conductor", "127.0.0.1:1", "--secret-file", str(empty)], "is empty"),
        (["--conductor", "127.0.0.1:1", "--secret-file", str(tmp_path / "none")], "No such file"),
    ):
        command = [sys.executable, "-m", "scripts.agent", "--name", "a", *arguments]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 2
        assert reason in result.stderr
        assert len(result.stderr.splitlines()) == 1
