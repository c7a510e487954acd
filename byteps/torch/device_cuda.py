"""A GPU by torch.cuda, and collectives among the local ranks by NCCL.  Never run on hardware yet.

*Streams.*  Each has a thread that waits for its watched events, which are made to block instead of spin.  torch's
collectives run on NCCL's own stream, which waits for the current one at the call; `wait()` on the work makes the
current stream wait for it, and returns at once.  Called at once, and with our stream as the current one, the two look
like one stream.  torch holds on to the tensors until then.

*Threads.*  A new thread's current device is GPU 0, on which some calls would make a context (hundreds of MB) in every
process; so each of ours sets its device first.  What they write is written in inference mode, where tensors that the
user made in it may be written, too.

*Host memory.*  The slots are shared memory, which torch's pinned allocator cannot give.  cudaHostRegister pins it and
maps it into the driver, so that copies are asynchronous and need no buffer in between.  It works on whole pages, a copy
must lie within one registration, and every process registers for itself.

*Groups.*  One communicator for every set of ranks that some plan names.  They are made directly from torch's class,
since the default group of torch.distributed is the user's.  A first collective in each connects it, so that what is
wrong with NCCL is said at the start.

*Fork.*  A forked child cannot use CUDA, and its copies of communicators must not be destroyed there: what is open is
kept by this module until it is closed.
"""

import mmap
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from byteps.device_plan import Collective, Span
from byteps.torch.device import DeviceError, Done

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of this process
_CLOSE_SECONDS = 5.0
_NOWHERE = Span(start=0, end=0)
_MEANING = {
    1: "invalid value",
    2: "no more memory can be locked",
    712: "it is registered already",
    801: "not supported by this system",
}
_open: "set[CudaDevice]" = set()
_pinning = threading.Lock()  # guards _pinned
_pinned = Counter[int]()  # by address

Store = Any  # of torch.distributed
Backend = Any  # torch.distributed.ProcessGroupNCCL, or another with the same methods
_Watched = tuple[torch.cuda.Event, Done] | None


@dataclass(frozen=True, slots=True)
class Mark:
    """An event, and the stream that it was recorded on."""

    event: torch.cuda.Event
    stream: torch.cuda.Stream


def nccl(store: Store, rank: int, size: int) -> Backend:
    """A communicator of NCCL."""
    if not (dist.is_available() and dist.is_nccl_available()):
        raise DeviceError(
            f"torch {torch.__version__} has no NCCL, with which the GPUs of a machine add up; install a build of torch "
            "for CUDA, or start one worker on each machine"
        )
    return dist.ProcessGroupNCCL(store, rank, size, dist.ProcessGroupNCCL.Options())


class Groups:
    """The collectives of one local rank."""

    def __init__(
        self,
        store: Store,
        rank: int,
        groups: Iterable[tuple[int, ...]],
        make: Callable[[Store, int, int], Backend] = nccl,
    ) -> None:
        """Every local rank gives the same groups; each is made by its members, one after the other."""
        self._rank = rank
        self._backends: dict[tuple[int, ...], Backend] = {}
        self._ending: list[threading.Thread] = []
        for ranks in sorted(set(groups)):
            if rank in ranks and len(ranks) > 1:
                own = PrefixStore("byteps ranks " + ",".join(map(str, ranks)), store)
                self._backends[ranks] = make(own, ranks.index(rank), len(ranks))

    def connect(self, probe: torch.Tensor) -> None:
        """A first collective in each, on the current stream."""
        for ranks in self._backends:
            self.collect(Collective(what="broadcast", ranks=ranks, span=_NOWHERE, root=ranks[0]), probe)

    def collect(self, step: Collective, memory: torch.Tensor) -> None:
        """In place on the span's memory, on the current stream."""
        backend = self._backends[step.ranks]
        unit = memory.numel() // len(step.ranks)
        index = step.ranks.index(self._rank)
        part = memory[unit * index : unit * (index + 1)]
        match step.what:
            case "reduce-scatter":
                work = backend._reduce_scatter_base(part, memory)
            case "all-gather":
                work = backend._allgather_base(memory, part)
            case "reduce":
                reduction = dist.ReduceOptions()
                reduction.rootRank = step.ranks.index(step.root)
                work = backend.reduce([memory], reduction)
            case "broadcast":
                sending = dist.BroadcastOptions()
                sending.rootRank = step.ranks.index(step.root)
                work = backend.broadcast([memory], sending)
        work.wait()

    def end(self, how: Literal["abort", "shutdown"], seconds: float = 0.0) -> bool:
        """Shut down in order, or abort what waits for another rank; whether that is done after so many seconds.

        Each in a thread of its own: some versions of NCCL hang in either, until other ranks do the same or for ever.
        """
        for backend in self._backends.values():
            # torch before 2.7 has them under these names
            names = (how, f"_{how}", "_shutdown")
            end = next(getattr(backend, name) for name in names if hasattr(backend, name))
            self._ending.append(threading.Thread(target=end, name=f"{how} NCCL", daemon=True))
            self._ending[-1].start()
        self._backends.clear()
        deadline = time.monotonic() + seconds
        for thread in self._ending:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._ending)


