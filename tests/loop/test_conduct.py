"""Experiments on "hosts" that are agents on loopback: records, resuming, and a host that is lost."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleets import ROOT, SECRET, Agents, agents
from jobs import wait_until

from byteps.hosts import Site, parse_site
from experiments import analysis, cluster, conduct, provenance, record
from experiments.agenda import RunError
from experiments.record import Record

EXPERIMENT = """
name = "mine"
title = "t"
provenance = "emulated"
warmups = 1
iterations = {iterations}
[[contender]]
name = "byteps"
[[contender]]
name = "gloo-ring"
[tier.smoke]
blocks = 1
n = 8
ks = {ks}
nbytes = ["{nbytes}"]
nic = "200Mbit"
"""
HOST = '[[machine]]\nname = "{name}"\nrole = "{role}"\nnic = "1Gbit"\naddress = "{address}"\ninterface = "lo"\n'
NAMES = ("node-a", "node-b", "box")


@pytest.fixture(autouse=True)
def _code(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit elsewhere in the repository must not void the records of a test that runs meanwhile."""
    monkeypatch.setattr(provenance, "code_of", lambda _: "code")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as one:
        yield one


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Two GPU machines and a CPU machine, which share this machine's loopback and the repository."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "suite").symlink_to(ROOT)
    roles = zip(NAMES, ("gpu", "gpu", "cpu"), ("127.0.0.1", "127.0.0.2", "127.0.0.3"), strict=True)
    text = f'[install]\nworkdir = "{tmp_path}/work"\n'
    text += "".join(HOST.format(name=name, role=role, address=address) for name, role, address in roles)
    return parse_site(text, "test.toml")


def experiment(folder: Path, *, ks: str = "[1]", nbytes: str = "1MiB", iterations: int = 1) -> str:
    path = folder / "mine.toml"
    path.write_text(EXPERIMENT.format(ks=ks, nbytes=nbytes, iterations=iterations))
    return str(path)


def run(name: str, site: Site, made: Agents, results: Path, *, go_on: bool = False) -> int:
    """With an agent on every host, all of which are over afterwards."""
    for host in NAMES:
        made.start(host)
    listen = ("127.0.0.1", made.port)
    try:
        return conduct.conduct([name], "smoke", site, listen=listen, secret=SECRET, results=results, go_on=go_on)
    finally:
        for host in NAMES:
            made.wait(host, 20.0)


def records(results: Path) -> list[Record]:
    found, bad = record.read(results / "raw" / "mine.cluster.jsonl")
    assert bad == []
    return found


@pytest.mark.timeout(300)
def test_a_cluster_gives_verified_records_and_a_second_run_does_nothing(tmp_path, site, made, capsys):
    name = experiment(tmp_path)
    assert run(name, site, made, tmp_path) == 0
    found = records(tmp_path)
    assert {(one.case.contender, one.case.n, one.case.k) for one in found} == {("byteps", 2, 1), ("gloo-ring", 2, 0)}
    for one in found:
        assert one.verified, one.error
        assert one.provenance == "measured"
        assert one.case.site == "measured: gpu 2x1000Mbit; cpu 1x1000Mbit"
        assert one.facts["hosts"] == "gpu0 = node-a, gpu1 = node-b, cpu0 = box"
        assert set(one.nics) == {"gpu0", "gpu1", "cpu0"}
    assert "left out: n = 8; the cluster has 2 GPU machines" in capsys.readouterr().out
    assert run(name, site, made, tmp_path) == 0
    assert "0 of 2 cases to run" in capsys.readouterr().out
    assert records(tmp_path) == found
    loaded = analysis.load(tmp_path, "mine", sources=("cluster",))
    assert len(loaded.records) == 2
    assert analysis.load(tmp_path, "mine").records == []  # the lab's figures do not see them


@pytest.mark.timeout(300)
def test_a_lost_host_ends_the_run_with_a_table_and_the_same_command_resumes(tmp_path, site, made, capsys):
    name = experiment(tmp_path, ks="[1, 0]", nbytes="16MiB", iterations=50)
    killer = kill_when_it_runs(made, "box", tmp_path / "raw" / "logs")
    with pytest.raises(conduct.LostHostError) as caught:
        run(name, site, made, tmp_path)
    killer.join(10.0)
    first, *table = str(caught.value).splitlines()
    assert first.startswith("lost host box: ")
    assert [line.split(":")[0].split() for line in table] == [
        ["node-a", "ok"],
        ["node-b", "ok"],
        ["box", "lost"],
        ["the", "same", "command", "resumes"],
    ]
    (failed,) = records(tmp_path)
    assert failed.error.startswith("lost host box: ")
    assert failed.seconds == []

    killer = kill_when_it_runs(made, "box", tmp_path / "raw" / "logs")
    assert run(name, site, made, tmp_path, go_on=True) == 1  # k = 1 has no usable record
    killer.join(10.0)
    said = capsys.readouterr().out
    assert "going on without it" in said
    assert "box     lost: " in said
    verified = [one for one in records(tmp_path) if one.verified]
    assert {(one.case.contender, one.case.k) for one in verified} == {("byteps", 0), ("gloo-ring", 0)}

    assert run(name, site, made, tmp_path) == 0
    again = records(tmp_path)[-1]
    assert (again.verified, again.case.contender, again.case.k) == (True, "byteps", 1)


def kill_when_it_runs(made: Agents, host: str, logs: Path) -> threading.Thread:
    """SIGKILL for an agent as soon as a launch with a server has workers that run."""
    before = set(logs.glob("*")) if logs.exists() else set()

    def running() -> bool:
        return any(folder not in before and (folder / "server-0.log").exists() for folder in logs.glob("*"))

    def kill() -> None:
        wait_until(running, "a launch with a server")
        threading.Event().wait(3.0)  # into its iterations
        os.kill(made.processes[host].pid, signal.SIGKILL)

    thread = threading.Thread(target=kill, name="killer", daemon=True)
    thread.start()
    return thread


def test_an_experiment_that_is_not_about_clusters_is_refused_before_anybody_waits(site, tmp_path):
    with pytest.raises(RunError, match="not on a cluster: fig9b needs no cluster"):
        conduct.conduct(["fig9b"], "smoke", site, listen=("127.0.0.1", 1), secret=SECRET, results=tmp_path)
    assert "fig9b" not in cluster.experiments_of("reproduce")
