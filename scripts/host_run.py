"""On a host: starts processes that outlive the ssh connection, tells how they are, shows their log, ends them.

    host_run.py prepare WORKDIR ADDRESS           forgets what ended; whole path of the work directory, a free port
    host_run.py start WORKDIR NAME < JSON         {"argv": [...], "files": {"secret": "..."}}
    host_run.py status WORKDIR
    host_run.py follow WORKDIR NAME OFFSET        the log from there on; at the end a zero byte and the exit code
    host_run.py stop WORKDIR

Sent along and run by `python -I -S -c`: standard library only, Python 3.8 or later.  WORKDIR/run holds, for a process
called NAME, NAME.pid ("pid start", where start are the clock ticks of its start, so that a reused pid is nobody's),
NAME.log, and afterwards NAME.exit.  A small supervisor beside each process writes the last.  Processes carry MARK in
their environment, and what an agent starts carries the agent's: by these, leftovers are found.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "SUITE_RUN"  # =WORKDIR/run
AGENT_MARK = b"SUITE_AGENT="  # of scripts.descent
NAMES = ("conductor", "agent")
TERM_SECONDS = {"conductor": 20.0, "agent": 15.0}  # an agent ends within 7 s all that it started
KILL_SECONDS = 5.0


def fail(reason: str, todo: str) -> NoReturn:
    sys.exit(f"{reason}; do: {todo}")


def start_ticks(pid: int) -> int | None:
    """None if there is no such process, or only a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, *fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else int(fields[18])


def alive(run: str, name: str) -> int | None:
    """The pid of a process that the pid file tells of and that still is that process, else None."""
    try:
        with open(os.path.join(run, f"{name}.pid")) as file:
            pid, ticks = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return pid if start_ticks(pid) == ticks else None


def alive_ones(run: str, name: str) -> list[int]:
    return [pid for pid in [alive(run, name)] if pid is not None]


def write(path: str, text: str) -> None:
    """At once: nobody reads half of it."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}.new")
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def start(workdir: str, name: str) -> None:
    order = json.load(sys.stdin)
    run, suite = os.path.join(workdir, "run"), os.path.join(workdir, "suite")
    os.makedirs(run, mode=0o700, exist_ok=True)
    os.chmod(run, 0o700)
    if (pid := alive(run, name)) is not None:
        fail(f"{name} runs already (pid {pid})", "`fab attach` to follow it, or `fab stop`")
    if not os.access(order["argv"][0], os.X_OK):
        fail(f"there is no {order['argv'][0]}", "`fab provision`")
    for file, text in order["files"].items():
        write(os.path.join(run, file), text)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(run, f"{name}.exit"))
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        with open(reading) as answer:
            text = answer.read()
        if not text.startswith("pid "):
            fail(f"the {name} does not start: {text or 'its supervisor ended'}", "see the message")
        print(text.split()[1])
        return
    os.setsid()
    os.close(reading)
    supervise(run, suite, name, order["argv"], writing)


def supervise(run: str, suite: str, name: str, argv: list[str], answer: int) -> NoReturn:
    """Holds nothing of the connection: its streams are /dev/null and the log."""
    log = os.open(os.path.join(run, f"{name}.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((null, log, log)):
        os.dup2(source, target)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            argv,
            cwd=suite,
            env={**os.environ, MARK: run, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
            preexec_fn=_listen_again,
        )
        write(os.path.join(run, f"{name}.pid"), f"{process.pid} {start_ticks(process.pid)}\n")
    except OSError as error:
        os.write(answer, str(error).encode())
        os._exit(1)
    os.write(answer, f"pid {process.pid}".encode())
    os.close(answer)
    code = process.wait()
    with contextlib.suppress(OSError):  # the folder may be gone
        write(os.path.join(run, f"{name}.exit"), f"{code}\n")
    os._exit(0)


def _listen_again() -> None:
    """Ignored signals are inherited; SIGHUP stays so."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def status(workdir: str) -> None:
    run = os.path.join(workdir, "run")
    found: dict[str, object] = {}
    for name in NAMES:
        pid = alive(run, name)
        found[name] = f"runs (pid {pid})" if pid is not None else ""
        if pid is None and os.path.exists(os.path.join(run, f"{name}.pid")):
            code = exit_code(run, name)
            found[name] = "ended without a word (killed?)" if code is None else f"ended with exit code {code}"
    found["leftovers"] = [f"{pid} {title}" for pid, title in leftovers(workdir)]
    print(json.dumps(found))


