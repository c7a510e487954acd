"""Where a number comes from: versions, commit, machine, and the hash of the code behind it."""

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from baselines.contenders import source_files
from baselines.launch import ROOT, Contender
from experiments.record import code_hash

_DISTRIBUTIONS = ("byteps-reproduction", "torch", "numpy", "msgspec", "ml_dtypes", "scipy")


def now() -> str:
    """The time of a record: UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def versions() -> dict[str, str]:
    """Of Python, the kernel, and the packages that take part."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def git_commit() -> str:
    """The commit that is checked out, with "+changes" if tracked files differ from it; "unknown" outside a clone."""

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True, timeout=30
        ).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        return commit + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def host() -> dict[str, str]:
    """The machine as far as it matters for a reader; its name and addresses do not."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory_bytes": str(memory),
        "architecture": platform.machine(),
        "system": _system_name(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def code_of(contender: Contender) -> str:
    """Hash of the code that a launch of this contender exercises."""
    return code_hash((str(path.relative_to(ROOT)), path.read_bytes()) for path in source_files(contender))
