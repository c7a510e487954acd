"""An agent's work: starts processes for the conductor, passes their pipes on, answers questions about its host.

One asyncio loop does all that waits; one thread, "requests", does in order what blocks (tools, the watch, the end of
processes).  `serve` returns when the connection is over, and then nothing that it started is left.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts import caps, descent, hostinfo
from scripts.fidelity import FidelityError, Watch
from scripts.leftovers import start_ticks
from scripts.process import LocalProcess
from scripts.relay import Message, Relay

SILENCE_SECONDS = 30.0
PROTOCOL = 1

_TERM_SECONDS = 2.0
_OUTPUT_SECONDS = 0.5  # what an ended process wrote arrives before the news of its end, unless a child holds the pipe


class HostService:
    """`keep_undo` is told the tc commands that remove the caps whenever they change, in case this process is killed."""

    def __init__(self, name: str, token: str, keep_undo: Callable[[list[list[str]]], None]) -> None:
        self._name = name
        self._token = token
        self._guardian = os.getppid()  # the heir of orphans
        self._keep_undo = keep_undo
        self._undo: list[list[str]] = []
        self._nics: tuple[str, ...] = ()
        self._watch: Watch | None = None
        self._processes: dict[int, LocalProcess] = {}  # by the conductor's number
        self._ends: set[asyncio.Task[None]] = set()
        self._requests = ThreadPoolExecutor(1, thread_name_prefix="requests")
        self._leaving = False

    async def serve(self, sock: socket.socket) -> str:
        """Until the connection is over; "" after the conductor's goodbye or a signal, else why."""
        relay = await Relay.over(sock, "conductor", SILENCE_SECONDS)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                loop.add_signal_handler(number, self._stop, relay)
        relay.send("hello", name=self._name, protocol=PROTOCOL, home=str(Path.home()))
        refused = ""
        try:
            async for message in relay.messages():
                if message["op"] == "refused":
                    refused = str(message["reason"])
                elif message["op"] == "goodbye":
                    self._stop(relay)
                else:
                    self._take(relay, message)
        finally:
            for task in self._ends:
                task.cancel()
            await loop.run_in_executor(None, self._clean_up)
            self._requests.shutdown(cancel_futures=True)
        return "" if self._leaving else refused or f"lost the conductor: {relay.end}"

    def _stop(self, relay: Relay) -> None:
        """Ends everything, then hangs up, so that the conductor knows when it is done."""
        if not self._leaving:
            self._leaving = True
            ended = asyncio.get_running_loop().run_in_executor(None, self._clean_up)
            ended.add_done_callback(lambda _: relay.hang_up())

    def _clean_up(self) -> None:
        descent.end(self._pids, term_seconds=_TERM_SECONDS)
        try:
            self._uncap()
        except (caps.CapError, OSError, subprocess.SubprocessError) as error:
            print(f"a cap is left on {', '.join(self._nics)}: {error}", file=sys.stderr)
        for process in self._processes.values():
            process.poll()

    def _take(self, relay: Relay, message: Message) -> None:
        op = message.pop("op")
        if op == "welcome":
            relay.expect_life_within(message["silence_seconds"])
        elif op == "signal":
            self._signal(**message)
        elif op == "start":
            self._start(relay, **message)
        else:
            task = asyncio.create_task(self._answer(relay, op, **message), name=op)
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)

    async def _answer(self, relay: Relay, op: str, request: int, **content: Any) -> None:
        work: dict[str, Callable[..., Any]] = {
            "facts": self._facts,
            "counters": lambda: hostinfo.counters(self._nics),
            "cpu seconds": lambda: hostinfo.cpu_seconds(self._pids()),
            "pids": self._pids,
            "end orphans": self._end_orphans,
            "watch": self._begin_watch,
            "unwatch": self._end_watch,
            "cap": self._cap,
            "uncap": self._uncap,
        }
        try:
            if op not in work:
                raise ValueError(f"this agent does not know {op!r}; deploy the same version everywhere")
            value = await asyncio.get_running_loop().run_in_executor(self._requests, lambda: work[op](**content))
        except (OSError, ValueError, RuntimeError, subprocess.SubprocessError) as error:
            relay.send("reply", request=request, error=str(error) or type(error).__name__)
        else:
            relay.send("reply", request=request, value=value)

    # processes

    def _start(
        self,
        relay: Relay,
        *,
        request: int,
        number: int,
        argv: list[str],
        env: dict[str, str] | None,
        cwd: str | None,
        streams: list[str],
    ) -> None:
        """`streams`: of 0, 1 and 2, "pipe", "null", "inherit" or, of 2, "stdout"."""
        if self._leaving:
            relay.send("reply", request=request, error=f"cannot start {argv[0]}: this agent is leaving")
            return
        ours: dict[int, int] = {}
        theirs: list[int | None] = []
        try:
            for stream, kind in enumerate(streams):
                if kind == "pipe":
                    reading, writing = os.pipe()
                    ours[stream] = writing if stream == 0 else reading
                    theirs.append(reading if stream == 0 else writing)
                else:
                    theirs.append({"null": subprocess.DEVNULL, "stdout": subprocess.STDOUT, "inherit": None}[kind])
            process = LocalProcess(
                argv,
                env={**(os.environ if env is None else env), descent.MARK: self._token},
                cwd=cwd,
                stdin=theirs[0],
                stdout=theirs[1],
                stderr=theirs[2],
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            for fd in ours.values():
                os.close(fd)
            relay.send("reply", request=request, error=f"cannot start {argv[0]}: {error}")
            return
        finally:
            for theirs_end in theirs:
                if theirs_end is not None and theirs_end >= 0:  # the constants of subprocess are negative
                    os.close(theirs_end)
        self._processes[number] = process
        outflows = [relay.outflow(f"{number}/{stream}", fd) for stream, fd in ours.items() if stream > 0]
        if 0 in ours:
            relay.inflow(f"{number}/0", ours[0])
        relay.send("reply", request=request, value=process.pid)
        task = asyncio.create_task(self._await_end(relay, number, process, outflows), name=f"end of {argv[0]}")
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def _await_end(
        self, relay: Relay, number: int, process: LocalProcess, outflows: list["asyncio.Task[None]"]
    ) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        pidfd = os.pidfd_open(process.pid)
        loop.add_reader(pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        code = process.wait()
        relay.close_inflow(f"{number}/0")
        if outflows:
            await asyncio.wait(outflows, timeout=_OUTPUT_SECONDS)
        del self._processes[number]
        relay.send("exit", number=number, code=code)

    def _signal(self, number: int, sign: int, group: bool) -> None:
        """For a process that is over there is nothing to do."""
        if (process := self._processes.get(number)) is not None:
            if group:
                process.end(signal.Signals(sign))
            else:
                process.send_signal(sign)

    def _pids(self) -> list[int]:
        """All that was started here, whatever became of its parents."""
        return sorted({*descent.marked(self._token), *self._tree()})

    def _tree(self) -> list[int]:
        """By descent alone: half the work, and complete in the middle of an exec, when a process shows no mark."""
        started = [process.pid for process in list(self._processes.values()) if start_ticks(process.pid) is not None]
        heir = [self._guardian] if os.getppid() == self._guardian else []
        return [*started, *descent.below([*heir, *started], but_for=os.getpid())]

    def _end_orphans(self) -> int:
        found = len(self._pids())
        if left := descent.end(self._pids) if found else []:
            raise RuntimeError(f"processes {left} do not end after SIGKILL; look at /proc/PID/stack")
        return found

    # the host

    def _facts(self, interfaces: list[str], address: str) -> dict[str, Any]:
        self._nics = hostinfo.nics(interfaces, address)
        return {"nics": self._nics, "facts": hostinfo.facts(self._nics)}

    def _begin_watch(self) -> None:
        if self._watch is not None:  # the one before was given up
            with contextlib.suppress(FidelityError):
                self._end_watch()
        self._watch = Watch(self._tree).__enter__()

    def _end_watch(self) -> dict[str, float]:
        if self._watch is None:
            raise ValueError("no watch was begun")
        watch, self._watch = self._watch, None
        watch.__exit__(None, None, None)
        return asdict(watch.fidelity)

    def _cap(self, bytes_per_s: float) -> None:
        self._uncap()
        for nic in self._nics:
            self._undo.append(caps.cap(nic, bytes_per_s))
            self._keep_undo(self._undo)

    def _uncap(self) -> None:
        while self._undo:
            caps.tc(self._undo[-1])
            self._undo.pop()
            self._keep_undo(self._undo)
