"""The tasks on hosts that are reached by ssh: from nothing to records, and to nothing again."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import deploy, host_run
from scripts.sshlab import WORKDIR, SshLab, why_no_sshlab

RATE = 25e6
WHEELS_SECONDS = 90.0
GPU, CPU = ("gpu0", "gpu1"), ("cpu0", "cpu1")


class Lab(SshLab):
    """With `fab` on its control host.  `suite`: a copy of the sources, so that nobody changes them meanwhile."""

    results: Path
    suite: Path
    wheels: bool  # CPU machines have an environment of their own, made from wheels

    def fab(self, *words: str, seconds: float = 90.0) -> "subprocess.CompletedProcess[str]":
        with self.started(*words) as process:
            return self.ended(process, seconds)

    @contextlib.contextmanager
    def started(self, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
        keeps = ["--results", str(self.results)] if words[0] in ("provision", "fetch", "clean", "reproduce") else []
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "cwd": "/"}
        with self.popen(
            [sys.executable, "-m", "fabric", "-r", str(self.suite / "scripts"), *words, *keeps], **pipes
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def ended(self, process: "subprocess.Popen[bytes]", seconds: float) -> "subprocess.CompletedProcess[str]":
        output, _ = process.communicate(timeout=seconds)
        print(output.decode())
        return subprocess.CompletedProcess(process.args, process.returncode, output.decode(), "")


def rows(output: str) -> dict[str, list[str]]:
    """The table's cells by host, of the last table."""
    found = {}
    for line in output.splitlines():
        if re.match(r"(gpu|cpu)\d  ", line):
            name, *cells = re.split(r" {2,}", line)
            found[name] = cells
    return found


