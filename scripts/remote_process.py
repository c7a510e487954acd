"""A process on another host, as its conductor holds it: like `subprocess.Popen[bytes]`, with real pipes.

`suite_paths` is what makes a command line of this machine one of another host.
"""

import os
import re
import selectors
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Self

from scripts.process import Stream


class RemoteProcess:
    """`news` is the fleet's condition, notified when a return code becomes known; `send_signal` tells the agent."""

    def __init__(
        self,
        host: str,
        args: list[str],
        news: threading.Condition,
        pipes: Mapping[int, IO[bytes]],
        send_signal: Callable[[signal.Signals, bool], None],
    ) -> None:
        self.host = host
        self.args = args
        self.pid = -1  # until the agent has said it
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = pipes.get(0)
        self.stdout: IO[Any] | None = pipes.get(1)
        self.stderr: IO[Any] | None = pipes.get(2)
        self._news = news
        self._send_signal = send_signal

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._news:
            if not self._news.wait_for(lambda: self.returncode is not None, timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """SIGKILL for the process alone; does nothing to one that is over."""
        if self.returncode is None:
            self._send_signal(signal.SIGKILL, False)

    def end(self, sign: signal.Signals) -> None:
        """A signal for its whole process group; does nothing to one that is over."""
        if self.returncode is None:
            self._send_signal(sign, True)

    def communicate(self, input: bytes | None = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Writes `input`, closes stdin, reads both outputs to their ends and waits; closes the pipes."""
        deadline = None if timeout is None else time.monotonic() + timeout
        left = memoryview(input or b"")
        output: dict[IO[Any], bytes] = {pipe: b"" for pipe in (self.stdout, self.stderr) if pipe is not None}
        with selectors.DefaultSelector() as selector:
            for pipe in output:
                selector.register(pipe, selectors.EVENT_READ, pipe)
            if self.stdin is not None and left:
                os.set_blocking(self.stdin.fileno(), False)
                selector.register(self.stdin, selectors.EVENT_WRITE, self.stdin)
            elif self.stdin is not None:
                self.stdin.close()
            while selector.get_map():
                for key, _ in selector.select(self._left(deadline, timeout)):
                    one: IO[Any] = key.data
                    if one is self.stdin:
                        left = self._write(left)
                        over = not left
                    else:
                        data = os.read(key.fd, 65536)
                        output[one] += data
                        over = not data
                    if over:
                        selector.unregister(one)
                        one.close()
        self.wait(self._left(deadline, timeout))
        return tuple(None if pipe is None else output[pipe] for pipe in (self.stdout, self.stderr))  # type: ignore[return-value]

    def _write(self, left: memoryview) -> memoryview:
        assert self.stdin is not None
        try:
            return left[os.write(self.stdin.fileno(), left) :]
        except BrokenPipeError:
            return left[len(left) :]

    def _left(self, deadline: float | None, timeout: float | None) -> float | None:
        if deadline is None:
            return None
        if (left := deadline - time.monotonic()) <= 0:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return left


class Streams:
    """Where a process's three streams go: what its agent is told (`kinds`), the caller's pipes, the fleet's ends."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.ours: dict[int, IO[bytes]] = {}  # the caller's ends
        self._relayed: dict[int, int] = {}  # the fleet's ends, until they are taken

    @classmethod
    def plan(cls, stdin: Stream, stdout: Stream, stderr: Stream) -> Self:
        """ValueError for what cannot be relayed."""
        made = cls()
        try:
            for number, stream in enumerate((stdin, stdout, stderr)):
                if number == 2 and (stream == subprocess.STDOUT or _same_file(stdout, stream)):
                    made.kinds.append("stdout")
                else:
                    made.kinds.append(made._plan(number, stream))
        except BaseException:
            made.close()
            raise
        return made

    def _plan(self, number: int, stream: Stream) -> str:
        if stream is None or stream == subprocess.DEVNULL:
            return "inherit" if stream is None else "null"
        if stream == subprocess.PIPE:
            reading, writing = os.pipe()
            self.ours[number] = os.fdopen(writing, "wb") if number == 0 else os.fdopen(reading, "rb")
            self._relayed[number] = reading if number == 0 else writing
            return "pipe"
        fd = stream if isinstance(stream, int) else stream.fileno()
        if number == 0 or fd < 0 or not stat.S_ISREG(os.fstat(fd).st_mode):
            allowed = "PIPE, DEVNULL or None" + (", or a regular file" if number else "")
            raise ValueError(f"stream {number} of a process on another host is {stream!r}; allowed are {allowed}")
        self._relayed[number] = os.dup(fd)  # the caller may close its own
        return "pipe"

    def take_inflows(self) -> list[tuple[int, int]]:
        """Streams with the descriptors that what they bring is to be written to; the taker closes them."""
        return [(number, self._relayed.pop(number)) for number in (1, 2) if number in self._relayed]

    def take_outflow(self) -> int | None:
        return self._relayed.pop(0, None)

    def close(self) -> None:
        for pipe in self.ours.values():
            pipe.close()
        for fd in self._relayed.values():
            os.close(fd)
        self._relayed.clear()


def _same_file(one: Stream, other: Stream) -> bool:
    fds = [stream.fileno() for stream in (one, other) if stream is not None and not isinstance(stream, int)]
    return len(fds) == 2 and os.path.sameopenfile(*fds)


def suite_paths(root: str, suite: str) -> Callable[[str], str]:
    """Maps a text in which paths under `root` occur, alone, in lists or behind "=", to one with those under `suite`.

    `root` counts only as a whole path: neither /else/root nor /root-2 is one.
    """
    if root.rstrip("/") == "":
        raise ValueError(f"the suite's folder cannot be {root!r}; run it from a folder of its own")
    path = re.compile(rf"(?<![\w./-]){re.escape(root.rstrip('/'))}(?![\w.~+-])")
    return lambda text: path.sub(lambda _: suite.rstrip("/"), text)
