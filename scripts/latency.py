"""How long a small message takes from one idle host to another: half the median round trip over TCP.

Nothing of it dilates with the network's rate, so records hold it beside the times.
"""

import contextlib
import select
import statistics
import subprocess
import sys
from collections.abc import Callable

from scripts.netns import Lab, LabError
from scripts.process import Process

ROUND_TRIPS = 100
SECONDS = 20.0
# Both ends are this program: "serve ADDRESS" prints its port and echoes; "ask ADDRESS PORT N" prints N round trips.
_PROGRAM = """
import socket, sys, time
if sys.argv[1] == "serve":
    with socket.create_server((sys.argv[2], 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        listener.settimeout(10)
        peer = listener.accept()[0]
    while data := peer.recv(1):
        peer.sendall(data)
else:
    with socket.create_connection((sys.argv[2], int(sys.argv[3])), timeout=10) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(int(sys.argv[4])):
            began = time.monotonic()
            peer.sendall(b"x")
            peer.recv(1)
            print(time.monotonic() - began)
"""


def one_way_seconds(lab: Lab) -> float:
    """Between the first two hosts; LabError if they do not answer."""
    near, far = lab.spec.names[:2]
    return between(lab.popen, near, far, lab.spec.address(far))


def between(popen: Callable[..., Process], near: str, far: str, address: str) -> float:
    """By `popen` of a stage; `address` is the far host's.  LabError if they do not answer."""
    program = [sys.executable, "-I", "-S", "-c", _PROGRAM]
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        server = popen(far, [*program, "serve", address], stdout=pipe)
        stack.callback(_end, server)
        assert server.stdout is not None
        if not select.select([server.stdout], [], [], SECONDS)[0]:
            raise LabError(f"latency: the server on {far} did not start within {SECONDS:.0f} s")
        port = server.stdout.readline().decode().strip()
        client = popen(near, [*program, "ask", address, port, str(ROUND_TRIPS)], stdout=pipe, stderr=pipe)
        stack.callback(_end, client)
        output, error = client.communicate(timeout=SECONDS)
    trips = [float(line) for line in output.split()]
    if len(trips) != ROUND_TRIPS:
        raise LabError(f"latency: {len(trips)} of {ROUND_TRIPS} round trips between {near} and {far}: {error.decode()}")
    return statistics.median(trips) / 2


def _end(process: Process) -> None:
    process.kill()
    process.wait(timeout=SECONDS)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