def make_wheels(suite: Path, folder: Path) -> bool:
    """Of all that CPU machines need; False where no package index can be reached."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--retries", "1"]
    try:
        argv = [*pip, "-w", str(folder), str(suite), "setuptools>=77"]
        done = subprocess.run(argv, capture_output=True, timeout=WHEELS_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if reason := why_no_sshlab():
        pytest.skip(reason)
    suite, wheels = tmp_path_factory.mktemp("suite"), tmp_path_factory.mktemp("wheels")
    for path in {*deploy.sources(), *deploy.not_sent()}:
        (suite / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(deploy.ROOT / path, suite / path)
    have_wheels = make_wheels(suite, wheels)
    shutil.rmtree(suite / "build", ignore_errors=True)
    there = {"environment": sys.prefix}
    made = {"python": os.path.realpath(sys.executable), "wheels": str(wheels)}
    install = {"": {"peers": []}, "gpu": there, "cpu": made if have_wheels else there}
    with Lab(dict.fromkeys(GPU, RATE) | {"cpu0": RATE, "cpu1": RATE / 2}, install=install) as hosts:
        hosts.results, hosts.suite, hosts.wheels = tmp_path_factory.mktemp("results"), suite, have_wheels
        yield hosts


@pytest.fixture(scope="module")
def provisioned(lab: Lab) -> Lab:
    assert lab.fab("provision", seconds=110.0).returncode == 0
    return lab


def test_preflight_finds_all_well_and_measures_the_slower_nic(lab: Lab) -> None:
    done = lab.fab("preflight")
    assert done.returncode == 0
    found = rows(done.stdout)
    assert [cells[0] for cells in found.values()] == ["ok"] * 4
    for name, expected in {"gpu0": 96, "gpu1": 191, "cpu0": 191, "cpu1": 96}.items():
        arrived, promised = map(int, re.findall(r"(\d+) of (\d+) Mbit/s", " ".join(found[name]))[0])
        assert promised == expected
        assert arrived > 0.9 * expected
        assert "3 of 3" in found[name]


def test_preflight_tells_a_host_that_is_down_from_one_with_another_key(lab: Lab) -> None:
    known = lab.folder / "known_hosts"
    good = known.read_text()
    keys = [line.split() for line in good.splitlines()]
    keys[1][1:] = keys[0][1:]  # gpu1 answers with a key of its own, known is gpu0's
    lab.kill_host("cpu1")
    try:
        known.write_text("".join(" ".join(words) + "\n" for words in keys))
        done = lab.fab("preflight")
    finally:
        known.write_text(good)
        lab.boot("cpu1")
    assert done.returncode == 1
    assert {name: cells[0] for name, cells in rows(done.stdout).items()} == {
        "gpu0": "ok",
        "gpu1": "unreachable",
        "cpu0": "ok",
        "cpu1": "unreachable",
    }
    assert "1 of 1" in rows(done.stdout)["gpu0"]
    assert re.search(r"gpu1 unreachable: the host key of \S+ port 22 is not the one in .*\n  do: ", done.stdout)
    assert re.search(r"cpu1 unreachable: \S+ port 22: Connection refused", done.stdout)


def test_an_unknown_host_is_refused_unless_new_ones_are_accepted_and_then_kept(lab: Lab) -> None:
    known, file = lab.folder / "known_hosts", lab.cluster_file
    good, text = known.read_text(), file.read_text()
    known.write_text("".join(good.splitlines(keepends=True)[1:]))
    try:
        refused = lab.fab("status")
        file.write_text(text.replace("[ssh]\n", '[ssh]\nhost_keys = "accept-new"\n'))
        accepted = lab.fab("status")
        assert sorted(known.read_text().splitlines()) == sorted(good.splitlines())
    finally:
        known.write_text(good)
        file.write_text(text)
    assert refused.returncode == 1
    assert re.search(r"gpu0 unreachable: the host key of .* is not in .*\n  do: ssh-keyscan", refused.stdout)
    assert accepted.returncode == 0


def test_a_wrong_user_key_and_a_missing_interpreter_are_named(lab: Lab) -> None:
    file = lab.cluster_file
    text = file.read_text()
    (lab.folder / "stranger").unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(lab.folder / "stranger")], check=True, timeout=20
    )
    try:
        file.write_text(text.replace('"\nrole = "gpu"', '"\nrole = "gpu"\nssh = { key = "stranger" }', 1))
        stranger = lab.fab("status")
        file.write_text(text.replace("[install]\n", '[install]\npython = "/no/python3"\n'))
        nothing = lab.fab("status")
    finally:
        file.write_text(text)
    assert re.search(r"gpu0 unreachable: .* refuses user root with the key .*stranger", stranger.stdout)
    assert rows(stranger.stdout)["gpu1"][0] == "ok"
    assert "gpu0 failed: /no/python3 not found (exit 127)\n  do: set install.python" in nothing.stdout


def test_a_second_provision_changes_nothing(provisioned: Lab) -> None:
    again = provisioned.fab("provision")
    assert again.returncode == 0
    linked = ["ok", "unchanged", "linked, as before", "-"]
    made = ["ok", "unchanged", "unchanged", "-"] if provisioned.wheels else linked
    assert rows(again.stdout) == dict.fromkeys(GPU, linked) | dict.fromkeys(CPU, made)


def test_a_cpu_machine_needs_no_torch_and_no_index(provisioned: Lab) -> None:
    if not provisioned.wheels:
        pytest.skip(
            "no package index can be reached to make wheels from: connect to one, or configure a mirror for pip"
        )
    code = "import byteps.server, scripts.agent as a, importlib.util as u; print(a.__file__, u.find_spec('torch'))"
    shown = provisioned.ssh("cpu0", f"cd {WORKDIR}/suite && .venv/bin/python -c {shlex.quote(code)}")
    assert shown.stdout.split() == [f"{WORKDIR}/suite/scripts/agent.py", "None"], shown.stderr


def test_a_failing_installation_shows_its_last_lines_and_the_others_go_on(provisioned: Lab) -> None:
    file = provisioned.cluster_file
    text = file.read_text()
    script = provisioned.suite / "scripts/setup_venv.sh"
    before = script.read_text()
    if not provisioned.wheels:
        pytest.skip("all hosts have their environments already, since no package index can be reached")
    try:
        script.write_text(before.replace("\nfail()", "\necho first; echo no such luck; exit 5\nfail()"))
        done = provisioned.fab("provision")
    finally:
        script.write_text(before)
        file.write_text(text)
    assert done.returncode == 1
    assert rows(done.stdout)["gpu0"][0] == "ok"
    assert rows(done.stdout)["cpu0"][0] == "failed"
    found = re.search(
        r"cpu0 failed: the environment: .*exit 5.*, (\S+) ends with\n    first\n    no such luck\n  do: mend that",
        done.stdout,
    )
    assert found
    assert Path(found[1]).read_text() == "first\nno such luck\n"
    assert provisioned.fab("deploy").returncode == 0


def test_what_runs_detached_survives_the_connection_and_is_found_and_stopped(provisioned: Lab) -> None:
    argv = [f"{WORKDIR}/suite/.venv/bin/python", "-c", "import time; print('here', flush=True); time.sleep(600)"]
    order = shlex.quote(json.dumps({"argv": argv, "files": {"secret": "s3cr3t"}}))
    program = shlex.quote(Path(host_run.__file__).read_text())
    began = time.monotonic()
    done = provisioned.ssh("cpu0", f"printf %s {order} | python3 -I -S -c {program} start {WORKDIR} agent")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() < began + 10.0
    pid = int(done.stdout)
    assert provisioned.ssh("cpu0", f"cat {WORKDIR}/run/agent.log").stdout == "here\n"
    assert rows(provisioned.fab("status").stdout)["cpu0"][:3] == ["ok", "-", f"runs (pid {pid})"]
    refused = provisioned.fab("deploy")
    assert f"cpu0 failed: a run is going on here: agent runs (pid {pid})" in refused.stdout
    stopped = provisioned.fab("stop")
    assert stopped.returncode == 0
    assert rows(stopped.stdout)["cpu0"] == ["ok", f"agent (pid {pid})"]
    assert rows(stopped.stdout)["cpu1"] == ["ok", "nothing ran"]
    assert provisioned.ssh("cpu0", f"ls /proc/{pid} {WORKDIR}/run/secret").returncode != 0


def wait_for_output(process: "subprocess.Popen[bytes]", text: bytes, seconds: float = 60.0) -> bytes:
    """What it printed until then."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    seen = b""
    deadline = time.monotonic() + seconds
    while text not in seen:
        assert process.poll() is None, f"ended before {text!r}: {seen.decode()}"
        assert time.monotonic() < deadline, f"no {text!r} within {seconds} s: {seen.decode()}"
        seen += process.stdout.read() or b""
        time.sleep(0.05)
    os.set_blocking(process.stdout.fileno(), True)
    return seen


