"""On a host: takes files and gives files, all of them checked by SHA-256, and removes them.

    host_files.py digest WORKDIR FOLDER             what lies in WORKDIR/FOLDER: the digest of the last `unpack`, or ""
    host_files.py unpack WORKDIR FOLDER < STREAM    a line of JSON {"digest": ..., "files": {path: sha256}}, then a tar
    host_files.py link WORKDIR NAME TARGET          WORKDIR/suite/NAME leads to TARGET, or with "" to nothing
    host_files.py pack WORKDIR > STREAM             a tar of records and logs, and last their sums
    host_files.py clean WORKDIR [all]

Sent along and run by `python -I -S -c`: standard library only, Python 3.8 or later.  Files of an `unpack` come to their
names one by one, whole, and .deployed is written last: interrupted at any moment, the next one completes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEPLOYED = ".deployed"
SUMS = "sha256.json"  # the last member of a `pack`
PACKED = (("suite/results/raw", ""), ("run", ".log"), ("run", ".exit"))  # folders, and how the names end
OURS = ("suite", "wheels")


def fail(reason: str, todo: str) -> NoReturn:
    sys.exit(f"{reason}; do: {todo}")


def deployed(folder: str) -> dict[str, list[str]]:
    """{"digest": [one], "files": [...]} of what lies there."""
    try:
        with open(os.path.join(folder, DEPLOYED)) as file:
            found: dict[str, list[str]] = json.load(file)
            return found
    except (OSError, ValueError):
        return {"digest": [""], "files": []}


def digest(workdir: str, name: str) -> None:
    folder = os.path.join(workdir, name)
    found = deployed(folder)
    there = all(os.path.isfile(os.path.join(folder, path)) for path in found["files"])
    print(found["digest"][0] if there else "")


def unpack(workdir: str, name: str) -> None:
    folder = os.path.join(workdir, name)
    manifest = json.loads(sys.stdin.buffer.readline())
    before = deployed(folder)
    os.makedirs(folder, exist_ok=True)
    lock = only_one(folder)  # until this function's end
    need = sum(manifest["sizes"])
    if shutil.disk_usage(folder).free < need + (64 << 20):
        fail(f"{folder} has no room for {need >> 20} MiB", "free some, or set install.workdir")
    left = dict(manifest["files"])
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for member in archive:
            if member.name not in left or not member.isfile():
                fail(f"{member.name} was not announced", "deploy again")
            source = archive.extractfile(member)
            assert source is not None
            place(os.path.join(folder, member.name), source, member.mode, left.pop(member.name))
    if left:
        fail(f"{len(left)} files did not arrive, such as {min(left)}", "deploy again")
    for path in set(before["files"]) - set(manifest["files"]):
        remove(folder, path)
    with open(os.path.join(folder, f"{DEPLOYED}.new"), "w") as file:
        json.dump({"digest": [manifest["digest"]], "files": sorted(manifest["files"])}, file)
    os.replace(file.name, os.path.join(folder, DEPLOYED))
    os.close(lock)


def only_one(folder: str) -> int:
    """A lock on the folder, which ends with this process: two deployments would take each other's files away."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(
            "something is being sent or installed here already, perhaps from another machine",
            "wait for that, then again",
        )
    except OSError:  # a file system without locks
        pass
    return descriptor


def place(path: str, source: io.BufferedIOBase | object, mode: int, wanted: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    seen = hashlib.sha256()
    temporary = f"{path}.arriving"
    with open(temporary, "wb") as file:
        while data := source.read(1 << 20):  # type: ignore[union-attr]
            seen.update(data)
            file.write(data)
        os.fchmod(file.fileno(), mode & 0o755)
    if seen.hexdigest() != wanted:
        os.unlink(temporary)
        fail(f"{path} arrived damaged", "deploy again")
    os.replace(temporary, path)


def remove(folder: str, path: str) -> None:
    """A file, and the folders that are empty without it."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, path))
        while path := os.path.dirname(path):
            os.rmdir(os.path.join(folder, path))


def link(workdir: str, name: str, target: str) -> None:
    path = os.path.join(workdir, "suite", name)
    target = os.path.expanduser(target)
    current = os.readlink(path) if os.path.islink(path) else ""
    if target and not os.path.isdir(target):
        fail(f"there is no folder {target}", "correct install.environment or install.peers_folder, or leave it out")
    if current == target:
        print("unchanged")
        return
    if current:
        os.unlink(path)
    elif os.path.exists(path):
        if not target:  # what was installed here
            print("unchanged")
            return
        fail(f"{path} is a folder of its own", f"remove it, so that it can lead to {target}")
    if target:
        os.symlink(target, path)
    print("changed")


def pack(workdir: str) -> None:
    sums = {}
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        for path in packed(workdir):
            try:
                with open(os.path.join(workdir, path), "rb") as file:
                    data = file.read()  # as it is now: a log may be growing
            except OSError:  # gone meanwhile
                continue
            sums[path] = hashlib.sha256(data).hexdigest()
            add(archive, path, data)
        add(archive, SUMS, json.dumps(sums).encode())


def packed(workdir: str) -> Iterator[str]:
    for top, ending in PACKED:
        for folder, _, files in os.walk(os.path.join(workdir, top)):
            for file in sorted(files):
                if file.endswith(ending):
                    yield os.path.relpath(os.path.join(folder, file), workdir)


def add(archive: tarfile.TarFile, path: str, data: bytes) -> None:
    member = tarfile.TarInfo(path)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def clean(workdir: str, everything: str = "") -> None:
    """Only what a deployment made: a folder that has no .deployed is somebody's."""
    removed = []
    folders = ["run"] if os.path.isdir(os.path.join(workdir, "run")) else []
    if everything:
        folders += [name for name in OURS if os.path.exists(os.path.join(workdir, name, DEPLOYED))]
    for name in folders:
        shutil.rmtree(os.path.join(workdir, name))
        removed.append(name)
    if everything:
        with contextlib.suppress(OSError):  # not empty, or not ours to remove
            os.rmdir(workdir)
    left = sorted(os.listdir(workdir)) if os.path.isdir(workdir) else []
    print(json.dumps({"removed": removed, "left": left}))


def main() -> None:
    command, workdir, *rest = sys.argv[1:]
    known: dict[str, Callable[..., None]] = {
        "digest": digest, "unpack": unpack, "link": link, "pack": pack, "clean": clean
    }  # fmt: skip
    try:
        known[command](os.path.realpath(os.path.expanduser(workdir)), *rest)
    except OSError as error:
        if error.filename is None:
            raise
        fail(
            f"{error.filename}: {error.strerror}", "set install.workdir to a folder that this user may write, with room"
        )


if __name__ == "__main__":
    main()
