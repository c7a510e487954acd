"""How processes that srun or torchrun started find each other: every rank tells rank 0 about its host, and gets a role.

Rank 0 listens where the allocation says; the others connect, prove that they know the secret, and say in one line of
JSON what is here: name, address, interface, NIC rate, and where the suite lies.  When all have called, each is answered
in one line with the name that it has from now on and the address of the fleet; or, if any rank had something to
complain about, with that complaint, so that all end with the same sentence.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from byteps.allocation import Allocation
from byteps.errors import BytePSError, StartError
from byteps.handshake import Acceptor, connect, is_loopback, listen, resolve
from byteps.interfaces import interface_addresses
from byteps.units import parse_rate
from scripts import hostinfo

SECONDS: Final = 120.0
_QUIET_SECONDS: Final = 5.0  # without progress lines at first, and between two of them
_LARGEST_LINE: Final = 64 * 1024
SECRET = "BYTEPS_JOB_SECRET"


class JoinError(BytePSError, RuntimeError):
    """The allocation gave no cluster; the text says what to do."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """What a rank says about its host."""

    rank: int
    host: str  # its own name
    address: str
    interface: str
    nic_bytes_per_s: float
    suite: str
    conductor: str  # the address at which it reached rank 0
    error: str = ""  # why it cannot take part


@dataclass(frozen=True, kw_only=True)
class Role:
    """What rank 0 answers."""

    name: str
    fleet: str  # HOST:PORT
    error: str = ""


def secret_of(env: Mapping[str, str], conductor: str, port: int) -> bytes:
    """The job's secret; without one only loopback is allowed, as for BytePS itself."""
    if secret := env.get(SECRET, "").strip():
        return secret.encode()
    if not is_loopback(resolve(conductor, port)[1][0]):
        raise JoinError(
            f"{SECRET} is not set, and {conductor} is not this machine alone: anybody who reaches its port could start "
            f"processes here; before srun or torchrun: export {SECRET}=$(openssl rand -hex 16)"
        )
    return f"loopback {port}".encode()


def describe(
    allocation: Allocation, *, address: str, conductor: str, suite: str, nic: str = "", interface: str = ""
) -> Caller:
    """This host as rank 0 wants to know it; `address` is the one towards rank 0, which `interface` overrides."""
    rate, error = 0.0, ""
    try:
        (interface, *_) = hostinfo.nics([interface] if interface else [], address)
        address = interface_addresses()[interface]
        rate = parse_rate(nic) if nic else link_rate(interface)
    except ValueError as problem:
        error = f"rank {allocation.rank} on {socket.gethostname()}: {problem}"
    return Caller(
        rank=allocation.rank,
        host=socket.gethostname(),
        address=address,
        interface=interface,
        nic_bytes_per_s=rate,
        suite=suite,
        conductor=conductor,
        error=error,
    )


def link_rate(interface: str, folder: Path = Path("/sys/class/net")) -> float:
    """Bytes per second that the kernel says the NIC has; ValueError where it does not know."""
    try:
        megabits = int((folder / interface / "speed").read_text())
    except (OSError, ValueError):
        megabits = -1
    if megabits <= 0:
        raise ValueError(f"the kernel does not know the rate of {interface}; say it, such as --nic 25Gbit")
    return megabits * 1e6 / 8


def call(
    allocation: Allocation, secret: bytes, about: Callable[[str, str], Caller], *, seconds: float = SECONDS
) -> Role:
    """What a rank above 0 does; `about` is given the address here and that of rank 0."""
    what = "rank 0, which conducts,"
    with connect(allocation.conductor, allocation.port, secret, time.monotonic() + seconds, what=what) as sock:
        sock.settimeout(2 * seconds)  # rank 0 gives up earlier, and says so
        caller = about(sock.getsockname()[0], sock.getpeername()[0])
        sock.sendall(json.dumps(asdict(caller)).encode() + b"\n")
        role = Role(**json.loads(_line(sock, "rank 0")))
    if role.error:
        raise JoinError(role.error)
    return role


class RollCall:
    """Rank 0's side: entered, it listens; `callers` waits for all others; `answer` sends them away."""

    def __init__(self, allocation: Allocation, secret: bytes, *, seconds: float = SECONDS) -> None:
        self._allocation = allocation
        self._secret = secret
        self._seconds = seconds
        self._changed = threading.Condition()  # guards the next one
        self._calls: dict[int, tuple[socket.socket, Caller]] = {}

    def __enter__(self) -> "RollCall":
        address = resolve(self._allocation.conductor, 0)[1][0]
        # A host's own name may resolve to 127.0.1.1 on that host alone, so only a loopback job listens there.
        everywhere = "::" if ":" in address else "0.0.0.0"
        alone = is_loopback(address) and self._secret.startswith(b"loopback ")
        self._acceptor = Acceptor(
            listen(address if alone else everywhere, self._allocation.port),
            self._secret,
            self._serve,
            lambda text: print(f"join: {text}", flush=True),
        )
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._acceptor.close()
        with self._changed:
            for sock, _ in self._calls.values():
                sock.close()

    def _serve(self, sock: socket.socket, peer: str) -> None:
        try:
            sock.settimeout(self._seconds)
            caller = Caller(**json.loads(_line(sock, peer)))
        except (OSError, ValueError, TypeError, BytePSError):
            sock.close()
            return
        with self._changed:
            self._calls[caller.rank] = (sock, caller)
            self._changed.notify_all()

    def callers(self) -> list[Caller]:
        """All ranks but 0, in order; JoinError names those that have not called."""
        started = time.monotonic()
        next_line = started + _QUIET_SECONDS
        with self._changed:
            while missing := [rank for rank in range(1, self._allocation.size) if rank not in self._calls]:
                now = time.monotonic()
                if now >= started + self._seconds:
                    raise JoinError(
                        f"rank {', '.join(map(str, missing))} of {self._allocation.size} did not call within "
                        f"{self._seconds:.0f} s; their output says why, or port {self._allocation.port} is closed"
                    )
                if now >= next_line:
                    next_line = now + _QUIET_SECONDS
                    print(
                        f"join: {len(self._calls) + 1} of {self._allocation.size} ranks are here, missing rank "
                        f"{', '.join(map(str, missing))}, waiting {now - started:.0f} s of {self._seconds:.0f} s",
                        flush=True,
                    )
                self._changed.wait(min(next_line, started + self._seconds) - now)
            return [caller for _, (_, caller) in sorted(self._calls.items())]

    def answer(self, role_of: Callable[[int], Role]) -> None:
        """A role, or an error, for every rank that has called."""
        with self._changed:
            for rank, (sock, _) in self._calls.items():
                try:
                    sock.sendall(json.dumps(asdict(role_of(rank))).encode() + b"\n")
                except OSError:  # it is gone, which the fleet will say
                    continue


def _line(sock: socket.socket, peer: str) -> bytes:
    """Up to a newline."""
    data = b""
    while not data.endswith(b"\n"):
        piece = sock.recv(4096)
        if not piece or len(data) > _LARGEST_LINE:
            raise StartError(f"{peer} hung up before it had said everything; its own output says why")
        data += piece
    return data
