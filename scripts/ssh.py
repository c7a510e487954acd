"""Logging in to one host by Fabric, and running commands there: every wait has a limit, every failure says what to do.

What differs from Fabric's defaults, and why:

- A host's key must be in known_hosts (Fabric takes any).  "accept-new" takes unknown ones and keeps them; a changed key
  is refused always.
- ~/.ssh/config and Fabric's own files are not read: the cluster file alone says how to log in, so that it means the
  same for everybody who has it.
- Passwords are never asked for, typed or kept.  A key of the cluster file is the only one tried.
- Commands run over plain channels instead of `Connection.run`: that has no binary input and no end of a hung command.
"""

import contextlib
import os
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import paramiko  # type: ignore[import-untyped]
from fabric import Config, Connection  # type: ignore[import-untyped]
from paramiko.ssh_exception import (  # type: ignore[import-untyped]
    AuthenticationException,
    BadHostKeyException,
    NoValidConnectionsError,
    PasswordRequiredException,
    SSHException,
)

from byteps.hosts import Host, Site

State = Literal["failed", "unreachable"]
RUN_SECONDS = 30.0  # of a command that has little to do

_PIECE = 1 << 16
_SILENT_MS = 20_000  # a host that acknowledges nothing for so long is gone
_HERE = Path(__file__).resolve().parent


class HostFailed(Exception):
    """What went wrong on one host, and what to do about it."""

    def __init__(self, reason: str, todo: str, state: State = "failed") -> None:
        super().__init__(reason)
        self.reason, self.todo, self.state = reason, todo, state


class Session:
    """One host, logged in after `open`.  Used by one thread at a time, but for `close`."""

    def __init__(self, host: Host, site: Site) -> None:
        self.host = host
        self.status = ""  # what it is at, for progress lines
        self._site = site
        options: dict[str, object] = {
            "allow_agent": not host.key,
            "look_for_keys": not host.key,
            **dict.fromkeys(("banner_timeout", "auth_timeout", "channel_timeout"), site.connect_seconds),
        }
        if host.key:
            options["key_filename"] = os.path.expanduser(host.key)
        self._connection = Connection(
            host.address,
            user=host.user or None,
            port=host.port,
            config=Config(lazy=True, overrides={"load_ssh_configs": False}),
            connect_timeout=site.connect_seconds,
            connect_kwargs=options,
        )

    def open(self) -> None:
        """Log in; HostFailed says why not.  Again is harmless."""
        if self._connection.is_connected:
            return
        known = Path(self._site.known_hosts).expanduser()
        client = self._connection.client
        accept = self._site.host_keys == "accept-new"
        client.set_missing_host_key_policy(AcceptNew(known) if accept else paramiko.RejectPolicy())
        if known.exists():
            client.load_host_keys(str(known))
        try:
            with self._in_words(known):
                self._connection.open()
        except HostFailed:
            self._connection.close()
            raise
        transport = client.get_transport()
        assert transport is not None
        transport.set_keepalive(15)
        if isinstance(transport.sock, socket.socket):
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_MS)

    @contextlib.contextmanager
    def _in_words(self, known: Path) -> Iterator[None]:
        host, user = self.host, self._connection.user
        where = f"{host.address} port {host.port}"
        try:
            yield
        except BadHostKeyException:
            raise HostFailed(
                f"the host key of {where} is not the one in {known}: another machine answers, or it was set up anew",
                f"ask its owner; if it was set up anew: ssh-keygen -f {known} -R {_known_name(host)}",
                "unreachable",
            ) from None
        except PasswordRequiredException:
            raise HostFailed(
                f"the key {host.key or 'of ssh'} has a passphrase", 'ssh-add it and set ssh.key = ""', "unreachable"
            ) from None
        except AuthenticationException as error:
            tried = f"the key {host.key}" if host.key else "the keys of the ssh agent and of ~/.ssh"
            raise HostFailed(
                f"{where} refuses user {user} with {tried} ({error})",
                f"ssh-copy-id it to {user}@{host.address}, or correct ssh.user and ssh.key",
                "unreachable",
            ) from None
        except socket.gaierror as error:
            raise HostFailed(
                f"{host.address!r} does not resolve: {error.strerror}", "correct its address", "unreachable"
            ) from None
        except (NoValidConnectionsError, OSError, EOFError, SSHException) as error:
            if "not found in known_hosts" in str(error):
                raise HostFailed(
                    f"the host key of {where} is not in {known}",
                    f"ssh-keyscan -p {host.port} {host.address} >> {known} after checking it, "
                    'or set ssh.host_keys = "accept-new"',
                    "unreachable",
                ) from None
            timed_out = isinstance(error, TimeoutError)
            reason = f"no answer within {self._site.connect_seconds:g} s" if timed_out else _reason(error)
            raise HostFailed(
                f"{where}: {reason}", "is it on, its sshd running, its address and ssh.port right?", "unreachable"
            ) from None

    def close(self) -> None:
        """From any thread: ends what waits for the host."""
        with contextlib.suppress(Exception):
            self._connection.close()

    def channel(self, command: str) -> paramiko.Channel:
        """A started command."""
        transport = self._connection.client.get_transport()
        try:
            if transport is None:
                raise EOFError("not logged in")
            channel = transport.open_session(timeout=self._site.connect_seconds)
            channel.exec_command(command)
        except (SSHException, OSError, EOFError) as error:
            raise self.lost(error) from None
        return channel

    def lost(self, error: object = "") -> HostFailed:
        """What to raise when a channel ends too early."""
        reason = f": {error}" if str(error) else ""
        return HostFailed(f"the connection was lost{reason}", "is the host still on? then try again", "unreachable")

    def run(
        self,
        command: str,
        *,
        data: Iterable[bytes] = (),
        seconds: float = RUN_SECONDS,
        take: Callable[[bytes], object] | None = None,
    ) -> str:
        """Its standard output; HostFailed if it fails, is not over in time, or the connection is lost.

        `data` is its standard input; `take` gets the output as it comes, instead of the caller.
        """
        deadline = time.monotonic() + seconds
        channel = self.channel(f"exec timeout -k 5 {seconds + 5:.0f} {command}")
        kept: list[bytes] = []
        take = take or kept.append
        try:
            sender = threading.Thread(target=_feed, args=(channel, data), name=f"feed {self.host.name}", daemon=True)
            sender.start()
            while True:
                channel.settimeout(max(deadline - time.monotonic(), 0.01))
                piece = channel.recv(_PIECE)
                if not piece:
                    break
                take(piece)
            channel.status_event.wait(max(deadline - time.monotonic(), 1.0))
            if channel.exit_status == -1:
                raise self.lost()
            error = channel.recv_stderr(_PIECE).decode(errors="replace").strip() if channel.exit_status else ""
        except TimeoutError:
            raise HostFailed(f"{_brief(command)}: not over after {seconds:.0f} s", "look at what hangs there") from None
        except (SSHException, OSError, EOFError) as problem:
            raise self.lost(problem) from None
        finally:
            channel.close()
        if channel.exit_status:
            raise _exit_failure(channel.exit_status, error or _last_line(b"".join(kept)), command, self.host)
        return b"".join(kept).decode(errors="replace")

    def program(
        self,
        name: str,
        *arguments: str,
        data: Iterable[bytes] = (),
        seconds: float = RUN_SECONDS,
        take: Callable[[bytes], object] | None = None,
    ) -> str:
        """`run` for scripts/NAME.py: standard library only, and sent along, since it may not be there."""
        return self.run(program_command(self.host, name, *arguments), data=data, seconds=seconds, take=take)


