"""Starting jobs for tests: through `byteps launch`, or role by role as on a cluster.  Every wait has a deadline."""

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MARKER = "LOOP_TEST_MARKER"
PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_SECONDS = 60.0  # for anything that only a broken job never does


def marked_processes(marker: str) -> dict[int, str]:
    """The living processes, except this one, whose environment carries this test's marker."""
    wanted = f"{MARKER}={marker}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found[int(entry.name)] = command
    return found


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def plain_environment(extra: dict[str, str]) -> dict[str, str]:
    """This process's environment without settings of BytePS or one hash seed for all, and these.

    Output is buffered by line: unbuffered, the text and the end of a line are two writes, and a worker's service, which
    shares the worker's output, may write between them.
    """
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS_", "DMLC_", "PYTHONHASHSEED"))
    }
    return kept | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""} | extra


@dataclass
class Result:
    """A job that `byteps launch` ran."""

    code: int
    output: str
    seconds: float


def launch_command(workers: int, servers: int, command: Sequence[str], local_size: int = 1) -> list[str]:
    options = ["--workers", str(workers), "--servers", str(servers), "--local-size", str(local_size)]
    return [sys.executable, "-m", "byteps", "launch", *options, "--", *command]


def launch(
    program: str,
    *arguments: str,
    workers: int,
    servers: int,
    local_size: int = 1,
    seconds: float = PATIENCE_SECONDS,
    **environment: str,
) -> Result:
    """Run a program of PROGRAMS as every worker of a local job."""
    command = launch_command(workers, servers, [sys.executable, str(PROGRAMS / program), *arguments], local_size)
    started = time.monotonic()
    with subprocess.Popen(
        command,
        env=plain_environment(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise AssertionError(f"{program} was not over after {seconds:.0f} s:\n{output}") from None
    return Result(process.returncode, output, time.monotonic() - started)


class Roles:
    """A job whose roles a test starts one by one, as on a cluster; use as a context manager."""

    def __init__(self, folder: Path, *, workers: int, servers: int, **environment: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.workers = workers
        self.servers = servers
        self.common = {
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(self.port),
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "BYTEPS_JOB_SECRET": secrets.token_hex(8),
            "BYTEPS_START_TIMEOUT": "60",
        } | environment
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Roles":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes.values():
            process.wait(PATIENCE_SECONDS)

    def start(self, name: str, role: str, *command: str, **environment: str) -> None:
        settings = plain_environment(self.common | {"DMLC_ROLE": role} | environment)
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "byteps", "launch", "--", *command],
                env=settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def scheduler(self, **environment: str) -> None:
        self.start("scheduler", "scheduler", **environment)

    def server(self, number: int, name: str = "", **environment: str) -> None:
        environment = {"DMLC_SERVER_ID": str(number)} | environment
        self.start(name or f"server {number}", "server", **environment)

    def worker(self, rank: int, program: str, *arguments: str, name: str = "", **environment: str) -> None:
        environment = {"DMLC_WORKER_ID": str(rank)} | environment
        self.start(
            name or f"worker {rank}", "worker", sys.executable, str(PROGRAMS / program), *arguments, **environment
        )

    def everybody(self, program: str, *arguments: str) -> None:
        self.scheduler()
        for number in range(self.servers):
            self.server(number)
        for rank in range(self.workers):
            self.worker(rank, program, *arguments)

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait_for(self, name: str, text: str, seconds: float = PATIENCE_SECONDS) -> None:
        def said() -> bool:
            assert text in self.output(name) or self.processes[name].poll() is None, self.report(f"{name} ended early")
            return text in self.output(name)

        wait_until(said, f"{name} to say {text!r}", seconds)

    def wait(self, *names: str, seconds: float = PATIENCE_SECONDS) -> dict[str, int]:
        """Exit codes of these processes (default: all)."""
        deadline = time.monotonic() + seconds
        codes = {}
        for name in names or tuple(self.processes):
            try:
                codes[name] = self.processes[name].wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                raise AssertionError(self.report(f"{name} was not over after {seconds:.0f} s")) from None
        return codes

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """A signal for this one process, as from a shell."""
        self.processes[name].send_signal(number)

    def service_pid(self, rank: int) -> int:
        """The process of a worker's own summation service."""
        for pid, command in marked_processes(os.environ[MARKER]).items():
            if re.search(rf"byteps\.server --rank {rank} ", command):
                return pid
        raise AssertionError(f"no summation service of worker {rank} among {marked_processes(os.environ[MARKER])}")

    def status_megabytes(self, name: str) -> float:
        """The most memory that a process has used so far."""
        status = Path(f"/proc/{self.processes[name].pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024 / 1e6

    def report(self, headline: str) -> str:
        logs = "\n".join(f"--- {name}\n{self.output(name)}" for name in self.processes)
        return f"{headline}\n{logs}"


def errors(output: str) -> list[str]:
    """What the programs print about exceptions: "error KIND: text"."""
    return re.findall(r"^(?:\[[^]]*\] )?error (.*)$", output, re.MULTILINE)
