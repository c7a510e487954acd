"""Starting jobs: all roles of a local one, or this machine's role of a distributed one; and ending what was started.

The only reader of the environment.  Every process is the leader of its own group, so that grandchildren end with it; a
guardian process holds a pipe to the launcher and ends the groups if the launcher itself is killed.
"""

import contextlib
import ctypes
import io
import os
import queue
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from byteps import trace
from byteps.assign import Shares
from byteps.guardian import Guardian
from byteps.plan import load_plan
from byteps.rendezvous import log
from byteps.settings import Settings, SettingsError, read_settings

_VERDICT_SECONDS: Final = 4.0
_FINISH_SECONDS: Final = 15.0
_GRACE_SECONDS: Final = 3.0
_LAST_LINES_SECONDS: Final = 0.5
_TAIL_LINES: Final = 30
_PR_SET_PDEATHSIG: Final = 1


def settings_from_environment() -> Settings:
    """The settings of this process; names that mean nothing are warned about."""
    settings, warnings = read_settings(os.environ)
    for warning in warnings:
        log("settings", warning)
    return settings


def follow_plan(settings: Settings) -> tuple[Settings, Shares | None]:
    """A job's settings as its plan completes them, and the plan's shares; an error if it was made for another job."""
    if not settings.plan:
        return settings, None
    try:
        plan = load_plan(settings.plan)
    except (OSError, ValueError) as error:
        raise SettingsError(f"BYTEPS_PLAN={settings.plan!r} is not usable: {error}") from None
    if (plan.n, plan.k) != (settings.num_workers, settings.num_servers):
        raise SettingsError(
            f"BYTEPS_PLAN={settings.plan!r} is for {plan.n} GPU machines and {plan.k} CPU machines, the job has "
            f"{settings.num_workers} workers and {settings.num_servers} servers; plan for as many, or start as many"
        )
    if settings.placement == "hash":
        raise SettingsError("BYTEPS_KEY_HASH_FN=hash knows the paper's shares only; leave it or BYTEPS_PLAN out")
    if not os.environ.get("BYTEPS_PARTITION_BYTES", "").strip():
        settings = replace(settings, partition=plan.partition_bytes)
    return settings, plan.shares


def die_with_parent() -> None:
    """In a child before exec: be killed when the parent's thread ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(eq=False)
class _Child:
    """A started process: its role's name, and the end of its output for the closing message."""

    name: str
    process: subprocess.Popen[bytes]
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    gone: bool = False  # with all processes of its group
    printer: threading.Thread | None = None

    @property
    def failed_by_itself(self) -> bool:
        """A worker that did not merely raise the job's verdict, which a failure elsewhere caused."""
        # torch.distributed prints the rank in front of each line of an uncaught exception.
        verdict = any(re.match(r"(\[rank\d+\]: )?byteps\.errors\.", line) for line in self.tail)
        return self.name.startswith("worker") and self.process.returncode > 0 and not verdict


