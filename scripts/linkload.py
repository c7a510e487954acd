"""One host's part of a calibration: sends to its neighbour as fast as it can while it measures what arrives.

Talks to `scripts.calibrate` over its standard streams: prints the port it listens on; reads "address port ramp seconds"
(the neighbour, and how long to wait from then on before how long a measurement, since hosts share no clock); prints
"bytes seconds".  Standard library only and no imports of ours: it starts in 20 ms, once per host.

The interval is closed by arrivals: from the first one after `start` to the last one before `end`, without the bytes of
the first.  So neither the ramp of TCP nor half a buffer at the edges falsifies the rate.  Links are measured with cubic
where there is a choice, whatever congestion control is tried out on them.
"""

import contextlib
import socket
import sys
import threading
import time

_BUFFER_BYTES = 1 << 20


def _send(address: str, port: int) -> None:
    with socket.create_connection((address, port), timeout=5.0) as sock:
        sock.settimeout(None)
        with contextlib.suppress(OSError):  # a real host's kernel may not have it, or its user may not choose
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        buffer = bytes(_BUFFER_BYTES)
        with contextlib.suppress(ConnectionError):  # the neighbour, whose interval began earlier, has heard enough
            while True:
                sock.sendall(buffer)


def _receive(listener: socket.socket, start: float, end: float) -> tuple[int, float]:
    buffer = bytearray(_BUFFER_BYTES)
    received, first, last = 0, 0.0, 0.0
    sock, _ = listener.accept()
    with sock:
        while True:
            nbytes = sock.recv_into(buffer)
            now = time.monotonic()
            if nbytes == 0 or now > end:
                return received, last - first
            if now >= start:
                received += nbytes if first else 0
                first, last = first or now, now


def main() -> None:
    with socket.create_server((sys.argv[1], 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        address, port, ramp, seconds = sys.stdin.readline().split()
        start = time.monotonic() + float(ramp)
        # a daemon: it may sit in sendall when the interval is over
        threading.Thread(target=_send, args=(address, int(port)), name="send", daemon=True).start()
        received, interval = _receive(listener, start, start + float(seconds))
    print(received, interval, flush=True)


if __name__ == "__main__":
    main()
