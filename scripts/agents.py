"""The conductor's connections to the agents of all hosts.

A thread of its own, "fleet", runs an asyncio loop that owns the connections (see `scripts.relay`); callers in other
threads wait for it with deadlines.  A host that is lost stays lost, and whatever ran on it is over with -9.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from byteps.handshake import Acceptor, format_address, listen
from scripts.host_service import PROTOCOL
from scripts.leftovers import LabError
from scripts.relay import Message, Relay
from scripts.remote_process import RemoteProcess, Streams

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


class HostLost(LabError):
    """An agent is gone, and its host with it."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"lost host {host}: {reason}")
        self.host = host


class Agent:
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
        if self.over.is_set():
            raise HostLost(self.host.name, self.relay.end)
        future = self.requests[request] = asyncio.get_running_loop().create_future()
        self.relay.send(op, request=request, **content)
        try:
            return await asyncio.wait_for(future, seconds)
        except TimeoutError:
            raise LabError(f"{self.host.name} did not answer {op!r} within {seconds:.0f} s") from None
        finally:
            del self.requests[request]


class Agents:
    """Connected from `up` to `down`.  Methods without underscore are safe from any thread."""

    def __init__(
        self,
        hosts: Sequence[HostLike],
        *,
        listen: tuple[str, int],
        secret: bytes,
        start_seconds: float,
        silence_seconds: float,
        tell: Callable[[str], None],
    ) -> None:
        self._hosts = {host.name: host for host in hosts}
        if len(self._hosts) != len(hosts):
            raise ValueError(f"host names must differ: {', '.join(host.name for host in hosts)}")
        self._listen = listen
        self._secret = secret
        self._start_seconds = start_seconds
        self._silence_seconds = silence_seconds
        self._tell = tell
        self._numbers = itertools.count()  # of requests and processes
        # Guards _agents, _lost and the return codes of processes; notified whenever one of them changes.
        self.news = threading.Condition()
        self._agents: dict[str, Agent] = {}  # connected and with facts
        self._lost: dict[str, str] = {}  # why, by host
        self._claimed: set[str] = set()  # connected at any time; of the loop's thread alone, as the next
        self._leaving = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def up(self) -> None:
        """Returns when the agents of all hosts are there; LabError names those that are not at the deadline."""
        sock = listen(*self._listen)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet", daemon=True)
        self._thread.start()
        self._acceptor = Acceptor(sock, self._secret, self._admit, lambda text: self._tell(f"fleet: {text}"))
        try:
            self._await_agents()
        except BaseException:
            self.down()
            raise

    def _await_agents(self) -> None:
        started = time.monotonic()
        next_line = started + _QUIET_SECONDS
        deadline = started + self._start_seconds
        with self.news:
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
                self.news.wait(min(next_line, deadline) - now)

    def down(self) -> None:
        """Says goodbye to all agents and waits until they have ended what runs on their hosts.  Again is harmless."""
        if self._loop is None or self._loop.is_closed():
            return
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

    @property
    def lost(self) -> dict[str, str]:
        """Why, by host."""
        with self.news:
            return dict(self._lost)

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts that are not lost, in the order of the site."""
        with self.news:
            return tuple(name for name in self._hosts if name in self._agents)

    def get(self, host: str) -> Agent:
        if host not in self._hosts:
            raise LabError(f"no host {host!r} in this site; it has {', '.join(self._hosts)}")
        with self.news:
            if host in self._lost:
                raise HostLost(host, self._lost[host])
            if host not in self._agents:
                raise LabError(f"the fleet is not up, so {host} cannot be asked; use `with`")
            return self._agents[host]

    def ask_all(self, op: str, **content: Any) -> dict[str, Any]:
        """The answers of the hosts that are left, by name."""
        if not self.names:
            raise LabError("no host is left: " + "; ".join(f"{host}: {reason}" for host, reason in self.lost.items()))
        return self._await(self._gather(op, content))

    def next_number(self) -> int:
        return next(self._numbers)

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

    def start(self, agent: Agent, process: RemoteProcess, message: dict[str, Any], streams: Streams) -> None:
        """Returns when it runs there; LabError says why it does not."""
        self._await(self._start(agent, process, message, streams))

    async def _start(self, agent: Agent, process: RemoteProcess, message: dict[str, Any], streams: Streams) -> None:
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

    def signal(self, agent: Agent, number: int, sign: signal.Signals, group: bool) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the fleet is down, and so is the process
            self._loop.call_soon_threadsafe(lambda: agent.relay.send("signal", number=number, sign=sign, group=group))

    def _await(self, work: Coroutine[Any, Any, _T]) -> _T:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(_ANSWER_SECONDS + _GOODBYE_SECONDS)

    # in the loop's thread, but for the first

    def _admit(self, sock: socket.socket, peer: str) -> None:
        assert self._loop is not None
        try:
            asyncio.run_coroutine_threadsafe(self._serve(sock, peer), self._loop)
        except RuntimeError:  # the fleet is down
            sock.close()

    async def _serve(self, sock: socket.socket, peer: str) -> None:
        relay = await Relay.over(sock, peer, _HELLO_SECONDS)
        agent: Agent | None = None
        async for message in relay.messages():
            if agent is not None:
                self._take(agent, message)
            elif reason := self._refusal(message):
                self._tell(f"fleet: refused the agent at {peer}: {reason}")
                relay.send("refused", reason=reason)
                relay.hang_up()
            else:
                relay.expect_life_within(self._silence_seconds)
                relay.send("welcome", silence_seconds=self._silence_seconds)
                agent = Agent(self._hosts[message["name"]], relay, message["home"])
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

    async def _greet(self, agent: Agent) -> None:
        host = agent.host
        asked = {"interfaces": list(host.interfaces), "address": host.address}
        try:
            answer = await agent.ask(next(self._numbers), "facts", asked)
        except LabError as error:
            self._lose(agent, str(error).removeprefix(f"{host.name}: "))
            agent.relay.hang_up()
            return
        agent.nics, agent.facts = tuple(answer["nics"]), answer["facts"]
        with self.news:
            if host.name not in self._lost:
                self._agents[host.name] = agent
            self.news.notify_all()

    def _take(self, agent: Agent, message: Message) -> None:
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

    def _over(self, agent: Agent, number: int, code: int) -> None:
        with self.news:
            if (process := agent.processes.pop(number, None)) is not None:
                process.returncode = code
            self.news.notify_all()

    def _lose(self, agent: Agent, reason: str) -> None:
        with self.news:
            if not self._leaving:
                self._lost.setdefault(agent.host.name, reason)
            self._agents.pop(agent.host.name, None)
            self.news.notify_all()
        for number in list(agent.processes):
            self._over(agent, number, _LOST)
        for future in agent.requests.values():
            if not future.done():
                future.set_exception(HostLost(agent.host.name, reason))
        agent.over.set()
