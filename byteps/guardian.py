"""Ends process groups when the one who started them is gone without having done it: after SIGKILL, nobody else can.

Runs as a process of its own (`python -I -S guardian.py`), reading "+PGID" and "-PGID" lines from its standard input.
At the end of input it kills the groups still listed.  Standard library only: it starts in milliseconds.
"""

import contextlib
import os
import signal
import subprocess
import sys


class Guardian:
    """The launcher's end: tells which groups to end if this process dies."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.abspath(__file__)], stdin=subprocess.PIPE, start_new_session=True
        )

    def watch(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """Kills what is still watched."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed, a reader thread was late
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        sign, group = line[0], int(line[1:])
        if sign == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
