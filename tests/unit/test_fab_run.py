"""Processes that are started detached: found again, ended, and never mistaken for others."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from byteps.hosts import Site, parse_site
from scripts import detached, fabfile, host_run
from scripts.detached import Order, State

PROGRAM = [sys.executable, "-I", "-S", host_run.__file__]
SITE = parse_site(
    '[[machine]]\nname = "gpu0"\nrole = "gpu"\nnic = "1Gbit"\naddress = "fd00::1"\n'
    '[[machine]]\nname = "cpu0"\nrole = "cpu"\nnic = "1Gbit"\naddress = "fd00::2"\n',
    "my.toml",
)


def host(*arguments: object, data: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)], input=data, capture_output=True, text=True, timeout=60, check=False
    )


def started(workdir: Path, code: str, name: str = "agent") -> subprocess.CompletedProcess[str]:
    order = {"argv": [sys.executable, "-c", code], "files": {"secret": "s3cr3t\n"}}
    return host("start", workdir, name, data=json.dumps(order))


def status(workdir: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(host("status", workdir).stdout)
    return found


def wait_for(what: str, true: object, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)


@pytest.fixture
def workdir(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "suite").mkdir()
    yield tmp_path
    host("stop", tmp_path)


def test_a_start_returns_at_once_and_the_process_goes_on(workdir):
    began = time.monotonic()
    pid = int(started(workdir, "import time; print('here', flush=True); time.sleep(60)").stdout)
    assert time.monotonic() < began + 2.0
    assert status(workdir) == {"conductor": "", "agent": f"runs (pid {pid})", "leftovers": []}
    assert os.getsid(pid) == pid
    wait_for("the log", lambda: (workdir / "run/agent.log").read_text() == "here\n")
    assert (workdir / "run/secret").read_text() == "s3cr3t\n"
    assert (workdir / "run/secret").stat().st_mode & 0o777 == 0o600
    assert (workdir / "run").stat().st_mode & 0o777 == 0o700
    assert json.loads(host("stop", workdir).stdout) == [f"agent (pid {pid})"]
    assert host_run.start_ticks(pid) is None
    assert not (workdir / "run/secret").exists()


def test_the_secret_is_in_no_command_and_no_environment(workdir):
    pid = int(started(workdir, "import time; time.sleep(60)").stdout)
    for file in ("cmdline", "environ"):
        assert b"s3cr3t" not in Path(f"/proc/{pid}/{file}").read_bytes()


def test_a_second_start_is_refused_while_the_first_one_runs(workdir):
    pid = int(started(workdir, "import time; time.sleep(60)").stdout)
    again = started(workdir, "pass")
    assert again.returncode == 1
    assert again.stderr.strip() == f"agent runs already (pid {pid}); do: `fab attach` to follow it, or `fab stop`"
    assert "runs already" in host("prepare", workdir, "127.0.0.1").stderr


def test_how_it_ended_is_kept_until_the_next_run_is_prepared(workdir):
    started(workdir, "raise SystemExit(3)")
    wait_for("its end", lambda: status(workdir)["agent"] == "ended with exit code 3")
    prepared = json.loads(host("prepare", workdir, "127.0.0.1").stdout)
    assert prepared["workdir"] == str(workdir)
    assert 0 < prepared["port"] < 65536
    assert status(workdir)["agent"] == ""


def test_a_reused_pid_is_not_ours(workdir):
    started(workdir, "pass")
    wait_for("its end", lambda: str(status(workdir)["agent"]).startswith("ended"))
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (workdir / "run/agent.pid").write_text(f"{stranger.pid} 12345\n")
        assert json.loads(host("stop", workdir).stdout) == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_what_a_killed_agent_left_is_found_and_ended(workdir):
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    pid = int(started(workdir, code).stdout)
    log = workdir / "run/agent.log"
    wait_for("its child", lambda: log.read_text().endswith("\n"))
    child = int(log.read_text())
    assert status(workdir)["leftovers"] == []  # it belongs to the agent
    os.kill(pid, signal.SIGKILL)
    wait_for("the agent's end", lambda: "ended" in str(status(workdir)["agent"]))
    assert [int(line.split()[0]) for line in status(workdir)["leftovers"]] == [child]  # type: ignore[attr-defined]
    ended = json.loads(host("stop", workdir).stdout)
    assert len(ended) == 1
    assert ended[0].startswith(f"leftover {child} ")
    assert host_run.start_ticks(child) is None


def test_the_log_is_followed_from_where_it_was_left_to_the_end(workdir):
    started(workdir, "print('one'); print('two'); raise SystemExit(4)", name="conductor")
    wait_for("its end", lambda: "ended" in str(status(workdir)["conductor"]))
    assert host("follow", workdir, "conductor", 0).stdout == "one\ntwo\n\x004"
    assert host("follow", workdir, "conductor", 4).stdout == "two\n\x004"
    assert "no agent was started here; do: `fab run`" in host("follow", workdir, "agent", 0).stderr


def test_following_ends_when_nobody_listens_any_more(workdir):
    started(workdir, "import time; print('one', flush=True); time.sleep(60)", name="conductor")
    wait_for("the log", lambda: (workdir / "run/conductor.log").read_text() == "one\n")
    assert host("follow", workdir, "conductor", 0).stdout == "one\n"  # its standard input is at its end


def test_what_cannot_start_says_so(workdir):
    order = json.dumps({"argv": [str(workdir / "suite/.venv/bin/python")], "files": {}})
    done = host("start", workdir, "agent", data=order)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("suite/.venv/bin/python; do: `fab provision`")


def test_commands_name_the_secrets_file_and_not_the_secret():
    order = Order(names=("fig12", "fig4"), tier="smoke", go_on=True)
    assert detached.conductor_argv(order, "/w", "[fd00::1]:5") == [
        *("/w/suite/.venv/bin/python", "-m", "experiments", "run", "fig12", "fig4", "--tier", "smoke"),
        *("--on", "cluster", "--cluster", "/w/run/cluster.toml", "--listen", "[fd00::1]:5"),
        *("--secret-file", "/w/run/secret", "--continue"),
    ]
    assert detached.agent_argv("cpu0", "/w", "[fd00::1]:5")[3:] == [
        *("--conductor", "[fd00::1]:5", "--name", "cpu0", "--secret-file", "/w/run/secret"),
    ]


def test_the_conductor_is_where_one_runs_else_where_one_ran():
    none = State(conductor="", agent="", leftovers=())
    ran, runs = replace(none, conductor="ended with exit code 0"), replace(none, conductor="runs (pid 1)")
    gpu0, cpu0 = SITE.hosts
    assert detached.conductor_of(SITE, {"gpu0": none}) is None
    assert detached.conductor_of(SITE, {"gpu0": ran, "cpu0": none}) is gpu0
    assert detached.conductor_of(SITE, {"gpu0": ran, "cpu0": runs}) is cpu0


class FakeSessions:
    """Hosts that do nothing; Ctrl-C comes while they are being started."""

    def __init__(self, site: Site, *, tell: object) -> None:
        self.good = [SimpleNamespace(host=host) for host in site.hosts]
        self.failures: dict[str, object] = {}
        self.did: list[str] = []

    def __enter__(self) -> "FakeSessions":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def each(self, what: str, work: object, *, seconds: float) -> dict[str, object]:
        if what == "starting":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        self.did.append(what)
        return {one.host.name: {"workdir": "/w", "port": 5} for one in self.good}

    def table(self, cells: object, heading: object = ()) -> str:
        return "the table"


TWO_GPUS = parse_site(
    '[[machine]]\nname = "gpu"\nrole = "gpu"\nnic = "1Gbit"\ncount = 2\naddress = ["fd00::1", "fd00::2"]\n', "my.toml"
)


def test_ctrl_c_while_a_run_is_being_started_stops_it_once_all_of_it_has(monkeypatch):
    made: list[FakeSessions] = []
    stopped = []

    def sessions(site: Site, *, tell: object) -> FakeSessions:
        made.append(FakeSessions(site, tell=tell))
        return made[-1]

    def stop(site: Site, *, tell: object) -> tuple[str, bool]:
        stopped.append(made[0].did[-1])
        return "what ended", True

    monkeypatch.setattr(detached, "Sessions", sessions)
    monkeypatch.setattr(detached, "suite", lambda tell: None)
    monkeypatch.setattr(detached, "stop", stop)
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        detached.start(TWO_GPUS, Order(names=("fig12",), tier="smoke"), tell=told.append)
    assert stopped == ["starting"]
    assert told == ["stopping on all hosts", "what ended"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_gpu_machine_is_too_few_before_anything_starts(monkeypatch):
    monkeypatch.setattr(detached, "Sessions", FakeSessions)
    monkeypatch.setattr(detached, "suite", lambda tell: None)
    with pytest.raises(detached.RunFailed, match="1 GPU machine: there is nothing to synchronise below 2"):
        detached.start(SITE, Order(names=("fig12",), tier="smoke"))


def test_every_task_that_is_interrupted_says_so_and_exits_with_130(monkeypatch, tmp_path):
    def interrupted(_site: Site) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "my.toml"
    file.write_text('[[machine]]\nname = "a"\nrole = "gpu"\nnic = "1Gbit"\naddress = "fd00::1"\n')
    monkeypatch.setattr(detached, "stop", interrupted)
    with pytest.raises(fabfile.Exit) as raised:
        fabfile.stop.body(None, cluster=str(file))  # type: ignore[attr-defined]
    assert (raised.value.code, raised.value.message) == (130, "interrupted")


@pytest.mark.parametrize(
    ("names", "tier", "site", "said"),
    [
        (("fig99",), "smoke", TWO_GPUS, "no experiment 'fig99'; there are "),
        (("all",), "huge", TWO_GPUS, "tier 'huge': use one of smoke"),
        (("fig12", "fig9b"), "smoke", TWO_GPUS, "not on a cluster: fig9b needs no cluster"),
        (("all",), "smoke", SITE, "the cluster has 1 machine of role gpu"),
    ],
)
def test_what_no_host_could_run_is_refused_before_any_is_asked(names, tier, site, said):
    with pytest.raises(fabfile.Exit) as raised:
        fabfile._order(site, names, tier, False)
    assert raised.value.code == 2
    assert raised.value.message.startswith(said)


def test_what_hosts_can_run_is_ordered():
    wanted = Order(names=("fig12", "../mine.toml"), tier="smoke", go_on=True)
    assert fabfile._order(TWO_GPUS, wanted.names, "smoke", True) == wanted
