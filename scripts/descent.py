"""Finds and ends what an agent started, grandchildren with sessions of their own included.

Two ways to belong to an agent, since either has a gap.  By *mark*: an environment variable that every process inherits,
unless one clears its environment.  By *descent*: the tree below a process, which a double fork leaves, unless the root
is a subreaper (`become_subreaper`) and lives.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

MARK = "SUITE_AGENT"  # the variable; its value is the agent's token

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_KILL_SECONDS = 5.0  # how long a killed process may take to disappear
_POLL_SECONDS = 0.02


def become_subreaper() -> None:
    """Orphans below this process become its children, so that nothing leaves its tree while it lives."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """This process gets the signal when its parent ends, or now if that has happened already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def marked(token: str) -> list[int]:
    """Every live process that carries the mark, and everything below those."""
    wanted = f"{MARK}={token}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):  # gone, or another user's
                if wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
    return sorted({*found, *below(found)})


def below(roots: Iterable[int], *, but_for: int = 0) -> list[int]:
    """Every live process in the trees under these processes, without them, and without the tree of `but_for`."""
    children: dict[int, list[int]] = {}
    alive = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                state, parent, *_ = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(parent), []).append(int(entry))
                if state not in "ZX":  # a zombie is not alive
                    alive.add(int(entry))
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in found and child != but_for:
                found.add(child)
                waiting.append(child)
    return sorted(found & alive)


def end(find: Callable[[], Iterable[int]], *, term_seconds: float = 0.0) -> list[int]:
    """SIGTERM first, once, if `term_seconds` > 0; then SIGKILL until `find` finds none; those left after 5 s."""
    if term_seconds > 0:
        asked = set(find())
        for pid in asked:
            _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + term_seconds
        while asked & set(find()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    deadline = time.monotonic() + _KILL_SECONDS
    while left := list(find()):
        for pid in left:
            _signal(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    return left


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)  # found microseconds ago: process ids go round once in minutes at the fastest


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed: {os.strerror(ctypes.get_errno())}")
