"""Hands a launch's worker over to a process that somebody else starts.

The orchestrator starts a process per rank and talks with it on its standard streams; mpirun starts its ranks itself and
would connect one of them at most.  So the orchestrator's process only waits on its host:

    offer NAME -- COMMAND...   waits for whoever joins NAME on this host, gives it its standard streams and the command,
                               and stays until that process has ended
    join NAME                  what the other starter runs: takes streams and command from there and becomes the command

The streams themselves change hands (SCM_RIGHTS), so nothing is copied from then on.  NAME is an abstract Unix socket:
it belongs to the network namespace, that is to one host of an emulated cluster, and leaves no file behind.
Standard library only.
"""

import argparse
import json
import os
import socket
import sys
import time

JOIN_SECONDS = 170.0  # below the orchestrator's own patience, so that the reason stands in the log
_POLL_SECONDS = 0.02
_STREAMS = (0, 1, 2)
_LARGEST_COMMAND = 128 * 1024


def offer(name: str, command: list[str], *, seconds: float = JOIN_SECONDS) -> None:
    """Give this process's streams and the command to the one that joins; returns when that one has ended."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{name}")
        listener.listen(1)
        listener.settimeout(seconds)
        try:
            joined, _ = listener.accept()
        except TimeoutError:
            raise SystemExit(
                f"relay: nobody joined {name!r} within {seconds:.0f} s; see the log of its starter"
            ) from None
    with joined:
        socket.send_fds(joined, [json.dumps(command).encode()], _STREAMS)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in _STREAMS[:2]:  # the orchestrator must see the end of the other's output
            os.dup2(nothing, stream)
        joined.settimeout(None)  # the orchestrator's deadlines rule from here on, and its signals end this process
        joined.recv(1)
    print("relay: the process that had joined has ended; how, is in the log of its starter", file=sys.stderr)


def take(name: str, *, seconds: float = JOIN_SECONDS) -> list[str]:
    """Take over the streams of the process that offers them; returns the command to become.

    The connection stays open for as long as this process lives, in whatever it becomes: its end tells the other.
    """
    connection = _connect(name, seconds)
    message, fds, _, _ = socket.recv_fds(connection, _LARGEST_COMMAND, len(_STREAMS))
    if len(fds) != len(_STREAMS):
        raise SystemExit(f"relay: {name!r} closed without handing over its streams")
    for fd, stream in zip(fds, _STREAMS, strict=True):
        os.dup2(fd, stream)
        os.close(fd)
    os.set_inheritable(connection.detach(), True)
    command: list[str] = json.loads(message)
    return command


def _connect(name: str, seconds: float) -> socket.socket:
    deadline = time.monotonic() + seconds
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(f"\0{name}")
            return connection
        except ConnectionRefusedError:  # the two are started independently of each other
            connection.close()
            if time.monotonic() > deadline:
                raise SystemExit(f"relay: nobody offers {name!r} on this host") from None
        time.sleep(_POLL_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description="Hands a worker over; started by the plans of contenders.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    offering = kinds.add_parser("offer")
    offering.add_argument("name")
    offering.add_argument("command", nargs="+")
    kinds.add_parser("join").add_argument("name")
    args = parser.parse_args()
    if args.kind == "offer":
        offer(args.name, args.command)
    else:
        command = take(args.name)
        os.execvp(command[0], command)


if __name__ == "__main__":
    main()