def program_command(host: Host, name: str, *arguments: str) -> str:
    text = (_HERE / f"{name}.py").read_text()
    return f"{quoted(host.python)} -I -S -c {shlex.join([text, *arguments])}"


@contextlib.contextmanager
def held_open() -> Iterator[Iterator[bytes]]:
    """An empty standard input that lasts as long as the block: its end tells a program that nobody listens any more."""
    over = threading.Event()

    def hold() -> Iterator[bytes]:
        over.wait()
        yield from ()

    try:
        yield hold()
    finally:
        over.set()


def quoted(path: str) -> str:
    """For the host's shell; ~/ stays the home there."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def _feed(channel: paramiko.Channel, data: Iterable[bytes]) -> None:
    """All of the input; a command that ends without reading it says why by itself."""
    with contextlib.suppress(OSError, EOFError, SSHException):
        for piece in data:
            channel.sendall(piece)
    with contextlib.suppress(OSError, EOFError, SSHException):
        channel.shutdown_write()


def _exit_failure(code: int, error: str, command: str, host: Host) -> HostFailed:
    if code in (126, 127) and command.startswith(quoted(host.python)):
        return HostFailed(
            f"{host.python} not found (exit {code})", "set install.python to the whole path of a Python 3.11 or later"
        )
    if "SyntaxError" in error:
        return HostFailed(f"{host.python} is too old a Python", "set install.python to a Python 3.11 or later")
    reason, _, todo = error.partition("; do: ")
    last = f"{reason.splitlines()[-1]} (exit {code})" if reason else f"exit {code}"
    return HostFailed(last, todo or f"see what it says there: {_brief(command)}")


def _brief(command: str) -> str:
    """Without the text of a program of ours."""
    line = command.splitlines()[0]
    return line if len(line) < 120 else f"{line[:120]} ..."


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _reason(error: BaseException) -> str:
    if isinstance(error, NoValidConnectionsError):
        error = next(iter(error.errors.values()))
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _known_name(host: Host) -> str:
    return host.address if host.port == 22 else f"'[{host.address}]:{host.port}'"


class AcceptNew(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """Takes the key of a host that is in no known_hosts, and keeps it there, so that a change is noticed."""

    _lock = threading.Lock()  # of the file

    def __init__(self, file: Path) -> None:
        self._file = file

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        line = f"{hostname} {key.get_name()} {key.get_base64()}\n"
        with self._lock:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            before = self._file.read_bytes()[-1:] if self._file.exists() else b"\n"
            with self._file.open("a") as file:
                file.write(line if before in (b"\n", b"") else f"\n{line}")
