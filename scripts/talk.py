"""A conversation of JSON lines with a program on a host."""

import json
import time
from types import TracebackType
from typing import Any, Self

from scripts.ssh import HostFailed, Session, program_command


class Talk:
    """With scripts/NAME.py there; used by one thread, ends with the `with` block."""

    def __init__(self, session: Session, name: str, *arguments: str) -> None:
        self._session = session
        self._channel = session.channel(program_command(session.host, name, *arguments))
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def say(self, message: object) -> None:
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except (OSError, EOFError) as error:
            raise self._session.lost(error) from None

    def hear(self, what: str, seconds: float) -> dict[str, Any]:
        """The next line; HostFailed, which names `what`, if it does not come in time."""
        deadline = time.monotonic() + seconds
        try:
            while b"\n" not in self._read:
                self._channel.settimeout(max(deadline - time.monotonic(), 0.01))
                piece = self._channel.recv(1 << 16)
                if not piece:
                    raise self._failure(what)
                self._read += piece
        except TimeoutError:
            raise HostFailed(f"{what}: no answer within {seconds:.0f} s", "look at what hangs there") from None
        except (OSError, EOFError) as error:
            raise self._session.lost(error) from None
        line, _, self._read = self._read.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self, what: str) -> HostFailed:
        self._channel.settimeout(1.0)
        error = self._channel.recv_stderr(1 << 16).decode(errors="replace").strip()
        if not error:
            return self._session.lost()
        reason, _, todo = error.splitlines()[-1].partition("; do: ")
        return HostFailed(f"{what}: {reason}", todo or "see the message")
