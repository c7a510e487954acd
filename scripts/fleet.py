"""Real hosts as a stage (`scripts.stage`): one agent on each of them connects to the `Fleet` of the conductor.

    with Fleet(site, listen=("10.0.0.1", 29300), secret=secret, root=ROOT) as fleet:
        process = fleet.popen("gpu0", [sys.executable, "-m", ...], stdin=PIPE, stdout=PIPE)

A thread of its own, "fleet", runs an asyncio loop that owns all connections (see `scripts.relay`); callers wait for it
with deadlines.  A host that is lost stays lost: its processes are over with -9, the fleet remembers why, `popen` on it
raises `HostLost`, and the others go on.  What is asked of all hosts is answered by those that are left.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

from byteps.handshake import Acceptor, format_address, listen
from scripts import calibrate, latency
from scripts.fidelity import Fidelity
from scripts.host_service import PROTOCOL
from scripts.leftovers import LabError
from scripts.netns import Counters
from scripts.process import Stream
from scripts.relay import Message, Relay
from scripts.remote_process import RemoteProcess, Streams, suite_paths

_QUIET_SECONDS = _REPEAT_SECONDS = 5.0  # without progress lines at first; then between two of them
_HELLO_SECONDS = 5.0
_ANSWER_SECONDS = 60.0  # for anything that an agent does itself: tools of its host have 20 s each
_GOODBYE_SECONDS = 15.0  # agents end processes for 7 s at most
_LOST = -9


_T = TypeVar("_T")


class HostLike(Protocol):
    """What the fleet needs of `byteps.hosts.Host`."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def interfaces(self) -> tuple[str, ...]: ...
    @property
    def nics(self) -> tuple[float, ...]: ...
    @property
    def suite(self) -> str: ...


class SiteLike(Protocol):
    """What the fleet needs of `byteps.hosts.Site`."""

    @property
    def hosts(self) -> Sequence[HostLike]: ...
    @property
    def provenance(self) -> Literal["emulated", "measured"]: ...
    @property
    def cap_bytes_per_s(self) -> float: ...


