"""On a host: runs an installation for as long as somebody listens, one at a time for a work directory.

    host_install.py WORKDIR SCRIPT           sh -c SCRIPT in WORKDIR/suite; its output, its exit code

Sent along and run by `python -I -S -c`: standard library only, Python 3.8 or later.  sshd leaves alone what it started
when a connection ends: an interrupted installation would go on unseen, and the next one would work beside it in the
same folders.  Here the end of the standard input ends it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from typing import NoReturn

TERM_SECONDS = 5.0


def only_one(folder: str) -> None:
    """Locks the folder until this process is over."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("something is being sent or installed here already, perhaps from another machine; do: wait for that")
    except OSError:  # a file system without locks
        pass


def install(suite: str, script: str) -> int:
    """The exit code, as a shell has it."""
    process = subprocess.Popen(["sh", "-c", script], cwd=suite, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while process.poll() is None:
            if select.select([0], [], [], 0.1)[0] and not os.read(0, 1):
                break
    finally:
        end(process)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def end(process: subprocess.Popen[bytes]) -> None:
    """The whole session's group, if the process is not over by itself."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + TERM_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):  # what ignored SIGTERM, perhaps below one that did not
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _terminated(_number: int, _frame: object) -> NoReturn:
    sys.exit(143)


def main() -> None:
    workdir, script = sys.argv[1:]
    suite = os.path.join(os.path.realpath(os.path.expanduser(workdir)), "suite")
    signal.signal(signal.SIGTERM, _terminated)
    only_one(suite)
    sys.exit(install(suite, script))


if __name__ == "__main__":
    main()
