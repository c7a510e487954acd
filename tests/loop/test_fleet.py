"""Three agents on loopback: a fleet's processes behave as this machine's own, and strangers stay outside."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

import pytest
from fleets import PYTHON, ROOT, SECRET, Agents, Host, Site, agents, fleet, up
from jobs import PATIENCE_SECONDS, wait_until

from baselines import contenders
from baselines.launch import Launch, Machine
from experiments.crew import Crew
from scripts.fleet import Fleet
from scripts.leftovers import LabError
from scripts.stage import Stage

SLEEPER = [PYTHON, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, "a", "b", "c") as (made, _):
        yield made


def test_it_is_a_stage(one: Fleet) -> None:
    stage: Stage = one
    assert stage.provenance == "measured"
    assert stage.address("a") == "127.0.0.1"
    assert stage.interface("a") == "lo"
    facts = stage.facts()
    assert facts["cores"] == str(os.cpu_count())
    assert all("(" not in facts[key] for key in ("cores", "kernel", "python"))  # all hosts are this one
    with pytest.raises(LabError, match="no host 'd' in this site; it has a, b, c"):
        stage.popen("d", SLEEPER)


def test_megabytes_go_in_and_out(one: Fleet) -> None:
    echo = "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)"
    data = os.urandom(3_000_000)
    process = one.popen("b", [PYTHON, "-c", echo], stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert process.communicate(data, timeout=PATIENCE_SECONDS) == (data, b"")
    assert process.returncode == 0


def test_codes_and_signals_are_those_of_the_process(one: Fleet) -> None:
    assert one.popen("a", [PYTHON, "-c", "raise SystemExit(7)"]).wait(PATIENCE_SECONDS) == 7
    killed, ended = one.popen("b", SLEEPER), one.popen("c", SLEEPER)
    assert killed.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        killed.wait(0.05)
    killed.kill()
    ended.end(signal.SIGTERM)
    assert killed.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    assert ended.wait(PATIENCE_SECONDS) == -signal.SIGTERM
    killed.kill()
    ended.end(signal.SIGKILL)
    assert one.pids() == []


def test_the_end_of_a_process_is_signalled_to_its_whole_group(one: Fleet) -> None:
    text = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); p.wait()"
    process = one.popen("a", [PYTHON, "-c", text, *SLEEPER], stdout=PIPE)
    assert process.stdout is not None
    with process.stdout:
        child = int(process.stdout.readline())
        assert sorted(one.pids()) == sorted([child, process.pid])
        process.end(signal.SIGKILL)
        assert process.wait(PATIENCE_SECONDS) == -9
        assert process.stdout.read() == b""  # the child held it, too
    wait_until(lambda: one.pids() == [], "the end of the child")


def test_what_a_process_leaves_running_is_ended_as_an_orphan(one: Fleet) -> None:
    text = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
    for host in ("a", "b"):
        assert one.popen(host, [PYTHON, "-c", text, *SLEEPER]).wait(PATIENCE_SECONDS) == 0
    assert len(one.pids()) == 2
    assert one.end_orphans() == 2
    assert one.end_orphans() == 0


def test_a_programme_that_is_not_there_is_named_with_its_host(one: Fleet) -> None:
    with pytest.raises(LabError, match=r"b: cannot start /no/such: .*No such file"):
        one.popen("b", ["/no/such"], stdin=PIPE, stdout=PIPE)
    with pytest.raises(LabError, match=r"b: cannot start .*No such file"):
        one.popen("b", SLEEPER, cwd="/no/such")


def test_output_arrives_in_a_file_here_before_the_news_of_the_end(one: Fleet, tmp_path: Path) -> None:
    text = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit('last words')"
    with (tmp_path / "log").open("wb") as log:
        process = one.popen("a", [PYTHON, "-c", text], stdout=log, stderr=log)
    assert process.wait(PATIENCE_SECONDS) == 1
    assert (tmp_path / "log").read_text() == "out\nerr\nlast words\n"
    both = one.popen("a", [PYTHON, "-c", text], stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
    assert both.communicate(timeout=PATIENCE_SECONDS)[0] == b"out\nerr\nlast words\n"


def test_a_reader_that_is_gone_breaks_the_pipe_on_both_sides(one: Fleet) -> None:
    chatter = one.popen("a", [PYTHON, "-c", "while True: print('x' * 1000)"], stdout=PIPE, stderr=DEVNULL)
    assert chatter.stdout is not None
    chatter.stdout.close()
    assert chatter.wait(PATIENCE_SECONDS) not in (0, -9)
    deaf = one.popen("a", [PYTHON, "-c", "import os, time; os.close(0); time.sleep(600)"], stdin=PIPE)
    assert deaf.stdin is not None
    with pytest.raises(BrokenPipeError):
        deaf.stdin.write(bytes(64 << 20))
    with contextlib.suppress(BrokenPipeError):
        deaf.stdin.close()
    deaf.kill()


def test_a_worker_that_reads_nothing_or_is_not_read_stops_nobody_else(one: Fleet) -> None:
    deaf = one.popen("a", SLEEPER, stdin=PIPE)
    unheard = one.popen("a", [PYTHON, "-c", "while True: print('x' * 1000)"], stdout=PIPE)
    assert deaf.stdin is not None
    assert unheard.stdout is not None
    os.set_blocking(deaf.stdin.fileno(), False)
    written = 0
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            written += os.write(deaf.stdin.fileno(), bytes(65536))
    assert written < 1 << 20  # the writer notices, as with a pipe
    for host in ("a", "b"):
        assert one.popen(host, [PYTHON, "-c", "print(1)"], stdout=PIPE).communicate(timeout=20) == (b"1\n", None)
    for process in (deaf, unheard):
        process.kill()
        assert process.wait(PATIENCE_SECONDS) == -9
    deaf.stdin.close()
    unheard.stdout.close()


def test_environment_and_paths_are_the_hosts(one: Fleet, tmp_path: Path) -> None:
    show = "import os; print(os.environ['WHERE'], os.getcwd(), 'HOME' in os.environ)"
    process = one.popen("a", [PYTHON, "-c", show], env={"WHERE": f"{ROOT}/x"}, cwd=tmp_path, stdout=PIPE)
    assert process.communicate(timeout=PATIENCE_SECONDS)[0].decode() == f"{ROOT}/x {tmp_path} False\n"


def test_counters_time_watch_calibration_and_latency(one: Fleet) -> None:
    spin = one.popen("b", [PYTHON, "-c", "while True: pass"])
    before = one.all_counters()
    with one.watch() as watch:
        wait_until(lambda: one.cpu_seconds()["b"] > 0.2, "processor time of b")
    spin.kill()
    assert watch.fidelity.wall_seconds > 0.2
    calibration = one.calibrate(0.3)
    assert {flow.src for flow in calibration.flows} == {"a", "b", "c"}
    assert all(flow.bytes_per_s > 1e6 for flow in calibration.flows)
    assert 0 < one.one_way_seconds() < 0.1
    after = one.all_counters()["a"] - before["a"]
    assert after.tx_bytes > 1e6
    assert after.tx_wire_bytes == 0
    assert one.pids() == []


def test_many_threads_may_start_processes_at_once(one: Fleet) -> None:
    codes: list[int] = []

    def start(host: str) -> None:
        codes.append(one.popen(host, [PYTHON, "-c", "pass"]).wait(PATIENCE_SECONDS))

    threads = [threading.Thread(target=start, args=(host,)) for host in "abcabc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert codes == [0] * 6


def test_a_crew_runs_byteps_on_a_fleet(one: Fleet, tmp_path: Path) -> None:
    def machine(host: str) -> Machine:
        return Machine(host=host, address=one.address(host), interface=one.interface(host))

    launch = Launch(
        gpu_machines=(machine("a"), machine("b")),
        cpu_machines=(),
        scheduler=machine("c"),
        nic_bytes_per_s=1e9,
        nbytes=1 << 16,
        settings={},
        secret="00",
        port=24_000 + os.getpid() % 1000,
    )
    plan = contenders.get("byteps").plan
    assert plan is not None
    stage: Stage = one
    with Crew(stage, plan(launch), tmp_path / "logs") as crew:
        crew.expect("started", seconds=PATIENCE_SECONDS)
        crew.say("stop")
        crew.expect("stopped", seconds=PATIENCE_SECONDS)
    assert crew.killed == []
    assert one.pids() == []


# the door


def test_a_missing_agent_is_named_at_the_deadline(tmp_path: Path) -> None:
    lines: list[str] = []
    with agents(tmp_path) as made:
        made.start("a")
        with pytest.raises(LabError, match=r"no agent of b within 6 s; look at run/agent\.log"):
            up(made, "a", "b", start_seconds=6.0, lines=lines).__enter__()
        assert lines == ["fleet: 1 of 2 agents are here, waiting for b, 5 s of 6 s"]
        assert made.wait("a") == 0


def test_strangers_unknown_names_and_doubles_are_refused_and_cost_nothing(tmp_path: Path) -> None:
    lines: list[str] = []
    with agents(tmp_path) as made:
        one = up(made, "a", "b", lines=lines)
        waiting = threading.Thread(target=one.__enter__)
        waiting.start()
        made.start("a")
        wait_until(lambda: one.names == ("a",), "the agent a")
        stranger = connect(made)
        made.start("a", key="double")
        made.start("x")
        made.start("b", key="liar", secret=b"another")
        assert {made.wait(key) for key in ("double", "x", "liar")} == {1}
        made.start("b")
        waiting.join(PATIENCE_SECONDS)
        assert one.names == ("a", "b")
        stranger.close()
        one.__exit__(None, None, None)
        assert made.wait("a") == made.wait("b") == 0
    assert "an agent of a is here already" in made.log("double")
    assert "no host 'x' here; the site has a, b" in made.log("x")
    assert "another job secret" in made.log("liar")
    assert any("another job secret" in line for line in lines)


def connect(made: Agents) -> socket.socket:
    """Somebody who says nothing."""
    return socket.create_connection(("127.0.0.1", made.port), timeout=5.0)


def test_a_nic_that_a_host_does_not_have_is_named_with_those_that_it_has(tmp_path: Path) -> None:
    hosts = (Host(name="a", interfaces=("eth77",)),)
    with agents(tmp_path) as made:
        made.start("a")
        one = Fleet(Site(hosts=hosts), listen=("127.0.0.1", made.port), secret=SECRET, root=ROOT, tell=lambda _: None)
        with pytest.raises(LabError, match=r"lost host a: no NIC here is 'eth77' .*lo \(127.0.0.1\)"):
            one.__enter__()


def test_two_hosts_of_one_name_are_refused(tmp_path: Path) -> None:
    with agents(tmp_path) as made, pytest.raises(ValueError, match="must differ: a, a"):
        up(made, "a", "a")
