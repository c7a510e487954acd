"""gRPC for Python: a call for every message, one after the other, or one call with a stream of them.

No protocol buffers: (de)serialisers pass `bytes` through, which is the least that gRPC asks for.
"""

import importlib
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from experiments.carriers import SILENT_SECONDS, START_SECONDS, Place

_SERVICE = "byteps.Tensors"
_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


class Sender:
    """The client."""

    def __init__(self, place: Place, *, stream: bool) -> None:
        grpc: Any = importlib.import_module("grpc")
        self._messages, self._stream = place.messages, stream
        self._channel = grpc.insecure_channel(f"{place.address}:{place.port}", options=_OPTIONS)
        grpc.channel_ready_future(self._channel).result(timeout=START_SECONDS)
        self._put = self._channel.unary_unary(f"/{_SERVICE}/Put")
        self._put_all = self._channel.stream_unary(f"/{_SERVICE}/PutAll")

    def send(self, tensor: memoryview) -> None:
        parts = (bytes(tensor[start:end]) for start, end in self._messages)
        if self._stream:
            self._put_all(parts, timeout=SILENT_SECONDS)
            return
        for part in parts:
            self._put(part, timeout=SILENT_SECONDS)

    def close(self) -> None:
        self._channel.close()


class Receiver:
    """The server; calls are handled in a thread of gRPC's own, which copies into the tensor."""

    def __init__(self, place: Place, *, stream: bool) -> None:
        grpc: Any = importlib.import_module("grpc")
        self._messages = place.messages
        self._tensors: queue.Queue[memoryview] = queue.Queue()  # the one to fill next
        self._filled: queue.Queue[None] = queue.Queue()
        handlers = {
            "Put": grpc.unary_unary_rpc_method_handler(self._put),
            "PutAll": grpc.stream_unary_rpc_method_handler(self._put_all),
        }
        self._server = grpc.server(ThreadPoolExecutor(max_workers=1), options=_OPTIONS)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        if self._server.add_insecure_port(f"{place.address}:{place.port}") != place.port:
            raise OSError(f"gRPC could not listen on {place.address}:{place.port}")
        self._server.start()
        self._tensor = memoryview(b"")
        self._left: list[tuple[int, int]] = []

    def receive(self, tensor: memoryview) -> None:
        self._tensors.put(tensor)
        self._filled.get(timeout=2 * SILENT_SECONDS)  # queue.Empty if a call failed: the client has its error

    def _put(self, message: bytes, _context: Any) -> bytes:
        if not self._left:
            self._tensor = self._tensors.get(timeout=START_SECONDS)
            self._left = self._messages[::-1]
        start, end = self._left.pop()
        self._tensor[start:end] = message
        if not self._left:
            self._filled.put(None)
        return b""

    def _put_all(self, messages: Iterator[bytes], context: Any) -> bytes:
        for message in messages:
            self._put(message, context)
        return b""

    def close(self) -> None:
        self._server.stop(grace=None).wait(START_SECONDS)