def wait_for_job(lab: Lab, host: str, seconds: float = 60.0) -> None:
    """Until the run has a process of a contender on this host."""
    deadline = time.monotonic() + seconds
    while not lab.ssh(host, "grep -la DMLC_ROLE= /proc/[0-9]*/environ").stdout:
        assert time.monotonic() < deadline, f"no contender on {host} within {seconds} s"
        time.sleep(0.05)


def nothing_runs(lab: Lab) -> bool:
    found = rows(lab.fab("status").stdout)
    return all("runs" not in " ".join(cells) and cells[-1] == "-" for cells in found.values())


def test_a_host_that_dies_fails_the_run_with_a_table(provisioned: Lab) -> None:
    with provisioned.started("run", "fig12", "--tier", "smoke") as process:
        wait_for_output(process, b"cases to run")
        wait_for_job(provisioned, "cpu1")
        provisioned.kill_host("cpu1")
        done = provisioned.ended(process, 90.0)
    try:
        assert done.returncode == 1
        found = rows(done.stdout)
        assert {name: cells[0] for name, cells in found.items()} == {
            "gpu0": "ok",
            "gpu1": "ok",
            "cpu0": "ok",
            "cpu1": "unreachable",
        }
        assert "the same command resumes" in done.stdout
    finally:
        provisioned.boot("cpu1")
    assert nothing_runs(provisioned)


def test_the_same_command_resumes_and_goes_on_without_the_machine_that_started_it(provisioned: Lab) -> None:
    with provisioned.started("run", "fig12", "--tier", "smoke") as process:
        wait_for_output(process, b"cases to run")
        process.send_signal(signal.SIGKILL)
    search = (
        f"cd {WORKDIR}/run && grep -l -f secret /proc/[0-9]*/cmdline /proc/[0-9]*/environ *.log *.toml; wc -c <secret"
    )
    assert provisioned.ssh("gpu0", search).stdout == "65\n"  # nowhere but in its file
    attached = provisioned.fab("attach")
    assert attached.returncode == 0
    assert "every launch has a verified record" in attached.stdout
    assert nothing_runs(provisioned)
    fetched = provisioned.fab("fetch")
    assert fetched.returncode == 0
    records = (provisioned.results / "raw/fig12.cluster.jsonl").read_text().splitlines()
    launched = len(re.findall(r"\.\.\. ok", attached.stdout))
    assert len([line for line in records if not json.loads(line).get("error")]) >= launched > 0
    assert rows(provisioned.fab("fetch").stdout)["gpu0"][-1] == "0"


def test_ctrl_c_stops_the_run_on_all_hosts(provisioned: Lab) -> None:
    provisioned.ssh("gpu0", f"rm -rf {WORKDIR}/suite/results/raw")
    with provisioned.started("run", "fig12", "--tier", "smoke") as process:
        wait_for_output(process, b"cases to run")
        wait_for_job(provisioned, "gpu0")
        process.send_signal(signal.SIGINT)
        done = provisioned.ended(process, 60.0)
    assert done.returncode == 130
    assert rows(done.stdout)["gpu0"][1].startswith("conductor (pid")
    assert nothing_runs(provisioned)


def test_clean_leaves_nothing_on_the_hosts(provisioned: Lab) -> None:
    done = provisioned.fab("clean", "--all")
    assert done.returncode == 0
    assert [cells[-1] for cells in rows(done.stdout).values()] == ["nothing"] * 4
    for name in (*GPU, *CPU):
        assert provisioned.ssh(name, f"ls -A {WORKDIR}; ls /dev/shm").stdout == ""
