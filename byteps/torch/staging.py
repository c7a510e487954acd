"""Tensors on a GPU: to the host and back, without stopping the streams that compute.

A gradient is ready when the kernels queued before its hook have run.  Its copy to the host therefore waits for them on
a side stream; the compute stream goes on.  One thread waits for the ends of the copies, in order, and hands the host's
buffers to the session; it holds no lock that autograd needs.  The sum is copied back by whoever synchronises, on that
thread's current stream, so that whatever it launches next sees it.  Host buffers are pinned, and come from torch's
caching allocator, which reuses one only when the copies that use it are through.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from byteps.communication import Pending


@dataclass(frozen=True, slots=True)
class _Copy:
    """Under way on a side stream."""

    device: torch.device
    copied: torch.cuda.Event
    submit: Callable[[], Pending | None]
    submitted: Future[Pending | None]


class Stager:
    """Copies out, in one order, on one side stream per device."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._copies: queue.SimpleQueue[_Copy] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="staging", daemon=True).start()

    def stage(
        self, source: torch.Tensor, host: torch.Tensor, submit: Callable[[], Pending | None]
    ) -> "Future[Pending | None]":
        """Copy `source` to the pinned `host`, then call `submit`, whose result the future gets."""
        side = self._streams.get(source.device)
        if side is None:
            side = self._streams[source.device] = torch.cuda.Stream(source.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(side):
            host.copy_(source, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(side)
        source.record_stream(side)  # its memory may be freed, but not reused before the copy is through
        copy = _Copy(source.device, copied, submit, Future())
        self._copies.put(copy)
        return copy.submitted

    def _run(self) -> None:
        while True:
            copy = self._copies.get()
            try:
                torch.cuda.set_device(copy.device)  # a new thread's is GPU 0, where waiting may make a context
                copy.copied.synchronize()
                copy.submitted.set_result(copy.submit())
            except BaseException as error:  # whoever waits for it raises it
                copy.submitted.set_exception(error)
