"""Runs on a cluster that need nobody who watches: an agent on every host and the conductor on the first GPU machine.

All are started once, detached, and then live by themselves: agents end with the conductor, and all of them when it is
lost.  This machine only follows the conductor's log, and may go away and come back.  The secret by which conductor and
agents know each other is made anew for every run, and goes to the hosts through the standard input of a program that
writes it into a file which only the user can read: it is in no command, no environment and no log.
"""

import contextlib
import json
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from byteps.hosts import Host, Site, resolved
from scripts.deploy import SEND_SECONDS, deploy, suite
from scripts.sessions import Sessions
from scripts.ssh import HostFailed, Session, held_open

Tell = Callable[[str], None]
HEADING = ("conductor", "agent", "left over")

_STEP_SECONDS = 60.0
_STOP_SECONDS = 90.0  # the conductor has 20 s, an agent 15 s, what is left 7 s
_FOLLOW_SECONDS = 30 * 24 * 3600.0
_RECONNECT_SECONDS = 600.0
_GOODBYE_SECONDS = 12.0  # between the conductor's end and that of the agents


class RunFailed(Exception):
    """Nothing was started, or not all of it; the text has the table of hosts, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to run."""

    names: tuple[str, ...]
    tier: str
    go_on: bool = False  # without hosts that fail


@dataclass(frozen=True, kw_only=True)
class State:
    """What runs on one host, or how it ended; "": nothing was started."""

    conductor: str
    agent: str
    leftovers: tuple[str, ...]

    @property
    def runs(self) -> bool:
        return self.conductor.startswith("runs") or self.agent.startswith("runs")

    @property
    def cells(self) -> tuple[str, str, str]:
        return self.conductor or "-", self.agent or "-", f"{len(self.leftovers)} processes" if self.leftovers else "-"


def state_of(session: Session) -> State:
    found = json.loads(session.program("host_run", "status", session.host.workdir))
    return State(conductor=found["conductor"], agent=found["agent"], leftovers=tuple(found["leftovers"]))


def status(site: Site, *, tell: Tell = print) -> tuple[str, dict[str, State], bool]:
    """The table, the states by host, and whether every host answered."""
    with Sessions(site, tell=tell) as sessions:
        states = sessions.each("asking", state_of, seconds=_STEP_SECONDS)
        table = sessions.table({name: state.cells for name, state in states.items()}, HEADING)
    return table, states, not sessions.failures


def conductor_of(site: Site, states: dict[str, State]) -> Host | None:
    """Where the conductor runs, else where it ran last."""
    ran = [host for host in site.hosts if host.name in states and states[host.name].conductor]
    runs = [host for host in ran if states[host.name].conductor.startswith("runs")]
    return next(iter(runs + ran), None)


def start(site: Site, order: Order, *, tell: Tell = print) -> Host:
    """The conductor's host, once everything runs; RunFailed if it does not, and then nothing does.

    The suite's files go to the hosts first: all run the same, and what is here.
    """
    with Sessions(site, tell=tell) as sessions:
        files = suite(tell)
        sessions.each("deploying", lambda session: deploy(session, files), seconds=SEND_SECONDS)
        prepared = sessions.each(
            "preparing",
            lambda session: json.loads(
                session.program("host_run", "prepare", session.host.workdir, session.host.address)
            ),
            seconds=_STEP_SECONDS,
        )
        if sessions.failures and not order.go_on:
            raise RunFailed(f"{sessions.table({})}\n--continue runs without these hosts")
        hosts = tuple(session.host for session in sessions.good)
        conductor = next((host for host in hosts if host.role == "gpu"), None)
        gpus = sum(host.role == "gpu" for host in hosts)
        if conductor is None or gpus < 2:
            have = f"{gpus} GPU machine{'s' * (gpus != 1)}"
            raise RunFailed(f"{sessions.table({})}\n{have}: there is nothing to synchronise below 2")
        workdirs = {host.name: prepared[host.name]["workdir"] for host in hosts}
        where = _format(conductor.address, prepared[conductor.name]["port"])
        cluster = resolved(replace(site, hosts=hosts), workdirs)
        secret = secrets.token_hex(32)

        def launch(session: Session) -> str:
            name = session.host.name
            workdir = workdirs[name]
            files = {"secret": f"{secret}\n"}
            if name == conductor.name:
                argv = conductor_argv(order, workdir, where)
                _start(session, "conductor", argv, {**files, "cluster.toml": cluster})
            _start(session, "agent", agent_argv(name, workdir, where), files)
            return "started"

        try:
            with _ctrl_c_later():
                started = sessions.each("starting", launch, seconds=_STEP_SECONDS)
        except KeyboardInterrupt:
            _stop_and_tell(site, tell)
            raise
        if len(started) < len(hosts):
            table = sessions.table({name: (text,) for name, text in started.items()})
            sessions.each("stopping", _stop, seconds=_STOP_SECONDS)
            raise RunFailed(f"{table}\nwhat had started was stopped")
    tell(f"{len(hosts)} agents started, the conductor on {conductor.name}; they go on if this machine is lost")
    return conductor


