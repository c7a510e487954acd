"""Every test here needs root and iproute2, and must leave no namespace and no process behind."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.lab import creator_of
from scripts.leftovers import NETNS_DIR, processes_in
from scripts.netns import why_no_lab


@pytest.fixture(autouse=True, scope="session")
def _needs_a_lab() -> None:
    if reason := why_no_lab():
        pytest.skip(reason)


@pytest.fixture(autouse=True, scope="module")
def _no_leftovers(_needs_a_lab: None) -> Iterator[None]:
    """Fails the module that leaves namespaces of this process, or a child of it that still runs."""
    children_before = _children()
    yield
    names = [name for name in (os.listdir(NETNS_DIR) if NETNS_DIR.exists() else []) if _is_ours(name)]
    assert names == [], f"left behind: {names} with processes {processes_in(names)}"
    left = _children() - children_before
    assert not left, f"left behind: processes {sorted(left)}"


def _is_ours(name: str) -> bool:
    creator = creator_of(name)
    return creator is not None and creator[0] == os.getpid()


def _children() -> set[int]:
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
