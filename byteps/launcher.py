"""Starting jobs: all roles of a local one, or this machine's role of a distributed one; and ending what was started.

The only reader of the environment.  Every process is the leader of its own group, so that grandchildren end with it; a
guardian process holds a pipe to the launcher and ends the groups if the launcher itself is killed.
"""

import contextlib
import ctypes
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from byteps.guardian import Guardian
from byteps.rendezvous import log
from byteps.settings import Settings, read_settings

_VERDICT_SECONDS: Final = 2.0
_FINISH_SECONDS: Final = 15.0
_GRACE_SECONDS: Final = 3.0
_PR_SET_PDEATHSIG: Final = 1


def settings_from_environment() -> Settings:
    """The settings of this process; names that mean nothing are warned about."""
    settings, warnings = read_settings(os.environ)
    for warning in warnings:
        log("settings", warning)
    return settings


def die_with_parent() -> None:
    """In a child before exec: be killed when the parent's thread ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(eq=False)
class _Child:
    """A started process: its role's name, and the end of its output for the closing message."""

    name: str
    process: subprocess.Popen[bytes]
    tail: list[str]


class Job:
    """A job on this machine: scheduler, servers and workers as child processes."""

    def __init__(self) -> None:
        self._guardian = Guardian()
        self._children: list[_Child] = []
        self._ended: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._printing = threading.Lock()

    def start(self, name: str, command: Sequence[str], environment: dict[str, str], pass_fds: Sequence[int] = ()) -> None:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._guardian.watch(process.pid)
        child = _Child(name, process, [])
        self._children.append(child)
        threading.Thread(target=self._follow, args=(child,), name=name, daemon=True).start()

    def _follow(self, child: _Child) -> None:
        """Print the child's lines behind its name; report its end."""
        assert child.process.stdout is not None
        for raw in child.process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            child.tail = [*child.tail[-29:], line]
            with self._printing:
                print(f"[{child.name}] {line}", flush=True)
        child.process.wait()
        self._ended.put(child)

    def run(self) -> int:
        """Until all workers succeeded or anything failed; the exit code."""
        running = {child for child in self._children if child.name.startswith("worker")}
        first = None
        while running and first is None:
            child = self._ended.get()
            running.discard(child)
            if child.process.returncode:
                first = child
        # The others: after success they end by themselves, after a failure they have a moment to say why.
        self._end(_FINISH_SECONDS if first is None else _VERDICT_SECONDS)
        if first is None:
            return 0
        code = first.process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        print(f"\nbyteps launch: {first.name} {how}, which ended the job.  The end of its output:", flush=True)
        print("\n".join(f"  {line}" for line in first.tail), flush=True)
        return code if code > 0 else 128 - code

    def _end(self, patience_seconds: float) -> None:
        """Wait for everybody to end, then SIGTERM, then SIGKILL, by process group."""
        for number, seconds in ((None, patience_seconds), (signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, _GRACE_SECONDS)):
            deadline = time.monotonic() + seconds
            for child in self._children:
                if number is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.process.pid, number)
            for child in self._children:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(max(deadline - time.monotonic(), 0.0))
            if all(child.process.poll() is not None for child in self._children):
                break

    def close(self) -> None:
        """End everything, grandchildren included."""
        self._end(0.0)
        self._guardian.close()


def launch_local(settings: Settings, command: Sequence[str]) -> int:
    """Run `command` as every worker of a local job, with the scheduler and the servers that it needs; the exit code."""
    settings = replace(settings, job_secret=settings.job_secret or secrets.token_hex(16), root_host="127.0.0.1")
    job = Job()

    def interrupted(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupted) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        if settings.distributed:
            listener = socket.create_server(("127.0.0.1", 0))
            settings = replace(settings, root_port=listener.getsockname()[1])
            role = [sys.executable, "-m", "byteps.role"]
            scheduler = replace(settings, role="scheduler").to_environment()
            job.start("scheduler", [*role, str(listener.fileno())], scheduler, pass_fds=[listener.fileno()])
            listener.close()
            for number in range(settings.num_servers):
                server = replace(settings, role="server", server_id=number).to_environment()
                job.start(f"server {number}", role, server)
        for rank in range(settings.num_workers):
            worker = replace(settings, worker_id=rank, local_rank=rank, local_size=settings.num_workers)
            job.start(f"worker {rank}", command, worker.to_environment() | {"DMLC_NUM_WORKER": str(settings.num_workers)})
        return job.run()
    except FileNotFoundError as error:
        print(f"byteps launch: cannot start {error.filename!r}: no such program", file=sys.stderr)
        return 127
    except KeyboardInterrupt:
        print("byteps launch: interrupted; ending all roles", file=sys.stderr, flush=True)
        return 130
    finally:
        job.close()
        for number, handler in previous.items():
            signal.signal(number, handler)


def launch_role(settings: Settings, command: Sequence[str]) -> int:
    """This machine's role of a distributed job, as the DMLC_* variables say; a worker's command replaces this process."""
    if settings.role != "worker":
        os.execv(sys.executable, [sys.executable, "-m", "byteps.role"])
    try:
        os.execvp(command[0], list(command))
    except FileNotFoundError:
        print(f"byteps launch: cannot start {command[0]!r}: no such program", file=sys.stderr)
        return 127
