"""Every test here starts real processes on loopback, and fails if it leaves anything of them behind."""

import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import MARKER, marked_processes

_PATIENCE_SECONDS = 5.0
_SEGMENT_PREFIXES = ("byteps", "psm_", "sem.")


@pytest.fixture(autouse=True)
def _no_leftovers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes (found by a marker in their environment), threads, files and segments of shared memory."""
    marker = secrets.token_hex(8)
    monkeypatch.setenv(MARKER, marker)
    threads, files, segments = set(threading.enumerate()), _files(), _segments()
    yield
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (left := _left(marker, threads, files, segments)) and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    assert not left, f"left behind: {left}"


def _left(marker: str, threads: set[threading.Thread], files: set[str], segments: set[str]) -> list[str]:
    processes = [f"process {pid}: {command}" for pid, command in marked_processes(marker).items()]
    new_threads = [f"thread {thread.name}" for thread in set(threading.enumerate()) - threads]
    new_files = [f"open file {name}" for name in _files() - files]
    return processes + new_threads + new_files + [f"/dev/shm/{name}" for name in _segments() - segments]


def _files() -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{entry.name} -> {os.readlink(entry)}")
        except FileNotFoundError:
            continue  # the listing's own
    return found


def _segments() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(_SEGMENT_PREFIXES)}
