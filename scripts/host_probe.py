"""On a host: what there is, whether the other hosts can be reached, and how much the links carry.

    host_probe.py facts WORKDIR ENVIRONMENT ADDRESS      one line of JSON
    host_probe.py links ADDRESS                          a conversation of JSON lines, see `links`

Sent along and run by `python -I -S -c`: standard library only, Python 3.8 or later, so that it can also say that a
Python is too old.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

RAMP_SECONDS = 0.5  # until TCP has found its rate
CONNECT_SECONDS = 3.0
TOOL_SECONDS = 20.0
PIECE = 1 << 20
ASK, FLOW, ANSWER = b"?", b">", b"byteps"


def output(*argv: str) -> str | None:
    """None if there is no such program, or it fails or hangs."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def facts(workdir: str, environment: str, address: str) -> None:
    folder = os.path.realpath(os.path.expanduser(workdir))
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    found: dict[str, Any] = {
        "python": sys.version_info[:3],
        "executable": sys.executable,
        "venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
        "environment": of_environment(os.path.expanduser(environment)) if environment else "",
        "root": os.geteuid() == 0,
        "sudo": os.geteuid() == 0 or output("sudo", "-n", "true") is not None,
        "free_bytes": shutil.disk_usage(folder).free,
        "writable": os.access(folder, os.W_OK),
        "file_system": file_system(folder),
        "interfaces": interfaces(),
        "address": resolve(address),
        "tc": any(shutil.which(name, path=os.environ.get("PATH", "") + ":/sbin:/usr/sbin") for name in ("tc",)),
        "gpus": [line for line in (output("nvidia-smi", "-L") or "").splitlines() if line.startswith("GPU ")],
        "cores": len(os.sched_getaffinity(0)),
    }
    found["topology"] = (output("nvidia-smi", "topo", "-m") or "") if found["gpus"] else ""
    found["now"] = time.time()  # last: the laptop takes it as the moment of the answer
    print(json.dumps(found))


def file_system(folder: str) -> str:
    """Its kind, such as "ext4"."""
    best, kind = "", ""
    with contextlib.suppress(OSError), open("/proc/self/mounts") as mounts:
        for line in mounts:
            _, place, what, *_ = line.split(" ")
            place = place.replace("\\040", " ")
            if len(place) >= len(best) and os.path.join(folder, "").startswith(os.path.join(place, "")):
                best, kind = place, what
    return kind


def of_environment(folder: str) -> str:
    """ "3.11.7, torch 2.13.0", or "" if it is none."""
    tell = (
        "import importlib.metadata as m, sys\n"
        "try: torch = ', torch ' + m.version('torch')\n"
        "except m.PackageNotFoundError: torch = ''\n"
        "print('.'.join(map(str, sys.version_info[:3])) + torch)"
    )
    return (output(os.path.join(folder, "bin", "python"), "-I", "-c", tell) or "").strip()


def resolve(address: str) -> str:
    """As a number; "" if it does not resolve here."""
    try:
        return str(socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""


def interfaces() -> dict[str, dict[str, Any]]:
    """By name: addresses, MTU, and the speed in Mbit/s that the driver tells (-1: it does not)."""
    import fcntl
    import struct

    found: dict[str, dict[str, Any]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            found[name] = {"addresses": [], "mtu": number(name, "mtu"), "speed": number(name, "speed")}
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(sock.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                found[name]["addresses"].append(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as file:
        for line in file:
            digits, *_, name = line.split()
            text = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
            if name in found and not text.startswith("fe80"):
                found[name]["addresses"].append(text)
    return found


def number(interface: str, key: str) -> int:
    try:
        with open(f"/sys/class/net/{interface}/{key}") as file:
            return int(file.read())
    except (OSError, ValueError):
        return -1


class Arrivals:
    """Counts what flows in: from the first piece after the ramp to the last one before the end."""

    def __init__(self) -> None:
        self.interval = (float("inf"), float("inf"))
        self.rates: list[float] = []

    def receive(self, sock: socket.socket) -> None:
        buffer = bytearray(PIECE)
        nbytes, first, last = 0, 0.0, 0.0
        with contextlib.suppress(OSError):
            while count := sock.recv_into(buffer):
                now = time.monotonic()
                if now > self.interval[1]:
                    break
                if now >= self.interval[0]:
                    nbytes += count if first else 0
                    first, last = first or now, now
        self.rates.append(nbytes / (last - first) if last > first else 0.0)

    def serve(self, listener: socket.socket) -> None:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=self.take, args=(sock,), daemon=True).start()

    def take(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            sock.settimeout(CONNECT_SECONDS)
            kind = sock.recv(1)
            if kind == ASK:
                sock.sendall(ANSWER)
            elif kind == FLOW:
                self.receive(sock)


def links(address: str) -> None:
    """Says {"port"}; hears {"peers": [[name, address, port]], "to": [address, port], "flows", "seconds"}; says
    {"unreached": {name: reason}}; hears a line when all are ready; says {"bytes_per_s"} of what arrived.
    """
    family, _, _, _, own = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    arrivals = Arrivals()
    try:
        listener = socket.create_server(own[:2], family=family, backlog=1024)
    except OSError as error:
        sys.exit(f"cannot listen on {address}: {error.strerror}; do: give the address that the host itself has")
    threading.Thread(target=arrivals.serve, args=(listener,), daemon=True).start()
    say({"port": listener.getsockname()[1]})
    order = json.loads(sys.stdin.readline())
    unreached: dict[str, str] = {}
    askers = [threading.Thread(target=ask, args=(*peer, unreached), daemon=True) for peer in order["peers"]]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(2 * CONNECT_SECONDS + 1)
    say({"unreached": unreached})
    if not sys.stdin.readline():
        return
    started = time.monotonic()
    arrivals.interval = (started + RAMP_SECONDS, started + RAMP_SECONDS + order["seconds"])
    for _ in range(order["flows"] if order["to"] else 0):
        threading.Thread(target=send, args=tuple(order["to"]), daemon=True).start()
    deadline = arrivals.interval[1] + 3.0
    while len(arrivals.rates) < order["flows"] and time.monotonic() < deadline:
        time.sleep(0.05)
    say({"bytes_per_s": sum(arrivals.rates)})
    sys.stdin.readline()  # the others may still measure what this one sends
    os._exit(0)


def ask(name: str, address: str, port: int, unreached: dict[str, str]) -> None:
    try:
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS) as sock:
            sock.sendall(ASK)
            if sock.recv(len(ANSWER)) != ANSWER:
                unreached[name] = "something else answers"
    except OSError as error:
        timed_out = isinstance(error, TimeoutError) or "timed out" in str(error)
        unreached[name] = "no answer" if timed_out else error.strerror or str(error)


def send(address: str, port: int) -> None:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=CONNECT_SECONDS) as sock:
        sock.settimeout(None)
        sock.sendall(FLOW)
        buffer = bytes(PIECE)
        while True:
            sock.sendall(buffer)


def say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    command, *rest = sys.argv[1:]
    known: dict[str, Callable[..., None]] = {"facts": facts, "links": links}
    known[command](*rest)


if __name__ == "__main__":
    main()
