"""Ends what runs in namespaces of ours and removes them, also when their creator was killed.

The name of a namespace says who created it (`scripts.lab.run_prefix`).  Two readers of that name:

- the *guardian*, one small process per lab, waits for the end of the creator and then cleans up that one lab at once.
  It waits on a pidfd, so neither an inherited pipe nor a reused process id deceives it.  PR_SET_PDEATHSIG would not do:
  it fires at the end of the starting *thread*, and grandchildren do not have it.
- `sweep`, at the start of every lab, removes what is left of dead creators (the guardian may have died as well).

A process belongs to a lab if its network namespace is one of the lab's; foreign namespaces are never opened.
Deleting a name does not end the processes inside, so they are killed first, by pidfd.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from scripts.lab import bring_down, creator_of

NETNS_DIR = Path("/run/netns")

_KILL_SECONDS = 5.0  # how long a killed process may take to disappear
_POLL_SECONDS = 0.01
_QUIET_SECONDS = 0.5  # the guardian is done when nothing of the lab turned up for so long


class LabError(RuntimeError):
    """The emulated cluster cannot be built or removed; the text says what to do."""


def existing(prefix: str) -> list[str]:
    """Names of this lab's namespaces that are there now."""
    return [name for name in _names() if name.startswith(prefix + "-")]


def processes_in(names: Iterable[str]) -> list[int]:
    """Every live process whose network namespace is one of these."""
    with _inodes(names) as inodes:
        return list(_members(inodes))


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is none, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def remove(names: Iterable[str], *, term_seconds: float = 0.0) -> list[str]:
    """Ends the processes inside (SIGTERM first if `term_seconds` > 0, then SIGKILL), deletes the namespaces."""
    names = list(names)
    with _inodes(names) as inodes:
        if term_seconds > 0:
            _end(inodes, signal.SIGTERM, term_seconds)
        left = _end(inodes, signal.SIGKILL, _KILL_SECONDS)
        _delete(names)
        left = _end(inodes, signal.SIGKILL, _KILL_SECONDS) if left or list(_members(inodes)) else left
    if left:
        raise LabError(f"processes {left} in {', '.join(names)} do not end after SIGKILL; look at /proc/PID/stack")
    return names


def sweep() -> list[str]:
    """Removes the namespaces of dead creators, with what runs inside; returns their names."""
    dead = []
    for name in _names():
        creator = creator_of(name)
        if creator is not None and start_ticks(creator[0]) != creator[1]:
            dead.append(name)
    return remove(dead) if dead else []


def start_guardian(prefix: str) -> subprocess.Popen[bytes]:
    """A process that removes the lab `prefix` once this process is dead; `dismiss_guardian` ends it."""
    guardian = subprocess.Popen(
        [sys.executable, "-S", "-m", "scripts.leftovers", prefix],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
        start_new_session=True,
    )
    assert guardian.stdout is not None
    if guardian.stdout.readline() != b"watching\n":
        guardian.kill()
        guardian.wait()
        raise LabError(f"the guardian of the lab did not start: {' '.join(map(str, guardian.args))}")  # type: ignore[arg-type]
    guardian.stdout.close()
    return guardian


def dismiss_guardian(guardian: subprocess.Popen[bytes]) -> None:
    assert guardian.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        guardian.stdin.write(b"done")
        guardian.stdin.flush()
    guardian.stdin.close()
    guardian.wait(timeout=10)


def _guard(prefix: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    creator = creator_of(f"{prefix}-any")
    if creator is None:
        raise SystemExit(f"{prefix!r} is not the name of a lab")
    pid, start = creator
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        if start_ticks(pid) == start:
            print("watching", flush=True)
            os.close(1)
            ready, _, _ = select.select([pidfd, 0], [], [])
            if 0 in ready and os.read(0, 4) == b"done":
                return
    quiet_since = time.monotonic()  # an `ip` that the creator started may still be adding names
    while time.monotonic() - quiet_since < _QUIET_SECONDS:
        if names := existing(prefix):
            with contextlib.suppress(LabError):
                remove(names)
            quiet_since = time.monotonic()
        time.sleep(_POLL_SECONDS)


def _names() -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(NETNS_DIR) if creator_of(name) is not None)
    return []


@contextlib.contextmanager
def _inodes(names: Iterable[str]) -> Iterator[frozenset[int]]:
    """Inode numbers of the namespaces, kept open so that the kernel cannot give the numbers to others meanwhile."""
    own = os.stat("/proc/self/ns/net")
    fds = []
    inodes = set()
    try:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                fds.append(os.open(NETNS_DIR / name, os.O_RDONLY | os.O_CLOEXEC))
                stat = os.fstat(fds[-1])
                # a name whose creation was interrupted is a plain file, on another device
                if stat.st_dev == own.st_dev and stat.st_ino != own.st_ino:
                    inodes.add(stat.st_ino)
        yield frozenset(inodes)
    finally:
        for fd in fds:
            os.close(fd)


def _members(inodes: frozenset[int]) -> Iterator[int]:
    for entry in os.listdir("/proc") if inodes else []:
        if entry.isdigit() and _namespace_of(int(entry)) in inodes:
            yield int(entry)


def _namespace_of(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:  # gone, or a zombie
        return None


def _end(inodes: frozenset[int], number: signal.Signals, seconds: float) -> list[int]:
    """Signals every member until none is left or the time is over; returns those left.  SIGTERM is sent once."""
    deadline = time.monotonic() + seconds
    signalled: set[int] = set()
    while members := list(_members(inodes)):
        for pid in members:
            if number == signal.SIGKILL or pid not in signalled:
                _signal(pid, inodes, number)
                signalled.add(pid)
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    return members


def _signal(pid: int, inodes: frozenset[int], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            if _namespace_of(pid) in inodes:  # looked up again: now the pidfd pins the process
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def _delete(names: list[str]) -> None:
    subprocess.run(
        ["ip", "-force", "-batch", "-"],
        input=bring_down(names).text.encode(),
        capture_output=True,
        timeout=30,
        check=False,
    )
    remaining = sorted(set(names) & set(_names()))
    if remaining:
        raise LabError(f"could not delete {', '.join(remaining)}; as root: ip netns del {remaining[0]}")


if __name__ == "__main__":
    _guard(sys.argv[1])
