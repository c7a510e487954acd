"""Agents as processes on loopback, and a fleet of them, for tests."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from jobs import PATIENCE_SECONDS, free_port

from scripts.fleet import Fleet

ROOT = Path(__file__).resolve().parents[2]
SECRET = b"of this test"
PYTHON = sys.executable


@dataclass(frozen=True, kw_only=True)
class Host:
    name: str
    address: str = "127.0.0.1"
    interfaces: tuple[str, ...] = ()
    nics: tuple[float, ...] = (1e9,)
    suite: str = str(ROOT)


@dataclass(frozen=True, kw_only=True)
class Site:
    hosts: tuple[Host, ...]
    provenance: Literal["emulated", "measured"] = "measured"
    cap_bytes_per_s: float = 0.0


def site(*names: str) -> Site:
    return Site(hosts=tuple(Host(name=name) for name in names))


@dataclass
class Agents:
    """Agents that a test starts one by one; whatever is left of them is killed at the end."""

    folder: Path
    port: int = field(default_factory=free_port)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, name: str, *, key: str = "", secret: bytes = SECRET, seconds: float = PATIENCE_SECONDS) -> None:
        key = key or name
        (self.folder / f"{key}.secret").write_bytes(secret + b"\n")
        options = ["--conductor", f"127.0.0.1:{self.port}", "--name", name, "--connect-seconds", str(seconds)]
        files = ["--secret-file", str(self.folder / f"{key}.secret"), "--pid-file", str(self.folder / f"{key}.pid")]
        with open(self.folder / f"{key}.log", "wb") as log:
            self.processes[key] = subprocess.Popen(
                [PYTHON, "-m", "scripts.agent", *options, *files],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self, key: str) -> str:
        return (self.folder / f"{key}.log").read_text(errors="replace")

    def wait(self, key: str, seconds: float = PATIENCE_SECONDS) -> int:
        try:
            return self.processes[key].wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"agent {key} was not over after {seconds:.0f} s:\n{self.log(key)}") from None


@contextlib.contextmanager
def agents(folder: Path) -> Iterator[Agents]:
    made = Agents(folder)
    try:
        yield made
    finally:
        for process in made.processes.values():
            process.kill()
            process.wait(PATIENCE_SECONDS)


@contextlib.contextmanager
def fleet(folder: Path, *names: str, silence_seconds: float = 30.0) -> Iterator[tuple[Fleet, Agents]]:
    """One with an agent for every name; both end at the end."""
    with agents(folder) as made:
        for name in names:
            made.start(name)
        with up(made, *names, silence_seconds=silence_seconds) as one:
            yield one, made
        for name in names:
            made.wait(name, 10.0)


def up(
    made: Agents, *names: str, start_seconds: float = 60.0, silence_seconds: float = 30.0, **told: list[str]
) -> Fleet:
    return Fleet(
        site(*names),
        listen=("127.0.0.1", made.port),
        secret=SECRET,
        root=ROOT,
        start_seconds=start_seconds,
        silence_seconds=silence_seconds,
        tell=told.get("lines", []).append,
    )