def exit_code(run: str, name: str) -> int | None:
    try:
        with open(os.path.join(run, f"{name}.exit")) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def leftovers(workdir: str) -> list[tuple[int, str]]:
    """(pid, command) of all that carries a mark of this work directory and belongs to no process of a pid file."""
    mark = f"{MARK}={os.path.join(workdir, 'run')}".encode()
    ours = {os.getpid(), *(pid for name in NAMES for pid in alive_ones(os.path.join(workdir, "run"), name))}
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or not ours.isdisjoint(ancestors(int(entry))):
            continue
        try:
            marks = read(f"/proc/{entry}/environ").split(b"\0")
            words = read(f"/proc/{entry}/cmdline").split(b"\0")
            folder = os.readlink(f"/proc/{entry}/cwd")
        except OSError:  # gone, or another user's
            continue
        of_agent = any(one.startswith(AGENT_MARK) for one in marks)
        here = folder.startswith(workdir + "/") or any(workdir.encode() + b"/" in word for word in words)
        if (mark in marks or (of_agent and here)) and start_ticks(int(entry)) is not None:
            found.append((int(entry), b" ".join(words)[:80].decode(errors="replace").strip()))
    return found


def ancestors(pid: int) -> list[int]:
    """Itself first."""
    found = [pid]
    with contextlib.suppress(OSError, ValueError):
        while found[-1] > 1:
            found.append(int(read(f"/proc/{found[-1]}/stat").rpartition(b")")[2].split()[1]))
    return found


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def follow(workdir: str, name: str, offset: str) -> None:
    """Until the process is over and its log is out, or nobody listens any more."""
    run = os.path.join(workdir, "run")
    log = os.path.join(run, f"{name}.log")
    if not os.path.exists(log):
        fail(f"no {name} was started here", "`fab run`")
    with open(log, "rb") as file:
        file.seek(int(offset))
        while True:
            pid = alive(run, name)  # before the log is read: what it wrote before its end is read, too
            while data := file.read(65536):
                sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            if pid is None:
                break
            if select.select([0], [], [], 0.3)[0] and not os.read(0, 1):
                return
    deadline = time.monotonic() + 2.0  # the supervisor is about to write it
    while (code := exit_code(run, name)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    sys.stdout.buffer.write(b"\0" + str(code).encode())


def stop(workdir: str) -> None:
    run = os.path.join(workdir, "run")
    ended = []
    for name in NAMES:
        if (pid := alive(run, name)) is not None:
            how = end([pid], functools.partial(alive_ones, run, name), TERM_SECONDS[name])
            ended.append(f"{name} (pid {pid}{how})")
    left = leftovers(workdir)
    if left:
        end([pid for pid, _ in left], lambda: [pid for pid, _ in leftovers(workdir)], 2.0)
        ended += [f"leftover {pid} {title}" for pid, title in left]
    for name in ("secret", *(f"{name}.pid" for name in NAMES)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(run, name))
    print(json.dumps(ended))


def end(pids: list[int], find: Callable[[], list[int]], seconds: float) -> str:
    """SIGTERM, then SIGKILL for all that `find` still finds."""
    for pid in pids:
        send(pid, signal.SIGTERM)
    if wait(find, seconds):
        return ""
    for pid in find():
        send(pid, signal.SIGKILL)
    if not wait(find, KILL_SECONDS):
        fail(f"processes {find()} do not end after SIGKILL", "look at /proc/PID/stack")
    return ", killed"


def wait(find: Callable[[], list[int]], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while find():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def prepare(workdir: str, address: str) -> None:
    run = os.path.join(workdir, "run")
    for name in NAMES:
        if (pid := alive(run, name)) is not None:
            fail(f"{name} runs already (pid {pid})", "`fab attach` to follow it, or `fab stop`")
        for ending in ("pid", "exit", "log"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(run, f"{name}.{ending}"))
    try:
        family, _, _, _, own = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as sock:
            sock.bind(own)
            print(json.dumps({"workdir": workdir, "port": sock.getsockname()[1]}))
    except OSError as error:
        fail(f"cannot listen on {address}: {error.strerror}", "give the address that the host itself has")


def main() -> None:
    command, workdir, *rest = sys.argv[1:]
    known: dict[str, Callable[..., None]] = {
        "prepare": prepare,
        "start": start,
        "status": status,
        "follow": follow,
        "stop": stop,
    }
    try:
        known[command](os.path.realpath(os.path.expanduser(workdir)), *rest)
    except OSError as error:
        if error.filename is None:
            raise
        fail(
            f"{error.filename}: {error.strerror}", "set install.workdir to a folder that this user may write, with room"
        )


if __name__ == "__main__":
    main()
