"""UCX, called as C through ctypes: tagged messages of UCP, over TCP or over shared memory, as UCX_TLS says.

The Python bindings (ucxx) need CUDA's packages; the library itself (libucx) does not.  Its structures begin with a mask
of the fields that are given, so what is not given may be zeros.  Waiting arms the worker's event descriptor and sleeps,
where UCX would poll: on a machine whose cores are counted, polling is a cost of its own.
"""

import ctypes
import importlib
import select
import socket
from collections import deque
from ctypes import byref, c_char, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from experiments.carriers import SILENT_SECONDS, Place
from experiments.carriers.sockets import accept, connect

_API = (1, 22)  # of ucp.h; the library refuses one that is newer than itself
_TAG, _WAKEUP = 1, 16  # features
_IN_PROGRESS, _BUSY = 1, -15
_ALL_BITS = 2**64 - 1
_ALL_SENT = b"!"
WINDOW_NBYTES = 32 << 20  # posted at a time: some messages ahead of the one that is waited for


class UcxError(RuntimeError):
    """A call that failed."""


class _Parameters(ctypes.Structure):
    """Room for any of UCP's; all are masks and pointers at the start."""

    _fields_ = (("mask", c_uint64), ("first", c_uint64), ("rest", c_uint64 * 126))


def _load() -> Any:
    ucp: Any = importlib.import_module("libucx").load_library()[-1]
    if ucp is None:
        raise UcxError("libucp.so could not be loaded")
    ucp.ucp_tag_send_nbx.argtypes = (c_void_p, c_void_p, c_size_t, c_uint64, c_void_p)
    ucp.ucp_tag_recv_nbx.argtypes = (c_void_p, c_void_p, c_size_t, c_uint64, c_uint64, c_void_p)
    ucp.ucp_ep_flush_nbx.argtypes = (c_void_p, c_void_p)
    for name in ("ucp_tag_send_nbx", "ucp_tag_recv_nbx", "ucp_ep_flush_nbx"):
        getattr(ucp, name).restype = c_void_p
    for name in ("ucp_worker_progress", "ucp_worker_arm", "ucp_request_check_status", "ucp_request_free"):
        getattr(ucp, name).argtypes = (c_void_p,)
    ucp.ucp_request_free.restype = None
    return ucp


def _checked(status: int, what: str) -> None:
    if status != 0:
        raise UcxError(f"{what}: UCX status {status}")


class _Worker:
    """A context and its worker."""

    def __init__(self, place: Place) -> None:
        self.ucp = _load()
        self._messages = place.messages
        self._window = max(2, WINDOW_NBYTES // place.message_nbytes)
        config, self._context, self.worker, descriptor = c_void_p(), c_void_p(), c_void_p(), c_int()
        wanted = _Parameters(mask=1, first=_TAG | _WAKEUP)
        _checked(self.ucp.ucp_config_read(None, None, byref(config)), "ucp_config_read")
        _checked(self.ucp.ucp_init_version(*_API, byref(wanted), config, byref(self._context)), "ucp_init")
        self.ucp.ucp_config_release(config)
        made = self.ucp.ucp_worker_create(self._context, byref(_Parameters()), byref(self.worker))
        _checked(made, "ucp_worker_create")
        _checked(self.ucp.ucp_worker_get_efd(self.worker, byref(descriptor)), "ucp_worker_get_efd")
        self._events = select.poll()
        self._descriptor = descriptor.value
        self._events.register(self._descriptor, select.POLLIN)
        self.plain = _Parameters()  # a request without options: bytes

    def transfer(self, tensor: memoryview, start_one: Any) -> None:
        """All messages, a window of them at a time; `start_one(address, nbytes, tag)` returns a request."""
        base = ctypes.addressof(c_char.from_buffer(tensor))
        waiting: deque[int | None] = deque()
        for tag, (start, end) in enumerate(self._messages):
            if len(waiting) == self._window:
                self.finish(waiting.popleft())
            waiting.append(start_one(base + start, end - start, tag))
        while waiting:
            self.finish(waiting.popleft())

    def finish(self, request: int | None) -> None:
        """Wait for it.  Nothing: it was complete at once; the uppermost values are errors."""
        if request is None:
            return
        if request > 2**64 - 256:
            raise UcxError(f"a message could not be started: UCX status {request - 2**64}")
        while (status := self.ucp.ucp_request_check_status(request)) == _IN_PROGRESS:
            self._advance(self._events)
        self.ucp.ucp_request_free(request)
        _checked(status, "a message")

    def advance_until_told(self, sock: socket.socket) -> None:
        """Go on until the other end has a word: it may still need answers of ours when we have all that we need."""
        events = select.poll()
        events.register(self._descriptor, select.POLLIN)
        events.register(sock, select.POLLIN)
        word = select.poll()
        word.register(sock, select.POLLIN)
        while not word.poll(0):
            self._advance(events)
        if not sock.recv(1):
            raise ConnectionError("the other end of UCX ended")

    def _advance(self, events: select.poll) -> None:
        if self.ucp.ucp_worker_progress(self.worker):
            return
        armed = self.ucp.ucp_worker_arm(self.worker)
        if armed == _BUSY:
            return
        _checked(armed, "ucp_worker_arm")
        if not events.poll(SILENT_SECONDS * 1000):
            raise TimeoutError(f"UCX: nothing happened for {SILENT_SECONDS:.0f} s")

    def close(self) -> None:
        self.ucp.ucp_worker_destroy(self.worker)
        self.ucp.ucp_cleanup(self._context)


class Sender:
    """Gets the receiver's address over TCP, and says there when it has sent a tensor."""

    def __init__(self, place: Place) -> None:
        self._worker = _Worker(place)
        self._sock = connect((place.address, place.port))
        self._address = ctypes.create_string_buffer(self._sock.recv(65536))
        self._endpoint = c_void_p()
        wanted = _Parameters(mask=1, first=ctypes.addressof(self._address))
        made = self._worker.ucp.ucp_ep_create(self._worker.worker, byref(wanted), byref(self._endpoint))
        _checked(made, "ucp_ep_create")

    def send(self, tensor: memoryview) -> None:
        worker = self._worker
        worker.transfer(
            tensor,
            lambda address, nbytes, tag: worker.ucp.ucp_tag_send_nbx(
                self._endpoint, address, nbytes, tag, byref(worker.plain)
            ),
        )
        worker.finish(worker.ucp.ucp_ep_flush_nbx(self._endpoint, byref(worker.plain)))
        self._sock.sendall(_ALL_SENT)

    def close(self) -> None:
        self._worker.close()
        self._sock.close()


class Receiver:
    """One worker, whose address the sender gets."""

    def __init__(self, place: Place) -> None:
        self._worker = _Worker(place)
        ucp, address, length = self._worker.ucp, c_void_p(), c_size_t()
        found = ucp.ucp_worker_get_address(self._worker.worker, byref(address), byref(length))
        _checked(found, "ucp_worker_get_address")
        self._sock = accept((place.address, place.port))
        self._sock.sendall(ctypes.string_at(address.value or 0, length.value))

    def receive(self, tensor: memoryview) -> None:
        worker = self._worker
        worker.transfer(
            tensor,
            lambda address, nbytes, tag: worker.ucp.ucp_tag_recv_nbx(
                worker.worker, address, nbytes, tag, _ALL_BITS, byref(worker.plain)
            ),
        )
        worker.advance_until_told(self._sock)

    def close(self) -> None:
        self._sock.close()
        self._worker.close()
