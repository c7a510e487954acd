"""Everything that a host needs: the suite's files, its environment, the peers; what is there already stays as it is.

Order and commands are those of `make setup` and `make peers` on one machine.  What a host prints goes into a log on
this machine, one per host.  A peer that cannot be installed is noted and left out, as `make peers` does: the
experiments say so where it belongs.
"""

import hashlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from byteps.hosts import Host, Site
from byteps.hosts_view import host_peers
from scripts.deploy import SEND_SECONDS, Parcel, deploy, parcel, send, suite
from scripts.sessions import Sessions
from scripts.ssh import HostFailed, Session, held_open, quoted

INSTALL_SECONDS = 3600.0  # building Horovod on a small machine takes 20 minutes
HEADING = ("suite", "environment", "peers")

_STAMP = ".venv/.provisioned"
_TAIL_LINES = 8
_GPU_BUILD = (
    "if command -v nvcc >/dev/null && nvidia-smi -L >/dev/null 2>&1; then export HOROVOD_GPU_OPERATIONS=NCCL; fi"
)


class Log:
    """What a host printed, in a file here; the last line is the session's status."""

    def __init__(self, path: Path, session: Session) -> None:
        self.path = path
        self._session = session
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")

    def take(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)
        lines = data.decode(errors="replace").strip().splitlines()
        if lines:
            self._session.status = lines[-1].strip()[:80]

    def tail(self) -> str:
        lines = self.path.read_text(errors="replace").strip().splitlines()[-_TAIL_LINES:]
        return "\n    ".join(line[:200] for line in lines)


@dataclass
class Provisioner:
    """Provisions one host after the other, or all at once: `each` of `Sessions` calls it from a thread per host."""

    suite: Parcel
    wheels: dict[str, Parcel] = field(default_factory=dict)  # by their folder
    logs: Path = Path()

    def __call__(self, session: Session) -> tuple[str, str, str]:
        host = session.host
        log = Log(self.logs / host.name / "provision.log", session)
        files = deploy(session, self.suite)
        if host.wheels:
            send(session, self.wheels[host.wheels], "wheels")
        links = [_link(session, ".venv", host.environment), _link(session, ".peers", host.peers_folder)]
        environment = (
            f"linked{', as before' * (links[0] == 'unchanged')}" if host.environment else self._install(session, log)
        )
        self._try(session, log)
        peers = f"linked{', as before' * (links[1] == 'unchanged')}" if host.peers_folder else _peers(session, log)
        return files, environment, peers

    def _install(self, session: Session, log: Log) -> str:
        """The environment, unless it was made the same way before."""
        host = session.host
        wanted = self.stamp(host)
        workdir = f"{quoted(host.workdir)}/suite"
        if session.run(f"sh -c {shlex.quote(f'cat {workdir}/{_STAMP} 2>/dev/null || true')}").strip() == wanted:
            return "unchanged"
        script = f"scripts/setup_venv.sh {quoted(host.python)} .venv {shlex.quote(host.torch_index)} {host.role}"
        _shell(session, log, f"{_pip_settings(host)}{script} && printf %s {wanted} >{_STAMP}", "the environment")
        return "installed"

    def stamp(self, host: Host) -> str:
        """Changes with everything that decides how the environment is made."""
        parts = [host.role, host.python, host.torch_index]
        parts += [self.suite.sums[path] for path in ("pyproject.toml", "scripts/setup_venv.sh")]
        if host.wheels:
            parts.append(self.wheels[host.wheels].digest)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _try(self, session: Session, log: Log) -> None:
        _shell(session, log, ".venv/bin/python -c 'import byteps.server, msgspec, numpy, scripts.agent'", "trying it")


def _link(session: Session, name: str, target: str) -> str:
    return session.program("host_files", "link", session.host.workdir, name, target).strip()


def _peers(session: Session, log: Log) -> str:
    """What each peer's own script says: nothing where it is complete."""
    host = session.host
    results = []
    for peer in host_peers(host):
        settings = f"{_pip_settings(host)}PYTHON={quoted(host.python)} TORCH_INDEX={shlex.quote(host.torch_index)}"
        before = log.path.stat().st_size
        try:
            _shell(
                session,
                log,
                f"{_GPU_BUILD}\n{settings} scripts/install_{peer.replace('-', '_')}.sh .peers/{peer}",
                peer,
            )
        except HostFailed as failure:
            if failure.state == "unreachable":
                raise
            results.append(f"{peer} NOT INSTALLED, see {log.path}")
            continue
        results.append(f"{peer} {'installed' if log.path.stat().st_size > before else 'unchanged'}")
    return ", ".join(results) or "-"


def _pip_settings(host: Host) -> str:
    """For pip and every pip that it starts: from the wheels alone."""
    return f"PIP_NO_INDEX=1 PIP_FIND_LINKS={quoted(host.workdir)}/wheels " if host.wheels else ""


def _shell(session: Session, log: Log, script: str, what: str) -> None:
    """A command in WORKDIR/suite, its output in the log; it ends with the session."""
    session.status = what
    try:
        with held_open() as nothing:
            session.program(
                *("host_install", session.host.workdir, f"{{ {script}\n}} 2>&1"),
                data=nothing,
                seconds=INSTALL_SECONDS,
                take=log.take,
            )
    except HostFailed as failure:
        if failure.state == "unreachable":
            raise
        if not log.tail():
            raise HostFailed(f"{what}: {failure.reason}", failure.todo) from None
        raise HostFailed(
            f"{what}: {failure.reason}, {log.path} ends with\n    {log.tail()}",
            "mend that, then the same command again",
        ) from None


def provision(site: Site, logs: Path, *, tell: Callable[[str], None] = print) -> tuple[str, list[str]]:
    """The table, and the names of the hosts that failed."""
    folders = {host.wheels for host in site.hosts if host.wheels}
    wheels = {folder: parcel(Path(folder).expanduser(), wheels_in(folder)) for folder in folders}
    work = Provisioner(suite=suite(tell), wheels=wheels, logs=logs)
    with Sessions(site, tell=tell) as sessions:
        done = sessions.each("provisioning", work, seconds=(2 + 5) * INSTALL_SECONDS)
        return sessions.table(done, HEADING), list(sessions.failures)


def wheels_in(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).expanduser().glob("*.whl"))


def deploy_all(site: Site, *, tell: Callable[[str], None] = print) -> tuple[str, list[str]]:
    """The suite's files alone."""
    sent = suite(tell)
    with Sessions(site, tell=tell) as sessions:
        done = sessions.each("deploying", lambda session: (deploy(session, sent),), seconds=SEND_SECONDS)
        return sessions.table(done, HEADING[:1]), list(sessions.failures)
