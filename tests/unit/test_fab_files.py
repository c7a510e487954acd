"""Files on their way to hosts and back: whole or not at all, and nothing is sent twice."""

import fcntl
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import host_files, provision
from scripts.deploy import Parcel, parcel, sources
from scripts.fetch import keep, merge
from scripts.ssh import HostFailed

PROGRAM = [sys.executable, "-I", "-S", host_files.__file__]


def host(*arguments: object, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*PROGRAM, *map(str, arguments)], input=data, capture_output=True, timeout=30, check=False)


def sent(what: Parcel, workdir: Path) -> subprocess.CompletedProcess[bytes]:
    return host("unpack", workdir, "suite", data=b"".join(what.stream()))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "a.txt").write_text("a" * 700)
    (root / "deep" / "er" / "b.sh").write_text("#!/bin/sh\n")
    (root / "deep" / "er" / "b.sh").chmod(0o755)
    return root


def test_what_is_unpacked_is_what_was_sent_and_is_known_again(tree, tmp_path):
    what = parcel(tree, ["a.txt", "deep/er/b.sh"])
    assert host("digest", tmp_path / "host", "suite").stdout.strip() == b""
    assert sent(what, tmp_path / "host").returncode == 0
    suite = tmp_path / "host" / "suite"
    assert (suite / "a.txt").read_text() == "a" * 700
    assert (suite / "deep/er/b.sh").stat().st_mode & 0o777 == 0o755
    assert host("digest", tmp_path / "host", "suite").stdout.decode().strip() == what.digest
    (suite / "a.txt").unlink()
    assert host("digest", tmp_path / "host", "suite").stdout.strip() == b""


def test_files_that_are_no_longer_sent_go_and_others_stay(tree, tmp_path):
    sent(parcel(tree, ["a.txt", "deep/er/b.sh"]), tmp_path / "host")
    suite = tmp_path / "host" / "suite"
    (suite / ".venv").mkdir()
    (suite / "results").write_text("made there")
    sent(parcel(tree, ["a.txt"]), tmp_path / "host")
    assert sorted(path.name for path in suite.iterdir()) == [".deployed", ".venv", "a.txt", "results"]


def test_a_parcel_that_is_cut_or_changed_on_the_way_is_refused(tree, tmp_path):
    stream = b"".join(parcel(tree, ["a.txt", "deep/er/b.sh"]).stream())
    damaged = host("unpack", tmp_path / "host", "suite", data=stream.replace(b"aaaa", b"aaab", 1))
    assert damaged.returncode == 1
    assert b"a.txt arrived damaged; do: deploy again" in damaged.stderr
    line = stream.index(b"\n") + 1
    cut = host("unpack", tmp_path / "host", "suite", data=stream[: line + 1024 + 512])
    assert cut.returncode == 1
    assert host("digest", tmp_path / "host", "suite").stdout.strip() == b""
    names = {path.name for path in (tmp_path / "host" / "suite").rglob("*") if path.is_file()}
    assert "a.txt" not in names or (tmp_path / "host/suite/a.txt").read_text() == "a" * 700


def test_sources_are_the_tracked_files_or_without_git_all_but_what_is_made(tree):
    for made in (".venv", ".peers", "results", ".mypy_cache", "deep/__pycache__"):
        (tree / made).mkdir()
        (tree / made / "file").write_text("made")
    assert sources(tree) == ["a.txt", "deep/er/b.sh"]
    assert "scripts/fabfile.py" in sources()
    assert not [path for path in sources() if path.startswith((".venv", ".peers", "results/raw"))]


def test_a_link_is_made_kept_changed_and_removed_but_never_replaces_a_folder(tmp_path):
    work = tmp_path / "host"
    (work / "suite").mkdir(parents=True)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    results = [host("link", work, ".venv", target).stdout for target in (tmp_path / "one", tmp_path / "one", "")]
    assert results == [b"changed\n", b"unchanged\n", b"changed\n"]
    host("link", work, ".venv", tmp_path / "two")
    assert (work / "suite/.venv").readlink() == tmp_path / "two"
    assert b"there is no folder" in host("link", work, ".venv", tmp_path / "three").stderr
    (work / "suite/.peers").mkdir()
    assert host("link", work, ".peers", "").stdout == b"unchanged\n"
    assert b"is a folder of its own" in host("link", work, ".peers", tmp_path / "one").stderr


def packed(tmp_path: Path) -> bytes:
    work = tmp_path / "host"
    (work / "suite/results/raw").mkdir(parents=True)
    (work / "run").mkdir()
    (work / "suite/results/raw/fig12.jsonl").write_text('{"a": 1}\n')
    (work / "run/agent.log").write_text("log\n")
    (work / "run/secret").write_text("s3cr3t\n")
    return host("pack", work).stdout


