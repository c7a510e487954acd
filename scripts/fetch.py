"""Brings records and logs from the hosts to results/cluster/NAME/HOST, every file checked by its SHA-256, and adds the
records that are new to results/raw, where figures and report read them.  And removes what lies on the hosts.
"""

import hashlib
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from byteps.hosts import Site
from scripts.host_files import SUMS
from scripts.sessions import Sessions
from scripts.ssh import HostFailed, Session

Tell = Callable[[str], None]
_SECONDS = 1800.0
_PLACES = {"suite/results/raw": "raw", "run": "run"}  # there and here


def fetch(site: Site, folder: Path, raw: Path, *, tell: Tell = print) -> tuple[str, bool]:
    """The table, and whether every host gave what it has."""

    def take(session: Session) -> tuple[str]:
        here = folder / session.host.name
        session.status = "fetching"
        with tempfile.TemporaryFile() as spool:
            session.program("host_files", "pack", session.host.workdir, take=spool.write, seconds=_SECONDS)
            spool.seek(0)
            files = keep(spool, here)
        return (f"{len(files)} files",)

    with Sessions(site, tell=tell) as sessions:
        done = sessions.each("fetching", take, seconds=_SECONDS)
        new = {name: merge((folder / name / "raw").glob("*.jsonl"), raw) for name in done}
        rows = {name: (done[name][0], str(new[name])) for name in done}
        return sessions.table(rows, ("fetched", "new records")), not sessions.failures


def keep(spool: "tempfile._TemporaryFileWrapper[bytes] | object", folder: Path) -> list[Path]:
    """The files of a `pack`; none of them is kept unless all arrived as they were sent."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=spool, mode="r:") as archive:  # type: ignore[call-overload]
            for member in archive:
                source = archive.extractfile(member)
                contents[member.name] = source.read() if source is not None else b""
        sums = json.loads(contents.pop(SUMS))
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise HostFailed(f"what it sent is not whole: {error}", "fetch again") from None
    damaged = [path for path, total in sums.items() if hashlib.sha256(contents.get(path, b"")).hexdigest() != total]
    if damaged or len(sums) != len(contents):
        raise HostFailed(f"{len(damaged) or 'some'} files arrived damaged, such as {damaged[:1]}", "fetch again")
    kept = []
    for path, data in contents.items():
        target = folder / _place(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"{target.name}.arriving")
        temporary.write_bytes(data)
        temporary.replace(target)
        kept.append(target)
    return kept


def _place(path: str) -> PurePosixPath:
    """Only below the folders that are fetched, whatever a host sends."""
    parts = PurePosixPath(path).parts
    for there, here in _PLACES.items():
        size = len(PurePosixPath(there).parts)
        if "/".join(parts[:size]) == there and len(parts) > size and ".." not in parts:
            return PurePosixPath(here, *parts[size:])
    raise HostFailed(f"it sent {path!r}, which was not asked for", "deploy again")


def merge(files: Iterable[Path], raw: Path) -> int:
    """Appends whole lines that are not there yet to the file of the same name in `raw`; how many."""
    added = 0
    for file in sorted(files):
        target = raw / file.name
        before = target.read_bytes() if target.exists() else b""
        there = set(before.splitlines())
        # the last line of a run that was killed may be torn
        lines = [line for line in file.read_bytes().splitlines() if line not in there and _is_whole(line)]
        if not lines:
            continue
        raw.mkdir(parents=True, exist_ok=True)
        text = b"\n" * (before[-1:] not in (b"", b"\n")) + b"".join(line + b"\n" for line in lines)
        descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, text)
        finally:
            os.close(descriptor)
        added += len(lines)
    return added


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def clean(site: Site, *, everything: bool, tell: Tell = print) -> tuple[str, bool]:
    """Removes the files of runs, with `everything` the suite, too; nothing may run there any more."""

    def remove(session: Session) -> tuple[str, str]:
        arguments = [session.host.workdir, *["all"] * everything]
        found = json.loads(session.program("host_files", "clean", *arguments, seconds=300.0))
        return ", ".join(found["removed"]) or "nothing", ", ".join(found["left"]) or "nothing"

    with Sessions(site, tell=tell) as sessions:
        done = sessions.each("cleaning", remove, seconds=300.0)
        return sessions.table(done, ("removed", "left")), not sessions.failures
