"""The conductor's hand on one host: connects to it, proves that it knows the secret, and does what it is told.

    python -m scripts.agent --conductor 10.0.0.1:29300 --name gpu0 --secret-file secret

Two processes.  The first one is the guardian: parent of the second and heir of every orphan below it.  The second one
talks and starts processes.  When the connection is lost, at the conductor's goodbye and at SIGTERM or SIGINT, the
second ends what it started, removes its caps and exits.  When it is killed, the guardian does that; when the guardian
is, the kernel tells the second one.
"""

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from byteps.errors import StartError
from byteps.handshake import connect, format_address, parse_address
from scripts import caps, descent
from scripts.host_service import HostService

_QUIET_SECONDS, _REPEAT_SECONDS = 5.0, 5.0  # without progress lines at first; then between two of them
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
Undo = list[list[str]]


def work(options: argparse.Namespace, secret: bytes, keep_undo: Callable[[Undo], None]) -> int:
    host, port = parse_address(options.conductor)
    where = format_address((host, port))
    started = time.monotonic()
    next_line = started + _QUIET_SECONDS

    def progress() -> None:
        nonlocal next_line
        if (now := time.monotonic()) >= next_line:
            next_line = now + _REPEAT_SECONDS
            waited = f"{now - started:.0f} s of {options.connect_seconds:.0f} s"
            print(f"{options.name}: waiting for the conductor at {where}, {waited}", flush=True)

    deadline = started + options.connect_seconds
    sock = connect(host, port, secret, deadline, what="the conductor", progress=progress)
    print(f"{options.name}: connected to the conductor at {where}", flush=True)
    service = HostService(options.name, secrets.token_hex(16), keep_undo)
    if reason := asyncio.run(service.serve(sock)):
        raise StartError(reason)
    return 0


def guard(child: int, undo: int) -> int:
    """Waits for the child and for every orphan; when the child is over, so is all that it started."""
    status = None
    while status is None:
        pid, code = os.waitpid(-1, 0)
        status = code if pid == child else None
    left = descent.end(lambda: descent.below([os.getpid()]))
    if left:
        print(f"processes {left} do not end after SIGKILL; look at /proc/PID/stack", file=sys.stderr)
    if lines := _read_all(undo).splitlines():
        for command in reversed(json.loads(lines[-1])):
            try:
                caps.tc(command)
            except caps.CapError as error:
                print(error, file=sys.stderr)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _read_all(fd: int) -> bytes:
    """What the child said; it is over, and whatever inherited the writing end is, too."""
    os.set_blocking(fd, False)
    data = b""
    try:
        while piece := os.read(fd, 65536):
            data += piece
    except BlockingIOError:
        pass
    return data


def _child(parent: int, options: argparse.Namespace, secret: bytes, undo: int) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)  # SIGKILL of a whole process group (timeout, a job manager) leaves one of the two
        descent.end_with_parent(parent, signal.SIGTERM)
        code = work(options, secret, lambda commands: _tell(undo, commands))
    except (StartError, ValueError, OSError) as error:
        print(f"agent {options.name}: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        code = 130
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _pass_on(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)


def _tell(undo: int, commands: Undo) -> None:
    os.write(undo, json.dumps(commands).encode() + b"\n")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.agent", description="Serves a conductor on this host.")
    parser.add_argument("--conductor", required=True, metavar="HOST:PORT")
    parser.add_argument("--name", required=True, help="of this host, as in the cluster file")
    parser.add_argument("--secret-file", required=True, type=Path, help="what the conductor has, too")
    parser.add_argument("--pid-file", type=Path, help="where to write the process id; removed at the end")
    parser.add_argument("--connect-seconds", type=float, default=120.0, help="how long to try (default 120)")
    options = parser.parse_args(argv)
    try:
        parse_address(options.conductor)
        secret = options.secret_file.read_bytes().strip()
        if not secret:
            raise ValueError(f"{options.secret_file} is empty; it must hold the secret that the conductor has")
    except (OSError, ValueError) as error:
        print(f"agent {options.name}: {error}", file=sys.stderr)
        return 2
    return _fork(options, secret)


def _fork(options: argparse.Namespace, secret: bytes) -> int:
    descent.become_subreaper()
    reading, writing = os.pipe()
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # until there is somebody to pass them on to
    try:
        if options.pid_file is not None:
            options.pid_file.write_text(f"{parent}\n")
    except OSError as error:
        print(f"agent {options.name}: {error}", file=sys.stderr)
        return 2
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
        os.close(reading)
        _child(parent, options, secret, writing)
    os.close(writing)
    for number in _ENDS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, lambda *_: _pass_on(child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
    try:
        return guard(child, reading)
    finally:
        if options.pid_file is not None:
            options.pid_file.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
