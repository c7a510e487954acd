"""The virtual environment of each peer, since their dependencies exclude each other: MXNet wants a numpy of its time.

An environment is `.peers/NAME` under the repository, made by `make NAME`.  What is installed there is read from its
metadata; nothing is imported.
"""

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from baselines.launch import ROOT

PEERS = ROOT / ".peers"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where a peer lives."""

    name: str  # of the environment and of the make target that installs it
    label: str  # of the peer, in sentences
    distribution: str
    version_wanted: str

    @property
    def python(self) -> str:
        return str(PEERS / self.name / "bin" / "python")

    def version(self) -> str:
        folders = [str(path) for path in (PEERS / self.name).glob("lib/python3*/site-packages")]
        found = importlib.metadata.distributions(name=self.distribution, path=folders)
        return next((one.version for one in found), "not installed") if folders else "not installed"

    def missing(self) -> str:
        """Why it cannot run, and what to do; "" if it can."""
        found = self.version()
        if found == self.version_wanted and Path(self.python).exists():
            return ""
        have = f"version {found} is installed, {self.version_wanted} is needed"
        why = have if found not in ("not installed", self.version_wanted) else f"{self.label} is not installed"
        return f"{why}; install it with: make {self.name}"