class CudaDevice:
    """A `byteps.torch.device.Device`."""

    def __init__(self, device: torch.device, groups: Groups) -> None:
        self._device = device
        self._groups = groups
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._watching: dict[torch.cuda.Stream, queue.SimpleQueue[_Watched]] = {}
        self._registered: list[int] = []
        self._aborted = False
        self._closed = False
        _open.add(self)
        try:
            with torch.cuda.stream(self.stream("collect")):
                groups.connect(torch.zeros(1, device=device))
            self.stream("collect").synchronize()
        except RuntimeError as error:  # torch's, of NCCL or CUDA
            raise DeviceError(
                f"NCCL did not connect {device} with the other GPUs of this machine: {error}; NCCL_DEBUG=INFO says "
                "more, and one worker on each machine needs no NCCL"
            ) from error

    def stream(self, name: str) -> torch.cuda.Stream:
        if name not in self._streams:
            stream = self._streams[name] = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            watched = self._watching[stream] = queue.SimpleQueue()
            threading.Thread(target=_watch, args=(watched, self.attend), name=f"gpu {name}", daemon=True).start()
        return self._streams[name]

    def attend(self) -> None:
        torch.cuda.set_device(self._device)

    def current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    def record(self, stream: torch.cuda.Stream) -> Mark:
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return Mark(event, stream)

    def wait(self, stream: torch.cuda.Stream, event: Mark) -> None:
        stream.wait_event(event.event)

    def reached(self, event: Mark) -> bool:
        return bool(event.event.query())  # type: ignore[no-untyped-call]

    def watch(self, event: Mark, done: Done) -> None:
        self._watching[event.stream].put((event.event, done))

    def copy(self, stream: torch.cuda.Stream, source: torch.Tensor, target: torch.Tensor) -> None:
        with torch.cuda.stream(stream), torch.inference_mode():
            target.copy_(source, non_blocking=True)

    def collect(self, stream: torch.cuda.Stream, step: Collective, memory: torch.Tensor) -> None:
        with torch.cuda.stream(stream), torch.inference_mode():
            self._groups.collect(step, memory)

    def pin(self, memory: memoryview, like: torch.Tensor) -> torch.Tensor:
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        with torch.cuda.device(self._device):
            register(flat.data_ptr(), flat.numel())
        self._registered.append(flat.data_ptr())
        return flat.view(like.dtype)

    def abort(self) -> None:
        if not self._aborted:
            self._aborted = True
            self._groups.end("abort")

    def close(self) -> None:
        """Waits a while for what is queued: memory must not be unregistered under a copy.  What hangs is left to the
        end of the process."""
        if self._closed:
            return
        self._closed = True
        if not self._drained():
            self.abort()
        for watched in self._watching.values():
            watched.put(None)
        if self._groups.end("abort" if self._aborted else "shutdown", _CLOSE_SECONDS):
            with torch.cuda.device(self._device):
                for address in self._registered:
                    unregister(address)
            self._registered.clear()
            _open.discard(self)

    def _drained(self) -> bool:
        """Whether all that is queued has been done, after a while."""
        done = [threading.Event() for _ in self._streams]
        try:
            for stream, event in zip(self._streams.values(), done, strict=True):
                self.watch(self.record(stream), partial(_set, event))
        except RuntimeError:  # the GPU is in error; nothing on it goes on
            return False
        return all(event.wait(_CLOSE_SECONDS) for event in done)


def _set(event: threading.Event, _error: BaseException | None) -> None:
    event.set()


def _watch(watched: "queue.SimpleQueue[_Watched]", attend: Callable[[], None]) -> None:
    """Tell whoever waits when events are reached, in the order in which they were recorded."""
    attend()
    while (one := watched.get()) is not None:
        event, done = one
        error: BaseException | None = None
        try:
            event.synchronize()
        except BaseException as raised:  # whoever waits for it is told
            error = raised
        done(error)


def register(address: int, nbytes: int) -> None:
    """Pin memory of this process for copies by its GPUs; what is pinned already is only counted."""
    with _pinning:
        if not _pinned[address]:
            _register(address, nbytes)
        _pinned[address] += 1


def unregister(address: int) -> None:
    """Once for each `register`."""
    with _pinning:
        _pinned[address] -= 1
        if not _pinned[address]:
            del _pinned[address]
            torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def _register(address: int, nbytes: int) -> None:
    if address % mmap.PAGESIZE:
        raise DeviceError(f"shared memory at {address:#x} does not begin with a page of {mmap.PAGESIZE} bytes")
    pages = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    code = int(torch.cuda.cudart().cudaHostRegister(address, pages, _PORTABLE))  # type: ignore[no-untyped-call]
    if code:
        raise DeviceError(
            f"pinning {pages:,} bytes of shared memory failed with CUDA error {code} "
            f"({_MEANING.get(code, 'unknown')}); allow more locked memory (ulimit -l unlimited, docker run "
            "--ulimit memlock=-1), or start one worker on each machine"
        )
