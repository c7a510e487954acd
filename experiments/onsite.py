"""A fleet of hosts under the names that cases and records use: gpu0, gpu1, ..., cpu0, ..., scheduler.

Hosts may be called anything in the cluster file; a figure asks for the bytes of gpu0.  The scheduler of a job runs on
the last CPU machine, or without any on the last GPU machine: a spare one wherever a case leaves one.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from byteps.hosts import Site
from scripts.calibrate import Calibration
from scripts.lab import CONGESTION_CONTROL
from scripts.netns import Counters, LabError, Stream
from scripts.stage import Process, Stage, Watched

# What belongs to the conductor's own machine, login or launcher, and means nothing or something else on another host.
_OWN_VARIABLES = re.compile(
    r"HOME|USER|LOGNAME|MAIL|SHELL|HOSTNAME|PWD|OLDPWD|TMPDIR|VIRTUAL_ENV|DISPLAY|RANK|WORLD_SIZE|LOCAL_RANK"
    r"|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_RANK|ROLE_WORLD_SIZE|ROLE_NAME|MASTER_ADDR|MASTER_PORT"
    r"|(SSH|XDG|DBUS|SLURM|SBATCH|SRUN|PMI|PMIX|TORCHELASTIC)_.*"
)

T = TypeVar("T")


class Hosts(Stage, Protocol):
    """What a fleet of agents is, beyond a stage."""

    @property
    def names(self) -> tuple[str, ...]: ...  # of those that are not lost

    @property
    def lost(self) -> dict[str, str]: ...  # why, by host


class OnSite:
    """A fleet under the names that cases and records use: gpu0, gpu1, ..., cpu0, ..., scheduler."""

    def __init__(self, fleet: Hosts, site: Site) -> None:
        self.provenance: Literal["emulated", "measured"] = site.provenance
        self._fleet = fleet
        self._own = {f"gpu{i}": host.name for i, host in enumerate(site.gpu_hosts)}
        self._own |= {f"cpu{i}": host.name for i, host in enumerate(site.cpu_hosts)}
        self._called = {own: name for name, own in self._own.items()}
        self.congestion_control = _congestion_control(site.provenance, fleet.facts())
        # BytePS would choose by itself; others cannot
        self._everywhere = {"BYTEPS_CONGESTION_CONTROL": self.congestion_control} if self.congestion_control else {}

    @property
    def lost(self) -> dict[str, str]:
        """Why, by name."""
        return self._renamed(self._fleet.lost)

    def _renamed(self, by_host: Mapping[str, T]) -> dict[str, T]:
        return {self._called[host]: value for host, value in by_host.items()}

    def host(self, name: str) -> str:
        """The host's own name."""
        if name != "scheduler":
            return self._own[name]
        there = [own for own in self._own.values() if own in self._fleet.names]
        if not there:
            raise LabError("no host is left")
        return there[-1]

    def address(self, host: str) -> str:
        return self._fleet.address(self.host(host))

    def more_addresses(self, host: str) -> tuple[str, ...]:
        return self._fleet.more_addresses(self.host(host))

    def interface(self, host: str) -> str:
        return self._fleet.interface(self.host(host))

    def popen(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> Process:
        if env is not None:
            env = {key: value for key, value in env.items() if not _conductors_own(key, value)}
            env |= self._everywhere
        return self._fleet.popen(self.host(host), argv, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)

    def pids(self) -> list[int]:
        return self._fleet.pids()

    def end_orphans(self) -> int:
        return self._fleet.end_orphans()

    def cpu_seconds(self) -> dict[str, float]:
        return self._renamed(self._fleet.cpu_seconds())

    def all_counters(self) -> dict[str, Counters]:
        return self._renamed(self._fleet.all_counters())

    def watch(self) -> AbstractContextManager[Watched]:
        return self._fleet.watch()

    def calibrate(self, seconds: float) -> Calibration:
        return self._fleet.calibrate(seconds)

    def one_way_seconds(self) -> float:
        return self._fleet.one_way_seconds()

    def facts(self) -> dict[str, str]:
        own = ", ".join(f"{name} = {own}" for name, own in self._own.items())
        return {"hosts": own} | {f"host {key}": value for key, value in self._fleet.facts().items()}


def _conductors_own(name: str, value: str) -> bool:
    """A variable that was not set for the launch, and does not concern another host."""
    return bool(_OWN_VARIABLES.fullmatch(name)) and os.environ.get(name) == value


def _congestion_control(provenance: str, facts: Mapping[str, str]) -> str:
    """What all contenders get; "" where hosts differ, so that nobody can tell."""
    if provenance == "emulated":
        return CONGESTION_CONTROL
    told = facts.get("congestion control", "")
    return told if re.fullmatch(r"\w+", told) else ""