@contextlib.contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Ctrl-C in the block is raised after it: what is half started on a host would be missed by a stop right away."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def conductor_argv(order: Order, workdir: str, where: str) -> list[str]:
    return [
        *(f"{workdir}/suite/.venv/bin/python", "-m", "experiments", "run", *order.names, "--tier", order.tier),
        *("--on", "cluster", "--cluster", f"{workdir}/run/cluster.toml", "--listen", where),
        *("--secret-file", f"{workdir}/run/secret", *["--continue"] * order.go_on),
    ]


def agent_argv(name: str, workdir: str, where: str) -> list[str]:
    return [
        *(f"{workdir}/suite/.venv/bin/python", "-m", "scripts.agent", "--conductor", where, "--name", name),
        *("--secret-file", f"{workdir}/run/secret"),
    ]


def _format(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _start(session: Session, name: str, argv: Sequence[str], files: dict[str, str]) -> None:
    order = json.dumps({"argv": list(argv), "files": files}).encode()
    session.program("host_run", "start", session.host.workdir, name, data=[order])


class Follower:
    """Shows a conductor's log as it grows, over as many connections as that takes."""

    def __init__(self, site: Site, host: Host, *, write: Callable[[bytes], object], tell: Tell = print) -> None:
        self._site, self._host = site, host
        self._write, self._tell = write, tell
        self._seen = 0  # bytes of the log
        self._end: bytes | None = None  # after the zero byte

    def follow(self) -> int:
        """Until the conductor is over: its exit code.  HostFailed if its host cannot be reached for long."""
        lost_since: float | None = None
        while True:
            before = self._seen
            session = Session(self._host, self._site)
            try:
                session.open()
                self._read(session)
            except HostFailed as failure:
                if failure.state != "unreachable":
                    raise
                if lost_since is None or self._seen > before:
                    lost_since = time.monotonic()
                    self._tell(f"lost {self._host.name}: {failure.reason}; trying again, the run goes on there")
                if time.monotonic() > lost_since + _RECONNECT_SECONDS:
                    raise HostFailed(failure.reason, "`fab attach` when it is back", "unreachable") from None
                time.sleep(1.0)
            finally:
                session.close()
            if self._end is not None:
                return int(self._end) if self._end != b"None" else -1

    def _read(self, session: Session) -> None:
        with held_open() as nothing:
            session.program(
                *("host_run", "follow", session.host.workdir, "conductor", str(self._seen)),
                data=nothing,
                seconds=_FOLLOW_SECONDS,
                take=self._take,
            )

    def _take(self, data: bytes) -> None:
        text, zero, end = data.partition(b"\0")
        if self._end is not None:
            self._end += data
            return
        self._seen += len(text)
        self._write(text)
        if zero:
            self._end = end


def follow(site: Site, host: Host, *, tell: Tell = print) -> int:
    """Its exit code; Ctrl-C stops the run on all hosts, and is raised again."""

    def write(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()

    try:
        return Follower(site, host, write=write, tell=tell).follow()
    except KeyboardInterrupt:
        _stop_and_tell(site, tell)
        raise


def _stop_and_tell(site: Site, tell: Tell) -> None:
    tell("stopping on all hosts")
    table, _ = stop(site, tell=tell)
    tell(table)


def finish(site: Site, *, tell: Tell = print) -> tuple[str, bool]:
    """After the conductor's end: waits for the agents'; the table, and whether all hosts ended well."""
    with Sessions(site, tell=tell) as sessions:
        deadline = time.monotonic() + _GOODBYE_SECONDS

        def ended(session: Session) -> State:
            while (state := state_of(session)).runs and time.monotonic() < deadline:
                time.sleep(0.5)
            return state

        states = sessions.each("waiting for the agents to end", ended, seconds=_GOODBYE_SECONDS + _STEP_SECONDS)
        sessions.each("tidying up", _stop, seconds=_STOP_SECONDS)
        for name, state in states.items():
            if state.agent.startswith("runs"):  # it waits for a conductor that is over: no fault of this host
                states[name] = replace(state, agent="stopped")
            elif state.agent not in ("", "ended with exit code 0"):
                reason = f"its agent {state.agent}"
                sessions.failures.setdefault(name, HostFailed(reason, "`fab fetch`, then see agent.log"))
        return sessions.table({name: one.cells for name, one in states.items()}, HEADING), not sessions.failures


def _stop(session: Session) -> tuple[str]:
    ended = json.loads(session.program("host_run", "stop", session.host.workdir, seconds=_STOP_SECONDS))
    return (", ".join(ended) or "nothing ran",)


def stop(site: Site, *, tell: Tell = print) -> tuple[str, bool]:
    """Ends conductor, agents and what they left; the table, and whether every host answered."""
    with Sessions(site, tell=tell) as sessions:
        ended = sessions.each("stopping", _stop, seconds=_STOP_SECONDS)
        return sessions.table(ended, ("ended",)), not sessions.failures
