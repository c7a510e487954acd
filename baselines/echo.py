"""The bare echo pair: what two processes and one connection do at best, the yardstick of a push_pull over loopback.

Full duplex with 4 MB messages through a large buffer: the client sends from one thread and receives in another, the
server receives a message and sends it back.  No frames, no sums, no threads besides.  Both use plain blocking calls
(`sendall`, `recv_into` with MSG_WAITALL), the same congestion control as BytePS and TCP_NODELAY.
Standard library only.  The server is `python -m baselines.echo ADDRESS PORT NBYTES MESSAGE_NBYTES CONGESTION_CONTROL`.
"""

import contextlib
import socket
import sys
import threading
import time

START_SECONDS = 20.0


def tune(sock: socket.socket, congestion_control: str) -> str:
    """Set the options; returns the congestion control in force."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):  # not every kernel has it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def messages(nbytes: int, message_nbytes: int) -> list[tuple[int, int]]:
    """Start and end of every message; the last one may be shorter."""
    return [(start, min(start + message_nbytes, nbytes)) for start in range(0, nbytes, message_nbytes)]


def receive(sock: socket.socket, view: memoryview) -> bool:
    """Fill the view; False if the peer ended."""
    while view:
        count = sock.recv_into(view, len(view), socket.MSG_WAITALL)
        if count == 0:
            return False
        view = view[count:]
    return True


class Client:
    """The end that measures."""

    def __init__(self, address: str, port: int, nbytes: int, message_nbytes: int, congestion_control: str) -> None:
        self._messages = messages(nbytes, message_nbytes)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._sock = socket.create_connection((address, port), timeout=1.0)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)  # the server may not be listening yet
        self._sock.settimeout(None)
        self.congestion_control = tune(self._sock, congestion_control)

    def echo(self, buffer: memoryview) -> None:
        """The whole buffer to the server and back into its place."""
        sender = threading.Thread(target=self._send, args=(buffer,), name="echo sender")
        sender.start()
        for start, end in self._messages:
            if not receive(self._sock, buffer[start:end]):
                raise ConnectionError("the echo server ended")
        sender.join()

    def _send(self, buffer: memoryview) -> None:
        for start, end in self._messages:
            self._sock.sendall(buffer[start:end])

    def close(self) -> None:
        self._sock.close()


def serve(address: str, port: int, nbytes: int, message_nbytes: int, congestion_control: str) -> None:
    """Echo for one client until it ends."""
    with socket.create_server((address, port)) as listener:
        sock, _ = listener.accept()
    tune(sock, congestion_control)
    buffer = memoryview(bytearray(nbytes))
    with sock:
        while True:
            for start, end in messages(nbytes, message_nbytes):
                if not receive(sock, buffer[start:end]):
                    return
                sock.sendall(buffer[start:end])


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
