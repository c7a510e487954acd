"""Real hosts as a stage (`scripts.stage`): one agent on each of them connects to the `Fleet` of the conductor.

    with Fleet(site, listen=("10.0.0.1", 29300), secret=secret, root=ROOT) as fleet:
        process = fleet.popen("gpu0", [sys.executable, "-m", ...], stdin=PIPE, stdout=PIPE)

A host that is lost stays lost: its processes are over with -9, the fleet remembers why, `popen` on it raises
`HostLost`, and the others go on.  What is asked of all hosts is answered by those that are left.
"""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from scripts import calibrate, latency
from scripts.agents import Agents, HostLike, HostLost
from scripts.fidelity import Fidelity
from scripts.leftovers import LabError
from scripts.netns import Counters
from scripts.process import Stream
from scripts.remote_process import RemoteProcess, Streams, suite_paths

__all__ = ["Fleet", "FleetWatch", "HostLike", "HostLost", "SiteLike"]


class SiteLike(Protocol):
    """What the fleet needs of `byteps.hosts.Site`."""

    @property
    def hosts(self) -> Sequence[HostLike]: ...
    @property
    def provenance(self) -> Literal["emulated", "measured"]: ...
    @property
    def cap_bytes_per_s(self) -> float: ...


class FleetWatch:
    """Every host watches itself; of each figure, the worst host's is told (of the time, the longest)."""

    fidelity: Fidelity  # after leaving

    def __init__(self, ask_all: Callable[..., dict[str, Any]]) -> None:
        self._ask_all = ask_all

    def __enter__(self) -> Self:
        self._ask_all("watch")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            seen = [Fidelity(**one) for one in self._ask_all("unwatch").values()]
        except LabError:
            if error is not None:
                return  # what went wrong inside matters more
            raise
        self.fidelity = Fidelity(
            wall_seconds=max(one.wall_seconds for one in seen),
            lateness_p50_seconds=max(one.lateness_p50_seconds for one in seen),
            lateness_p99_seconds=max(one.lateness_p99_seconds for one in seen),
            run_queue_wait_share=max(one.run_queue_wait_share for one in seen),
            idle_share=min(one.idle_share for one in seen),
        )


