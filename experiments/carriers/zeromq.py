"""ZeroMQ (pyzmq): a PUSH and a PULL socket over TCP, with its copies or without those that it can do without.

With `copy` a message is copied into ZeroMQ's memory and out of it as a `bytes` object.  Without, it is sent from the
tensor and received as a frame, whose memory is ZeroMQ's: one copy is left, into the tensor.  Queues have no limit.
"""

import importlib
from typing import Any

from experiments.carriers import SILENT_SECONDS, Place


def _socket(kind: str) -> tuple[Any, Any]:
    zmq: Any = importlib.import_module("zmq")
    context = zmq.Context()
    socket = context.socket(getattr(zmq, kind))
    for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
        socket.setsockopt(option, 0)
    for option in (zmq.SNDTIMEO, zmq.RCVTIMEO):
        socket.setsockopt(option, int(SILENT_SECONDS * 1000))
    return context, socket


class Sender:
    """Returns when all is queued; the tensor must not change before it is received."""

    def __init__(self, place: Place, *, copy: bool) -> None:
        self._messages, self._copy = place.messages, copy
        self._context, self._socket = _socket("PUSH")
        self._socket.connect(f"tcp://{place.address}:{place.port}")

    def send(self, tensor: memoryview) -> None:
        for start, end in self._messages:
            self._socket.send(tensor[start:end], copy=self._copy)

    def close(self) -> None:
        self._socket.close()
        self._context.term()


class Receiver:
    """Into the tensor from whatever ZeroMQ delivers."""

    def __init__(self, place: Place, *, copy: bool) -> None:
        self._messages, self._copy = place.messages, copy
        self._context, self._socket = _socket("PULL")
        self._socket.bind(f"tcp://{place.address}:{place.port}")

    def receive(self, tensor: memoryview) -> None:
        for start, end in self._messages:
            message = self._socket.recv(copy=self._copy)
            tensor[start:end] = message if self._copy else message.buffer

    def close(self) -> None:
        self._socket.close()
        self._context.term()