def test_records_and_logs_come_back_and_the_secret_does_not(tmp_path):
    data = packed(tmp_path)
    assert b"s3cr3t" not in data
    kept = keep(io.BytesIO(data), tmp_path / "here")
    assert sorted(str(path.relative_to(tmp_path / "here")) for path in kept) == ["raw/fig12.jsonl", "run/agent.log"]


def test_what_came_back_damaged_or_not_whole_is_not_kept(tmp_path):
    data = packed(tmp_path)
    for wrong in (data.replace(b'{"a": 1}\n', b'{"a": 2}\n'), data[:600]):
        with pytest.raises(HostFailed, match=r"damaged|not whole"):
            keep(io.BytesIO(wrong), tmp_path / "here")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("path", ["../evil", "suite/results/raw/../../evil", "/etc/evil", "run"])
def test_a_host_writes_only_into_its_own_folder(tmp_path, path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in (
            (path, b"x"),
            (host_files.SUMS, json.dumps({path: hashlib.sha256(b"x").hexdigest()}).encode()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    buffer.seek(0)
    with pytest.raises(HostFailed, match="which was not asked for"):
        keep(buffer, tmp_path / "here")


def test_only_whole_records_that_are_new_are_added(tmp_path):
    raw, fetched = tmp_path / "raw", tmp_path / "fetched" / "fig12.jsonl"
    fetched.parent.mkdir()
    fetched.write_text('{"a": 1}\n{"b": 2}\n{"torn": ')
    assert merge([fetched], raw) == 2
    assert merge([fetched], raw) == 0
    (raw / "fig12.jsonl").write_text('{"torn here')
    assert merge([fetched], raw) == 2
    assert (raw / "fig12.jsonl").read_text() == '{"torn here\n{"a": 1}\n{"b": 2}\n'


def test_clean_takes_only_what_a_deployment_made(tree, tmp_path):
    work = tmp_path / "host"
    sent(parcel(tree, ["a.txt"]), work)
    (work / "run").mkdir()
    (work / "wheels").mkdir()
    (work / "wheels" / "mine.whl").write_text("")
    assert json.loads(host("clean", work).stdout) == {"removed": ["run"], "left": ["suite", "wheels"]}
    assert json.loads(host("clean", work, "all").stdout) == {"removed": ["suite"], "left": ["wheels"]}
    (work / "wheels" / "mine.whl").unlink()
    (work / "wheels").rmdir()
    host("clean", work, "all")
    assert not work.exists()
    assert json.loads(host("clean", work, "all").stdout) == {"removed": [], "left": []}


def locked(folder: Path) -> bool:
    if not folder.exists():
        return False
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_two_deployments_at_once_do_not_mix_their_files(tree, tmp_path):
    what = parcel(tree, ["a.txt"])
    stream = b"".join(what.stream())
    with subprocess.Popen(
        [*PROGRAM, "unpack", str(tmp_path / "host"), "suite"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as first:
        assert first.stdin is not None
        first.stdin.write(stream[:-2000])
        first.stdin.flush()
        deadline = time.monotonic() + 10.0
        while not locked(tmp_path / "host/suite"):
            assert time.monotonic() < deadline, "the first one did not begin within 10 s"
            time.sleep(0.02)
        second = sent(what, tmp_path / "host")
        first.stdin.write(stream[-2000:])
        first.stdin.close()
        assert first.wait(10) == 0
    assert second.returncode == 1
    assert second.stderr.decode().startswith("something is being sent or installed here already")
    assert sent(what, tmp_path / "host").returncode == 0  # the lock went with its holder


def test_a_work_directory_that_cannot_be_made_is_one_line_that_says_what_to_do(tree, tmp_path):
    (tmp_path / "file").write_text("")
    done = sent(parcel(tree, ["a.txt"]), tmp_path / "file" / "host")
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"{tmp_path}/file/host: Not a directory; do: set install.workdir")


class Refusing:
    """A session on whose host nothing can be installed."""

    def __init__(self, said: bytes) -> None:
        self.host, self.status, self._said = SimpleNamespace(workdir="~/byteps"), "", said

    def program(self, *_: str, take: Callable[[bytes], object], **__: object) -> str:
        take(self._said)
        raise HostFailed("exit 5", "the host's own advice")


@pytest.mark.parametrize(
    ("said", "todo"), [(b"no room\n", "mend that, then the same command again"), (b"", "the host's own advice")]
)
def test_a_failed_installation_shows_the_end_of_its_log_if_there_is_any(tmp_path, said, todo):
    session = Refusing(said)
    log = provision.Log(tmp_path / "gpu0/provision.log", session)  # type: ignore[arg-type]
    with pytest.raises(HostFailed) as failed:
        provision._shell(session, log, "true", "the environment")  # type: ignore[arg-type]
    assert failed.value.reason.startswith("the environment: exit 5")
    assert ("ends with\n    no room" in failed.value.reason) == bool(said)
    assert failed.value.todo == todo