class Fleet:
    """The hosts of a site, up inside `with`.  All methods are safe from any thread."""

    def __init__(
        self,
        site: SiteLike,
        *,
        listen: tuple[str, int],
        secret: bytes,
        root: Path,
        start_seconds: float = 120.0,
        silence_seconds: float = 30.0,
        tell: Callable[[str], None] = print,
    ) -> None:
        self.site = site
        self.provenance: Literal["emulated", "measured"] = site.provenance
        self._hosts = {host.name: host for host in site.hosts}
        self._root = str(root)
        self._cap_bytes_per_s = 0.0
        self._agents = Agents(
            site.hosts,
            listen=listen,
            secret=secret,
            start_seconds=start_seconds,
            silence_seconds=silence_seconds,
            tell=tell,
        )

    def __enter__(self) -> Self:
        self._agents.up()
        try:
            if self.site.cap_bytes_per_s:
                self.cap(self.site.cap_bytes_per_s)
        except BaseException:
            self._agents.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._agents.down()

    @property
    def lost(self) -> dict[str, str]:
        """Why, by host."""
        return self._agents.lost

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts that are not lost, in the order of the site."""
        return self._agents.names

    def address(self, host: str) -> str:
        return self._agents.get(host).host.address

    def more_addresses(self, host: str) -> tuple[str, ...]:
        return ()  # what a host answers is its first NIC's

    def interface(self, host: str) -> str:
        return self._agents.get(host).nics[0]

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
    ) -> RemoteProcess:
        """Starts a process on a host.  `env` None inherits its agent's environment, else it is all of it.

        Whatever lies under the fleet's root in `argv`, `env` and `cwd` becomes the host's.  None as a stream is the
        agent's log there.  A file must be a regular one: what the process writes is sent here and written into it.
        """
        agent = self._agents.get(host)
        path = suite_paths(self._root, _at_home(agent.host.suite, agent.home))
        streams = Streams.plan(stdin, stdout, stderr)
        number = self._agents.next_number()
        process = RemoteProcess(
            host,
            list(argv),
            self._agents.news,
            streams.ours,
            lambda sign, group: self._agents.signal(agent, number, sign, group),
        )
        message = {
            "number": number,
            "argv": [path(text) for text in argv],
            "env": None if env is None else {name: path(value) for name, value in env.items()},
            "cwd": None if cwd is None else path(str(cwd)),
            "streams": streams.kinds,
        }
        try:
            self._agents.start(agent, process, message, streams)
        except BaseException:
            streams.close()
            raise
        return process

    def pids(self) -> list[int]:
        return [pid for pids in self._agents.ask_all("pids").values() for pid in pids]

    def end_orphans(self) -> int:
        return sum(self._agents.ask_all("end orphans").values())

    def cpu_seconds(self) -> dict[str, float]:
        return self._agents.ask_all("cpu seconds")

    def all_counters(self) -> dict[str, Counters]:
        """What the hosts' NICs counted, several as one.  A host cannot know the wire's bytes: they are 0."""
        seen = self._agents.ask_all("counters")
        return {host: Counters(**counted, tx_wire_bytes=0, rx_wire_bytes=0) for host, counted in seen.items()}

    def watch(self) -> "FleetWatch":
        return FleetWatch(self._agents.ask_all)

    def calibrate(self, seconds: float) -> calibrate.Calibration:
        """All NICs of the hosts that are left.  The lab's thresholds hold for an emulated site alone: a real network
        may be shared or unequal, so there the result passes when every flow reaches half of what was stated.
        """
        names = self._two_at_least()
        rates = {name: self._rate(self._hosts[name]) for name in names}
        return calibrate.measure(
            self.popen,
            {name: self.address(name) for name in names},
            rates,
            calibrate.ring_of(rates),
            seconds=seconds,
            bounds=calibrate.MEASURED if self.provenance == "measured" else calibrate.EMULATED,
        )

    def one_way_seconds(self) -> float:
        near, far = self._two_at_least()[:2]
        return latency.between(self.popen, near, far, self.address(far))

    def facts(self) -> dict[str, str]:
        """What the hosts say about themselves; where they differ, who says what: "A (gpu0, gpu1); B (cpu0)"."""
        by_host = {name: self._agents.get(name).facts for name in self._agents.names}
        found = {}
        for key in sorted({key for facts in by_host.values() for key in facts}):
            hosts: dict[str, list[str]] = {}
            for name in by_host:
                hosts.setdefault(by_host[name].get(key, "none"), []).append(name)
            differing = "; ".join(f"{value} ({', '.join(names)})" for value, names in hosts.items())
            found[key] = next(iter(hosts)) if len(hosts) == 1 else differing
        return found

    def cap(self, bytes_per_s: float) -> None:
        """Every NIC sends at most so much from now on; LabError names a host that lacks the right."""
        self._agents.ask_all("cap", bytes_per_s=bytes_per_s)
        self._cap_bytes_per_s = bytes_per_s

    def uncap(self) -> None:
        self._agents.ask_all("uncap")
        self._cap_bytes_per_s = 0.0

    def _two_at_least(self) -> tuple[str, ...]:
        if len(names := self.names) < 2:
            lost = "; ".join(f"lost host {host}: {reason}" for host, reason in self.lost.items())
            raise LabError(f"links can only be measured between 2 hosts, here is {', '.join(names) or 'none'}; {lost}")
        return names

    def _rate(self, host: HostLike) -> float:
        """Bytes per second of the host's first NIC, which has its address."""
        stated = host.nics[0]
        return min(stated, self._cap_bytes_per_s) if self._cap_bytes_per_s else stated


def _at_home(path: str, home: str) -> str:
    return home + path[1:] if path == "~" or path.startswith("~/") else path
