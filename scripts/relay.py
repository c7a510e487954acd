"""One connection between the conductor and an agent: JSON messages, one a line, and byte streams between their pipes.

Both ends are the same.  A stream carries what comes out of a file descriptor here into one there, one piece at a time:
the next piece is read when the peer has written the one before, so a reader that reads nothing stops its own stream
and no other, and its writer notices just as with a pipe.  64 KiB per round trip is plenty for control and for logs.
Data of gradients never goes this way.

Silence is death: each end says something at least every sixth of `silence_seconds`, and a peer that says nothing for so
long is as lost as one that closed the connection.  Belongs to one asyncio loop; nothing here is for other threads.
"""

import asyncio
import base64
import contextlib
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

PIECE_BYTES = 1 << 16
_MAX_LINE_BYTES = 8 << 20  # a process's arguments and environment are the longest

Message = dict[str, Any]


class Relay:
    """`end` says why the connection is over, once `messages` is."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str, silence_seconds: float
    ) -> None:
        self.peer = peer
        self.end = ""
        self._silence_seconds = silence_seconds
        self._beat: asyncio.Task[None] | None = None
        self._reader = reader
        self._writer = writer
        self._outflows: dict[str, asyncio.Task[None]] = {}
        self._taken: dict[str, asyncio.Event] = {}
        self._inflows: dict[str, int] = {}
        self._pouring: dict[str, asyncio.Task[None]] = {}  # into inflows, at most one each

    @classmethod
    async def over(cls, sock: socket.socket, peer: str, silence_seconds: float) -> Self:
        """Takes the connected socket."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader, writer = await asyncio.open_connection(sock=sock, limit=_MAX_LINE_BYTES)
        return cls(reader, writer, peer, silence_seconds)

    def expect_life_within(self, silence_seconds: float) -> None:
        """From now on, when both ends have agreed on it."""
        self._silence_seconds = silence_seconds
        if self._beat is not None:
            self._beat.cancel()
        self._beat = asyncio.create_task(self._send_beats(), name="beat")

    def send(self, op: str, **content: Any) -> None:
        """Does nothing once the connection is lost: `messages` is who tells."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps({"op": op, **content}).encode() + b"\n")

    def outflow(self, stream: str, fd: int) -> asyncio.Task[None]:
        """Sends what comes out of `fd` to the peer's inflow of this name, until its end; then closes it."""
        os.set_blocking(fd, False)
        task = asyncio.create_task(self._flow_out(stream, fd), name=f"outflow {stream}")
        self._outflows[stream] = task

        def over(_: asyncio.Task[None]) -> None:  # also when it was cancelled before its first step
            os.close(fd)
            self._outflows.pop(stream, None)

        task.add_done_callback(over)
        return task

    def stop_outflow(self, stream: str) -> None:
        """Nobody wants it any more; whoever writes into it gets EPIPE."""
        if (task := self._outflows.get(stream)) is not None:
            task.cancel()

    def inflow(self, stream: str, fd: int) -> None:
        """Writes what the peer's outflow of this name brings into `fd`, and closes it at the end."""
        if stat.S_ISFIFO(os.fstat(fd).st_mode):  # a log's file is the caller's as well
            os.set_blocking(fd, False)
        self._inflows[stream] = fd

    def close_inflow(self, stream: str) -> None:
        """Again is harmless."""
        if (fd := self._inflows.pop(stream, None)) is None:
            return
        task = self._pouring.get(stream)
        if task is None or task is asyncio.current_task():
            os.close(fd)
        else:  # it waits for the descriptor, whose number must not be another's meanwhile
            task.add_done_callback(lambda _: os.close(fd))
            task.cancel()

    async def messages(self) -> AsyncIterator[Message]:
        """Everything from the peer that is not about streams, until the connection is over."""
        self.expect_life_within(self._silence_seconds)
        try:
            while True:
                line = await asyncio.wait_for(self._reader.readline(), self._silence_seconds)
                if not line.endswith(b"\n"):
                    self.end = "connection closed"
                    return
                message = json.loads(line)
                if not self._handle(message):
                    yield message
        except TimeoutError:
            self.end = f"no sign of life for {self._silence_seconds:g} s"
        except ValueError as error:
            self.end = f"it sent what is no message: {error}"
        except OSError as error:
            self.end = error.strerror or str(error)
        finally:
            if self._beat is not None:
                self._beat.cancel()
            self._writer.transport.abort() if self.end.startswith("no sign") else self._writer.close()
            tasks = [*self._outflows.values(), *self._pouring.values()]
            for task in self._outflows.values():
                task.cancel()
            for stream in list(self._inflows):
                self.close_inflow(stream)
            await asyncio.gather(*tasks, return_exceptions=True)

    async def flush(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.drain()

    def hang_up(self) -> None:
        """What was sent is still delivered; `messages` ends."""
        self._writer.close()

    async def _send_beats(self) -> None:
        while True:
            self.send("beat")
            await asyncio.sleep(self._silence_seconds / 6)

    def _handle(self, message: Message) -> bool:
        """Whether it was about streams."""
        op, stream = message.get("op"), message.get("stream", "")
        if op == "taken" and stream in self._taken:
            self._taken[stream].set()
        elif op == "gone":
            self.stop_outflow(stream)
        elif op == "data" and stream not in self._inflows:
            self.send("gone", stream=stream)
        elif op == "data":
            data = base64.b64decode(message["data"])
            task = self._pouring[stream] = asyncio.create_task(self._flow_in(stream, data), name=f"inflow {stream}")
            task.add_done_callback(lambda _: self._pouring.pop(stream))
        return op in ("beat", "taken", "gone", "data")

    async def _flow_out(self, stream: str, fd: int) -> None:
        taken = self._taken[stream] = asyncio.Event()
        try:
            while data := await _read(fd):
                taken.clear()
                self.send("data", stream=stream, data=base64.b64encode(data).decode())
                await taken.wait()
            self.send("data", stream=stream, data="")
        finally:
            del self._taken[stream]

    async def _flow_in(self, stream: str, data: bytes) -> None:
        """The peer sends the next piece when it hears "taken", so that there is one of these per stream at a time."""
        fd = self._inflows[stream]
        try:
            if data:
                await _write(fd, data)
                self.send("taken", stream=stream)
            else:
                self.close_inflow(stream)
        except OSError:  # nobody reads; a full disk under a log is no better
            self.send("gone", stream=stream)
            self.close_inflow(stream)


async def _read(fd: int) -> bytes:
    loop = asyncio.get_running_loop()
    while True:
        try:
            return os.read(fd, PIECE_BYTES)
        except BlockingIOError:
            await _until(loop.add_reader, loop.remove_reader, fd)


async def _write(fd: int, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            await _until(loop.add_writer, loop.remove_writer, fd)


async def _until(add: Callable[..., None], remove: Callable[[int], bool], fd: int) -> None:
    ready = asyncio.Event()
    add(fd, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fd)
