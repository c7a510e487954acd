"""Hosts that are reached by ssh: isolated from each other, killed as a whole, gone afterwards."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.sshlab import WORKDIR, SshLab, why_no_sshlab

RATE = 25e6


@pytest.fixture(scope="module")
def hosts() -> Iterator[SshLab]:
    if reason := why_no_sshlab():
        pytest.skip(reason)
    with SshLab({"gpu0": RATE, "cpu0": RATE / 2}) as lab:
        yield lab


def test_hosts_share_neither_files_nor_processes_nor_shared_memory(hosts: SshLab) -> None:
    assert hosts.ssh("gpu0", f"echo mine > {WORKDIR}/file && touch /dev/shm/segment").returncode == 0
    assert hosts.ssh("cpu0", f"ls {WORKDIR} /dev/shm").stdout.split() == ["/dev/shm:", f"{WORKDIR}:"]
    assert len(hosts.ssh("cpu0", "ls -d /proc/[0-9]*").stdout.split()) < 10
    assert not (Path(WORKDIR) / "file").exists()


def test_a_killed_host_takes_its_processes_along_and_boots_again(hosts: SshLab) -> None:
    hosts.ssh("cpu0", "setsid nohup sleep 600 >/dev/null 2>&1 </dev/null &")
    before = hosts.lab.pids()
    hosts.kill_host("cpu0")
    assert hosts.ssh("cpu0", "true").returncode == 255
    assert len(hosts.lab.pids()) < len(before)
    assert not [pid for pid in hosts.lab.pids() if hosts.lab.host_of(pid) == "cpu0"]
    hosts.boot("cpu0")
    assert hosts.ssh("cpu0", f"test -d {WORKDIR}").returncode == 0


def test_a_changed_host_key_is_refused(hosts: SshLab) -> None:
    known = hosts.folder / "known_hosts"
    good = known.read_text()
    first, second = good.splitlines()
    known.write_text(f"{first.split()[0]} {' '.join(second.split()[1:])}\n")
    try:
        assert "verification failed" in hosts.ssh("gpu0", "true").stderr
    finally:
        known.write_text(good)


def test_the_command_runs_on_a_host_of_its_own_and_its_exit_code_counts() -> None:
    if reason := why_no_sshlab():
        pytest.skip(reason)
    command = [sys.executable, "-c", "import os, sys; print(open(os.environ['CLUSTER']).read()); sys.exit(7)"]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.sshlab", "--gpu", "1", "--cpu", "1", "--slow", "cpu0=50Mbit", "--", *command],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 7, done.stderr
    assert 'nic = "50Mbit"' in done.stdout
