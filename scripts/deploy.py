"""The repository's files, as they are here, in WORKDIR/suite of every host; nothing is sent where they lie already."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.ssh import HostFailed, Session

ROOT = Path(__file__).resolve().parent.parent
SEND_SECONDS = 1800.0

_PIECE = 1 << 18
_NOT_SOURCES = {".git", ".venv", ".peers", "results", "build", "dist", "__pycache__"}  # without git: what make makes
_CACHE_ENDS = ("_cache", ".egg-info", ".pyc")


@dataclass(frozen=True)
class Parcel:
    """Files with their sums; `digest` tells two parcels apart."""

    root: Path
    sums: dict[str, str]  # SHA-256 by path
    modes: dict[str, int]
    sizes: dict[str, int]

    @property
    def digest(self) -> str:
        rows = sorted((path, self.modes[path], total) for path, total in self.sums.items())
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    def stream(self) -> Iterator[bytes]:
        """What host_files.py unpacks: the sums, then a tar, piece by piece, since wheels may be gigabytes."""
        yield (
            json.dumps({"digest": self.digest, "files": self.sums, "sizes": list(self.sizes.values())}).encode() + b"\n"
        )
        for path in sorted(self.sums):
            member = tarfile.TarInfo(path)
            member.size, member.mode = self.sizes[path], self.modes[path]
            yield member.tobuf()
            left = member.size
            with (self.root / path).open("rb") as file:
                while left and (data := file.read(min(_PIECE, left))):
                    left -= len(data)
                    yield data
            yield bytes(-member.size % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)


def parcel(root: Path, paths: Iterable[str]) -> Parcel:
    sums, modes, sizes = {}, {}, {}
    for path in paths:
        with (root / path).open("rb") as file:
            sums[path] = hashlib.file_digest(file, "sha256").hexdigest()
            status = os.fstat(file.fileno())
        modes[path] = 0o755 if status.st_mode & 0o100 else 0o644
        sizes[path] = status.st_size
    return Parcel(root, sums, modes, sizes)


def sources(root: Path = ROOT) -> list[str]:
    """The tracked files that are there; outside git: all but what is made."""
    if shutil.which("git") and (root / ".git").exists():
        listed = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z"], capture_output=True, timeout=60, check=False
        )
        if listed.returncode == 0:
            paths = [os.fsdecode(path) for path in listed.stdout.split(b"\0") if path]
            return [path for path in paths if (root / path).is_file()]
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _NOT_SOURCES and not name.endswith(_CACHE_ENDS))
        found += [os.path.relpath(os.path.join(folder, file), root) for file in files if not file.endswith(_CACHE_ENDS)]
    return sorted(found)


def not_sent(root: Path = ROOT) -> list[str]:
    """Python files and tables that git neither tracks nor ignores: perhaps forgotten."""
    others = _git_files(root, "--others", "--exclude-standard") or []
    return [path for path in others if path.endswith((".py", ".toml", ".sh"))]


def _git_files(root: Path, *options: str) -> list[str] | None:
    """None where this is no clone."""
    if not shutil.which("git") or not (root / ".git").exists():
        return None
    argv = ["git", "-C", str(root), "ls-files", "-z", *options]
    listed = subprocess.run(argv, capture_output=True, timeout=60, check=False)
    return [os.fsdecode(path) for path in listed.stdout.split(b"\0") if path] if listed.returncode == 0 else None


def suite(tell: Callable[[str], None]) -> Parcel:
    """What is deployed."""
    if forgotten := not_sent():
        more = f" and {len(forgotten) - 3} more" if len(forgotten) > 3 else ""
        tell(f"not sent, since git does not track them: {', '.join(forgotten[:3])}{more}")
    return parcel(ROOT, sources())


def send(session: Session, what: Parcel, folder: str) -> bool:
    """Brings WORKDIR/FOLDER of the host to this content; False if it has it already."""
    workdir = session.host.workdir
    session.status = f"comparing {folder}"
    if session.program("host_files", "digest", workdir, folder).strip() == what.digest:
        return False
    session.status = f"sending {sum(what.sizes.values()) / 1e6:.0f} MB of {folder}"
    session.program("host_files", "unpack", workdir, folder, data=_buffered(what.stream()), seconds=SEND_SECONDS)
    return True


def _buffered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Small pieces together: a packet for every header of a small file would be slow."""
    buffer = io.BytesIO()
    for piece in pieces:
        buffer.write(piece)
        if buffer.tell() >= _PIECE:
            yield buffer.getvalue()
            buffer = io.BytesIO()
    yield buffer.getvalue()


def deploy(session: Session, what: Parcel) -> str:
    """ "sent" or "unchanged"; refuses while a run uses what lies there."""
    state = json.loads(session.program("host_run", "status", session.host.workdir))
    running = [name for name in ("conductor", "agent") if state[name].startswith("runs")]
    if running:
        raise HostFailed(f"a run is going on here: {running[0]} {state[running[0]]}", "`fab attach`, or `fab stop`")
    return "sent" if send(session, what, "suite") else "unchanged"