class HostLost(LabError):
    """An agent is gone, and its host with it."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"lost host {host}: {reason}")
        self.host = host


class _Agent:
    """The conductor's end of one connection.  Only the fleet's loop touches it, but for reading what never changes."""

    def __init__(self, host: HostLike, relay: Relay, home: str) -> None:
        self.host = host
        self.relay = relay
        self.home = home
        self.nics: tuple[str, ...] = ()
        self.facts: dict[str, str] = {}
        self.requests: dict[int, asyncio.Future[Any]] = {}
        self.processes: dict[int, RemoteProcess] = {}
        self.over = asyncio.Event()

    async def ask(self, request: int, op: str, content: Mapping[str, Any], seconds: float = _ANSWER_SECONDS) -> Any:
        future = self.requests[request] = asyncio.get_running_loop().create_future()
        self.relay.send(op, request=request, **content)
        try:
            return await asyncio.wait_for(future, seconds)
        except TimeoutError:
            raise LabError(f"{self.host.name} did not answer {op!r} within {seconds:.0f} s") from None
        finally:
            del self.requests[request]


def _at_home(path: str, home: str) -> str:
    return home + path[1:] if path == "~" or path.startswith("~/") else path


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
        if len(self._hosts) != len(site.hosts):
            raise ValueError(f"host names must differ: {', '.join(host.name for host in site.hosts)}")
        self._listen = listen
        self._secret = secret
        self._root = str(root)
        self._start_seconds = start_seconds
        self._silence_seconds = silence_seconds
        self._tell = tell
        self._numbers = itertools.count()  # of requests and processes
        # Guards _agents, _lost and the return codes of processes; notified whenever one of them changes.
        self._news = threading.Condition()
        self._agents: dict[str, _Agent] = {}  # connected and with facts
        self._lost: dict[str, str] = {}  # why, by host
        self._claimed: set[str] = set()  # connected at any time; of the loop's thread alone, as the next
        self._leaving = False
        self._cap_bytes_per_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    # up and down

    def __enter__(self) -> Self:
        sock = listen(*self._listen)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet", daemon=True)
        self._thread.start()
        self._acceptor = Acceptor(sock, self._secret, self._admit, lambda text: self._tell(f"fleet: {text}"))
        try:
            self._await_agents()
            if self.site.cap_bytes_per_s:
                self.cap(self.site.cap_bytes_per_s)
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._down()

    def _await_agents(self) -> None:
        started = time.monotonic()
        next_line = started + _QUIET_SECONDS
        deadline = started + self._start_seconds
        with self._news:
            while missing := [name for name in self._hosts if name not in self._agents]:
                if self._lost:
                    raise HostLost(*next(iter(self._lost.items())))
                if (now := time.monotonic()) >= deadline:
                    raise LabError(
                        f"no agent of {', '.join(missing)} within {self._start_seconds:.0f} s; look at run/agent.log "
                        f"in the work directory there, and whether {format_address(self._listen)} can be reached"
                    )
                if now >= next_line:
                    next_line = now + _REPEAT_SECONDS
                    here = f"{len(self._agents)} of {len(self._hosts)} agents are here"
                    waited = f"{now - started:.0f} s of {self._start_seconds:.0f} s"
                    self._tell(f"fleet: {here}, waiting for {', '.join(missing)}, {waited}")
                self._news.wait(min(next_line, deadline) - now)

    def _down(self) -> None:
        """Says goodbye to all agents and waits until they have ended what runs on their hosts."""
        assert self._loop is not None
        self._acceptor.close()
        self._await(self._say_goodbye())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _say_goodbye(self) -> None:
        self._leaving = True
        agents = list(self._agents.values())
        for agent in agents:
            agent.relay.send("goodbye")
        waits = [asyncio.create_task(agent.over.wait()) for agent in agents]
        if waits:
            _, late = await asyncio.wait(waits, timeout=_GOODBYE_SECONDS)
            for agent, wait in zip(agents, waits, strict=True):
                if wait in late:
                    self._tell(f"fleet: {agent.host.name} has not ended its processes within {_GOODBYE_SECONDS:.0f} s")
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(0.01)  # transports close in the rounds after

    # connections, in the loop's thread but for _admit

    def _admit(self, sock: socket.socket, peer: str) -> None:
        assert self._loop is not None
        try:
            asyncio.run_coroutine_threadsafe(self._serve(sock, peer), self._loop)
        except RuntimeError:  # the fleet is down
            sock.close()

    async def _serve(self, sock: socket.socket, peer: str) -> None:
        relay = await Relay.over(sock, peer, _HELLO_SECONDS)
        agent: _Agent | None = None
        async for message in relay.messages():
            if agent is not None:
                self._take(agent, message)
            elif reason := self._refusal(message):
                self._tell(f"fleet: refused the agent at {peer}: {reason}")
                relay.send("refused", reason=reason)
                relay.hang_up()
            else:
                relay.silence_seconds = self._silence_seconds
                relay.send("welcome", silence_seconds=self._silence_seconds)
                agent = _Agent(self._hosts[message["name"]], relay, message["home"])
                self._claimed.add(agent.host.name)
                greeting = asyncio.create_task(self._greet(agent))
        if agent is not None:
            self._lose(agent, relay.end)
            await greeting

    def _refusal(self, hello: Message) -> str:
        name, known = hello.get("name"), ", ".join(self._hosts)
        if hello.get("op") != "hello" or hello.get("protocol") != PROTOCOL:
            return "it speaks another version of this protocol; deploy the same version everywhere"
        if name not in self._hosts:
            return f"no host {name!r} here; the site has {known}"
        if name in self._lost:
            return f"host {name} was lost before ({self._lost[name]}); start the run again"
        if name in self._claimed:
            return f"an agent of {name} is here already; end that one or give this one its own name (of {known})"
        return ""

    async def _greet(self, agent: _Agent) -> None:
        host = agent.host
        asked = {"interfaces": list(host.interfaces), "address": host.address}
        try:
            answer = await agent.ask(next(self._numbers), "facts", asked)
        except LabError as error:
            self._lose(agent, str(error))
            agent.relay.hang_up()
            return
        agent.nics, agent.facts = tuple(answer["nics"]), answer["facts"]
        with self._news:
            if host.name not in self._lost:
                self._agents[host.name] = agent
            self._news.notify_all()

    def _take(self, agent: _Agent, message: Message) -> None:
        if message["op"] == "reply":
            future = agent.requests.get(message["request"])
            if future is not None and not future.done():
                if "error" in message:
                    future.set_exception(LabError(f"{agent.host.name}: {message['error']}"))
                else:
                    future.set_result(message["value"])
        elif message["op"] == "exit":
            agent.relay.stop_outflow(f"{message['number']}/0")
            self._over(agent, message["number"], message["code"])

    def _over(self, agent: _Agent, number: int, code: int) -> None:
        with self._news:
            if (process := agent.processes.pop(number, None)) is not None:
                process.returncode = code
            self._news.notify_all()

    def _lose(self, agent: _Agent, reason: str) -> None:
        with self._news:
            if not self._leaving:
                self._lost.setdefault(agent.host.name, reason)
            self._agents.pop(agent.host.name, None)
            self._news.notify_all()
        for number in list(agent.processes):
            self._over(agent, number, _LOST)
        for future in agent.requests.values():
            if not future.done():
                future.set_exception(HostLost(agent.host.name, reason))
        agent.over.set()

    # from any thread

    @property
    def lost(self) -> dict[str, str]:
        """Why, by host."""
        with self._news:
            return dict(self._lost)

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts that are not lost, in the order of the site."""
        with self._news:
            return tuple(name for name in self._hosts if name in self._agents)

    def address(self, host: str) -> str:
        return self._agent(host).host.address

    def interface(self, host: str) -> str:
        return self._agent(host).nics[0]

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
        agent = self._agent(host)
        path = suite_paths(self._root, _at_home(agent.host.suite, agent.home))
        streams = Streams.plan(stdin, stdout, stderr)
        number = next(self._numbers)
        process = RemoteProcess(
            host, list(argv), self._news, streams.ours, lambda sign, group: self._signal(agent, number, sign, group)
        )
        message = {
            "number": number,
            "argv": [path(text) for text in argv],
            "env": None if env is None else {name: path(value) for name, value in env.items()},
            "cwd": None if cwd is None else path(str(cwd)),
            "streams": streams.kinds,
        }
        try:
            self._await(self._start(agent, process, message, streams))
        except BaseException:
            streams.close()
            raise
        return process

    def pids(self) -> list[int]:
        return [pid for pids in self._ask_all("pids").values() for pid in pids]

    def end_orphans(self) -> int:
        return sum(self._ask_all("end orphans").values())

    def cpu_seconds(self) -> dict[str, float]:
        return self._ask_all("cpu seconds")

    def all_counters(self) -> dict[str, Counters]:
        """What the hosts' NICs counted, several as one.  A host cannot know the wire's bytes: they are 0."""
        seen = self._ask_all("counters")
        return {host: Counters(**counted, tx_wire_bytes=0, rx_wire_bytes=0) for host, counted in seen.items()}

    def watch(self) -> "FleetWatch":
        return FleetWatch(self._ask_all)

    def calibrate(self, seconds: float) -> calibrate.Calibration:
        """All NICs of the hosts that are left.  The lab's thresholds hold for an emulated site alone: a real network
        may be shared or unequal, so there the result passes when every flow reaches half of what was stated.
        """
        return calibrate.measure(
            self.popen,
            {name: self.address(name) for name in self.names},
            {name: self._rate(self._hosts[name]) for name in self.names},
            seconds=seconds,
            bounds=calibrate.MEASURED if self.provenance == "measured" else calibrate.EMULATED,
        )

    def one_way_seconds(self) -> float:
        near, far = self.names[:2]
        return latency.between(self.popen, near, far, self.address(far))

    def facts(self) -> dict[str, str]:
        """What the hosts say about themselves; where they differ, who says what: "A (gpu0, gpu1); B (cpu0)"."""
        with self._news:
            by_host = {name: agent.facts for name, agent in self._agents.items()}
        found = {}
        for key in sorted({key for facts in by_host.values() for key in facts}):
            hosts: dict[str, list[str]] = {}
            for name in self.names:
                hosts.setdefault(by_host[name].get(key, "none"), []).append(name)
            differing = "; ".join(f"{value} ({', '.join(names)})" for value, names in hosts.items())
            found[key] = next(iter(hosts)) if len(hosts) == 1 else differing
        return found

    def cap(self, bytes_per_s: float) -> None:
        """Every NIC sends at most so much from now on; LabError names a host that lacks the right."""
        self._ask_all("cap", bytes_per_s=bytes_per_s)
        self._cap_bytes_per_s = bytes_per_s

    def uncap(self) -> None:
        self._ask_all("uncap")
        self._cap_bytes_per_s = 0.0

    def _rate(self, host: HostLike) -> float:
        """Bytes per second of the host's first NIC, which has its address."""
        stated = host.nics[0]
        return min(stated, self._cap_bytes_per_s) if self._cap_bytes_per_s else stated

    def _agent(self, host: str) -> _Agent:
        if host not in self._hosts:
            raise LabError(f"no host {host!r} in this site; it has {', '.join(self._hosts)}")
        with self._news:
            if host in self._lost:
                raise HostLost(host, self._lost[host])
            if host not in self._agents:
                raise LabError(f"the fleet is not up, so {host} cannot be asked; use `with`")
            return self._agents[host]

    def _ask_all(self, op: str, **content: Any) -> dict[str, Any]:
        """The answers of the hosts that are left, by name."""
        if not self.names:
            raise LabError("no host is left: " + "; ".join(f"{host}: {reason}" for host, reason in self.lost.items()))
        return self._await(self._gather(op, content))

    async def _gather(self, op: str, content: dict[str, Any]) -> dict[str, Any]:
        agents = list(self._agents.values())
        asked = (agent.ask(next(self._numbers), op, content) for agent in agents)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = {}
        for agent, answer in zip(agents, answers, strict=True):
            if isinstance(answer, HostLost):
                continue
            if isinstance(answer, BaseException):
                raise answer
            found[agent.host.name] = answer
        return found

    async def _start(self, agent: _Agent, process: RemoteProcess, message: dict[str, Any], streams: Streams) -> None:
        number = message["number"]
        agent.processes[number] = process  # its end may arrive right behind the answer
        for stream, fd in streams.take_inflows():
            agent.relay.inflow(f"{number}/{stream}", fd)
        try:
            process.pid = await agent.ask(next(self._numbers), "start", message)
        except BaseException:
            agent.processes.pop(number, None)
            for stream in (1, 2):
                agent.relay.close_inflow(f"{number}/{stream}")
            raise
        if (stdin := streams.take_outflow()) is not None:
            if process.returncode is None:
                agent.relay.outflow(f"{number}/0", stdin)
            else:
                os.close(stdin)

    def _signal(self, agent: _Agent, number: int, sign: signal.Signals, group: bool) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the fleet is down, and so is the process
            self._loop.call_soon_threadsafe(lambda: agent.relay.send("signal", number=number, sign=sign, group=group))

    def _await(self, work: Coroutine[Any, Any, _T]) -> _T:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(_ANSWER_SECONDS + _GOODBYE_SECONDS)
