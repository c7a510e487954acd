"""The processes of one launch on the hosts of a stage, and the orchestrator's side of the lock-step with its workers.

Every wait has a deadline and says for what and for whom it waited.  A worker that reports a failure, a process that
ends early and a deadline that passes are all the same to the caller: a `LaunchError` that carries the end of the log.
"""

import contextlib
import json
import os
import select
import selectors
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from baselines.launch import ROOT, Process
from scripts.stage import Process as Started
from scripts.stage import Stage

STOP_SECONDS = 15.0  # for processes that end by themselves
KILL_SECONDS = 5.0
WRITE_SECONDS = 60.0
LOG_LINES = 15


class LaunchError(RuntimeError):
    """A launch that gave no result; the text names the process, the wait and the end of its log."""


class _Worker:
    """The orchestrator's end of one driver's protocol."""

    def __init__(self, process: Process, popen: Started) -> None:
        assert popen.stdin is not None
        assert popen.stdout is not None
        os.set_blocking(popen.stdin.fileno(), False)
        self.process = process
        self._stdin = popen.stdin
        self.stdout = popen.stdout
        self._pending = b""
        self.events: list[dict[str, Any]] = []

    def say(self, word: str) -> None:
        """A workload is longer than a pipe holds, so a worker that does not read is noticed here."""
        left = memoryview(word.encode() + b"\n")
        deadline = time.monotonic() + WRITE_SECONDS
        while left:
            if not select.select([], [self._stdin], [], max(deadline - time.monotonic(), 0.0))[1]:
                raise LaunchError(f"{self.process.name} has read nothing for {WRITE_SECONDS:.0f} s")
            left = left[os.write(self._stdin.fileno(), left) :]

    def close(self) -> None:
        self.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def take(self) -> bool:
        """Read what is there; False at end of file.  Lines that are no events belong to a wrapper's chatter."""
        data = os.read(self.stdout.fileno(), 65536)
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    self.events.append(event)
        return bool(data)


class Crew:
    """The processes of one launch, from start to end; a context manager, so that none of them outlives it."""

    def __init__(self, stage: Stage, processes: list[Process], logs: Path) -> None:
        self._stage = stage
        self._processes = processes
        self._logs = logs
        self._running: list[tuple[Process, Started]] = []
        self.workers: list[_Worker] = []
        self.killed: list[str] = []  # what did not end by itself
        self._stopping = False

    def __enter__(self) -> "Crew":
        self._logs.mkdir(parents=True, exist_ok=True)
        try:
            for process in self._processes:
                self._start(process)
        except BaseException:
            self._end(0.0)
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._end(STOP_SECONDS if error is None else 0.0)

    def _log(self, process: Process) -> Path:
        return self._logs / f"{process.name.replace(' ', '-')}.log"

    def _start(self, process: Process) -> None:
        pipe = subprocess.PIPE if process.rank >= 0 else None
        with self._log(process).open("wb") as log:
            popen = self._stage.popen(
                process.host,
                process.argv,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **process.env},
                cwd=ROOT,
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or log,
                stderr=log,
            )
        self._running.append((process, popen))
        if process.rank >= 0:
            self.workers.append(_Worker(process, popen))

    def say(self, word: str) -> None:
        """One word to every worker; "stop" is the last."""
        self._stopping = word == "stop"
        for worker in self.workers:
            try:
                worker.say(word)
            except BrokenPipeError as error:
                raise self._death(worker.process) from error

    def expect(self, event: str, *, seconds: float) -> list[dict[str, Any]]:
        """The next event of every worker, which must be of this kind."""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            for worker in self.workers:
                if not worker.events:
                    selector.register(worker.stdout, selectors.EVENT_READ, worker)
            while any(not worker.events for worker in self.workers):
                left = deadline - time.monotonic()
                if left <= 0:
                    missing = [worker.process.name for worker in self.workers if not worker.events]
                    raise LaunchError(
                        f"waited {seconds:.0f} s for {event!r} from {', '.join(missing)}"
                        + self._tail(next(p for p in self._processes if p.name == missing[0]))
                    )
                for key, _ in selector.select(min(left, 0.5)):
                    self._hear(key.data, event)
                    if key.data.events:
                        selector.unregister(key.data.stdout)
                self._check_alive()
        return [worker.events.pop(0) for worker in self.workers]

    def _hear(self, worker: _Worker, expected: str) -> None:
        open_still = worker.take()
        if worker.events and worker.events[0]["event"] == "failed":
            raise LaunchError(f"{worker.process.name}: {worker.events[0].get('error')}" + self._tail(worker.process))
        if worker.events and worker.events[0]["event"] != expected:
            raise LaunchError(f"{worker.process.name} said {worker.events[0]['event']!r}; expected {expected!r}")
        if not open_still and not worker.events:
            raise self._death(worker.process)

    def _check_alive(self) -> None:
        """Servers and the scheduler must live until the workers were told to stop, and end without an error then."""
        for process, popen in self._running:
            code = popen.poll() if process.rank < 0 else None
            if code is not None and (code != 0 or not self._stopping):
                raise self._death(process)

    def _death(self, process: Process) -> LaunchError:
        popen = next(popen for other, popen in self._running if other is process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            popen.wait(timeout=1.0)
        code = popen.returncode
        how = "ended its output" if code is None else f"was killed by signal {-code}" if code < 0 else f"exited {code}"
        return LaunchError(f"{process.name} {how} while others were waiting for it" + self._tail(process))

    def _tail(self, process: Process) -> str:
        path = self._log(process)
        lines = path.read_text(errors="replace").splitlines()[-LOG_LINES:] if path.exists() else []
        return f"\nend of {path}:\n" + "\n".join(f"  {line}" for line in lines) if lines else f"\n{path} is empty"

    def _end(self, patience: float) -> None:
        """Wait for those that end by themselves, then end the rest; whatever they left behind goes too."""
        deadline = time.monotonic() + patience
        for _, popen in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                popen.wait(timeout=max(deadline - time.monotonic(), 0.0))
        for sign in (signal.SIGTERM, signal.SIGKILL):
            alive = [(process, popen) for process, popen in self._running if popen.poll() is None]
            if sign == signal.SIGTERM and patience:
                self.killed = [process.name for process, _ in alive]
            for _, popen in alive:
                popen.end(sign)
            deadline = time.monotonic() + KILL_SECONDS
            for _, popen in alive:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    popen.wait(timeout=max(deadline - time.monotonic(), 0.0))
        if orphans := self._stage.end_orphans():
            self.killed.append(f"{orphans} orphans")
        for worker in self.workers:
            worker.close()