class Job:
    """A job on this machine: scheduler, servers and workers as child processes."""

    def __init__(self) -> None:
        self._guardian = Guardian()
        self._children: list[_Child] = []
        self._ended: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._printing = threading.Lock()

    def start(
        self, name: str, command: Sequence[str], environment: dict[str, str], pass_fds: Sequence[int] = ()
    ) -> None:
        process = subprocess.Popen(
            command,
            env={"PYTHONUNBUFFERED": "1", **os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._guardian.watch(process.pid)
        child = _Child(name, process)
        self._children.append(child)
        child.printer = threading.Thread(target=self._print, args=(child,), name=f"{name} output", daemon=True)
        child.printer.start()
        threading.Thread(target=self._follow, args=(child,), name=name, daemon=True).start()

    def _print(self, child: _Child) -> None:
        """Print the child's lines behind its name, until the last process that holds its output has ended."""
        assert child.process.stdout is not None
        for raw in child.process.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            child.tail.append(line)
            # If our own output is closed (`| head`), the job still has to end well.
            with self._printing, contextlib.suppress(OSError):
                print(f"[{child.name}] {line}", flush=True)

    def _follow(self, child: _Child) -> None:
        """Report the child's end, after its last lines."""
        child.process.wait()
        try:
            os.killpg(child.process.pid, 0)
        except ProcessLookupError:
            child.gone = True
            self._guardian.forget(child.process.pid)
        assert child.printer is not None
        child.printer.join(_LAST_LINES_SECONDS)
        self._ended.put(child)

    def run(self, awaited: tuple[str, ...] = ("worker",)) -> int:
        """Until all workers (or whatever is awaited) succeeded or anything failed; the exit code."""
        running = {child for child in self._children if child.name.startswith(awaited)}
        first = None
        while running and first is None:
            child = self._ended.get()
            running.discard(child)
            if child.process.returncode:
                first = child
        if first is None:
            self._end(_FINISH_SECONDS)
            return 0
        return self._explain([first, *self._verdicts()])

    def _verdicts(self) -> list[_Child]:
        """After the first failure the others have a moment to say why; those that ended in it, in order."""
        deadline = time.monotonic() + _VERDICT_SECONDS
        ended: list[_Child] = []
        with contextlib.suppress(queue.Empty):
            while len(ended) + 1 < len(self._children):
                ended.append(self._ended.get(timeout=max(deadline - time.monotonic(), 0.0)))
        self._end(0.0)
        return [child for child in ended if child.process.returncode]

    def _explain(self, failed: list[_Child]) -> int:
        """Say which of the failures ended the job; its exit code."""
        killed = [child for child in failed if child.process.returncode < 0]
        guilty = [child for child in failed if child.failed_by_itself]
        workers = [child for child in failed if child.name.startswith("worker")]
        cause = (killed + guilty + workers + failed)[0]
        code = cause.process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        with contextlib.suppress(OSError):
            print(f"\nbyteps launch: {cause.name} {how}, which ended the job.  The end of its output:", flush=True)
            print("\n".join(f"  {line}" for line in cause.tail), flush=True)
        return code if code > 0 else 128 - code

    def _end(self, patience_seconds: float) -> None:
        """Wait for everybody to end, then SIGTERM, then SIGKILL, by process group."""
        steps = ((None, patience_seconds), (signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, _GRACE_SECONDS))
        for number, seconds in steps:
            deadline = time.monotonic() + seconds
            for child in self._children:
                if number is not None and not child.gone:
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


def torch_environment(settings: Settings) -> dict[str, str]:
    """What torchrun would tell a worker about itself, for scripts that ask; its rank only if it is known beforehand."""
    variables = {"RANK": settings.rank, "WORLD_SIZE": settings.size}
    variables |= {"LOCAL_RANK": settings.local_rank, "LOCAL_WORLD_SIZE": settings.local_size}
    return {name: str(value) for name, value in variables.items() if value >= 0}


def torch_has_master() -> bool:
    """Whether somebody has told torch.distributed where its ranks meet."""
    return bool(os.environ.get("MASTER_ADDR"))


def in_job() -> bool:
    """Whether this process was started as a worker of a job, as far as variables tell."""
    return bool(os.environ.get("DMLC_NUM_WORKER"))


def launch_local(settings: Settings, command: Sequence[str]) -> int:
    """Run `command` as every worker of a local job, with the scheduler and the servers that it needs; the exit code."""
    settings = replace(
        settings,
        role="worker",
        worker_id=-1,
        root_host="127.0.0.1",
        job_secret=settings.job_secret or secrets.token_hex(16),
    )
    settings, _ = follow_plan(settings)  # the scheduler follows it again: here for errors before anything starts
    if settings.trace:
        trace.prepare_files(Path(settings.trace), settings.size)
    job = Job()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a worker may print what this terminal's encoding has not

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
            for number in range(settings.num_servers if settings.networked else 0):
                server = replace(settings, role="server", server_id=number).to_environment()
                job.start(f"server {number}", role, server)
        for rank in range(settings.size):
            worker = _local_worker(settings, rank)
            job.start(f"worker {rank}", command, worker.to_environment() | torch_environment(worker))
        return job.run()
    except OSError as error:
        print(f"byteps launch: cannot start {error.filename!r}: {error.strerror}", file=sys.stderr)
        return 127
    except KeyboardInterrupt:
        print("byteps launch: interrupted; ending all roles", file=sys.stderr, flush=True)
        return 130
    finally:
        job.close()
        if settings.trace:
            with contextlib.suppress(OSError):  # a full disk; the workers' own files are as good
                trace.join_files(Path(settings.trace), settings.size)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _local_worker(settings: Settings, rank: int) -> Settings:
    """One worker of a local job: of a machine that it emulates, or else for itself."""
    size = settings.workers_per_machine
    if size > 1:
        return replace(settings, worker_id=rank // size, local_rank=rank % size)
    return replace(settings, worker_id=rank, local_rank=rank, local_size=settings.num_workers, local_reduction=False)


def launch_machine(settings: Settings, command: Sequence[str]) -> int:
    """All workers of this machine, which are summed here (BYTEPS_LOCAL_SIZE), as child processes; the exit code."""
    if settings.worker_id < 0:
        raise SettingsError(
            f"BYTEPS_LOCAL_SIZE={settings.local_size} workers of this machine are to be summed together; set "
            f"DMLC_WORKER_ID to the machine's number, 0 to {settings.num_workers - 1}"
        )
    job = Job()

    def interrupted(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupted) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        for local_rank in range(settings.local_size):
            worker = replace(settings, local_rank=local_rank)
            job.start(f"worker {worker.rank}", command, worker.to_environment() | torch_environment(worker))
        return job.run()
    except OSError as error:
        print(f"byteps launch: cannot start {error.filename!r}: {error.strerror}", file=sys.stderr)
        return 127
    except KeyboardInterrupt:
        print("byteps launch: interrupted; ending the workers of this machine", file=sys.stderr, flush=True)
        return 130
    finally:
        job.close()
        for number, handler in previous.items():
            signal.signal(number, handler)


def launch_role(settings: Settings, command: Sequence[str]) -> int:
    """This machine's role of a distributed job, as DMLC_ROLE says; a worker's command replaces this process.

    Several workers per machine are started here, unless somebody has started them and says which one this is.
    """
    if settings.role != "worker":
        os.execv(sys.executable, [sys.executable, "-m", "byteps.role"])
    if settings.workers_per_machine > 1 and not os.environ.get("BYTEPS_LOCAL_RANK", "").strip():
        return launch_machine(settings, command) if settings.networked else launch_local(settings, command)
    try:
        os.execvpe(command[0], list(command), torch_environment(settings) | os.environ)
    except OSError as error:
        print(f"byteps launch: cannot start {command[0]!r}: {error.strerror}", file=sys.stderr)
        return 127
