"""A worker's GPU in the sums of its machine: `local_device` between the user's tensors and shared host memory.

Made at the first gradient on a GPU, by all workers of the machine: local rank 0 opens a store on loopback, tells the
others its port, and NCCL meets there.  What other threads have to say (the root's words, results that are there) goes
through one queue and one thread, which holds no lock meanwhile: the group calls under its own lock, and is called under
the device's.
"""

import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Protocol

import msgspec
import torch
from torch._C._distributed_c10d import TCPStore

from byteps.communication import Pending
from byteps.device_plan import DevicePlan, Way, device_plan
from byteps.errors import BytePSError, StartError
from byteps.rendezvous import log
from byteps.session import LOCAL_GROUP, Session
from byteps.torch.device import Device, Done, Event, Half
from byteps.torch.device_cuda import CudaDevice, Groups, Store
from byteps.torch.device_ways import chosen_ways
from byteps.torch.local_device import LocalDevice, Sum
from byteps.wire import Op, TensorSpec

_LOOPBACK = "127.0.0.1"
_LOOK_SECONDS = 0.5
# A store serves while it lives; in a forked child its end would wait for a thread that is not there.
_serving: list[Store] = []
_NARROW = ("uint8", "int32")


class Group(Protocol):
    """The workers of a machine, their shared memory, and the network behind it (`byteps.local_reduce`)."""

    rank: int  # local

    def memory(self, spec: TensorSpec, slots: int = 0) -> tuple[list[memoryview], memoryview]:
        """So many slots, each on pages of its own, and the result; raises the job's error if it is over."""

    def contribute(self, spec: TensorSpec, priority: int = 0, done: Done | None = None) -> object:
        """This worker has filled what it fills; `done` when the result is there, or with the job's error."""

    def tell(self, word: bytes) -> None:
        """Local rank 0: to what the others `listen` with, in order."""

    def listen(self, hear: Callable[[bytes], None]) -> None:
        """Not local rank 0: hear words."""

    def violated(self, text: str) -> None:
        """The job is over, for that reason."""


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """The root's word: this half of this tensor is next."""

    name: str
    half: Half


class GroupHost:
    """A `local_device.Host` over the workers' shared memory."""

    def __init__(self, group: Group, start_seconds: float) -> None:
        self.rank = group.rank
        self._group = group
        self._start_seconds = start_seconds
        self._specs: dict[str, tuple[TensorSpec, int, int]] = {}  # by name: with its slots and priority
        self._local: LocalDevice | None = None
        self._early: list[Turn] = []  # before there is one
        self._port: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="gpu host", daemon=True).start()
        if self.rank:
            group.listen(lambda word: self._todo.put(partial(self._hear, word)))

    def store(self) -> Store:
        """Where the workers' communicators meet.  Waits for local rank 0."""
        patience = timedelta(seconds=self._start_seconds)
        if self.rank == 0:
            listener = socket.create_server((_LOOPBACK, 0))  # the store's own would listen on every interface
            port = listener.getsockname()[1]
            store = TCPStore(
                _LOOPBACK,
                port,
                None,
                True,
                patience,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
                use_libuv=False,  # takes over no listener before torch 2.8
            )
            _serving.append(store)
            self._group.tell(msgspec.msgpack.encode(store.port))
            return store
        try:
            port = self._port.get(timeout=self._start_seconds)
        except queue.Empty:
            raise StartError(
                f"local rank {self.rank} waited {self._start_seconds:.0f} s for local rank 0 to sum something on its "
                "GPU; either all workers of a machine have their tensors on GPUs, or none (BYTEPS_LOCAL_REDUCTION=0: "
                "every worker counts as a machine of its own)"
            ) from None
        return TCPStore(_LOOPBACK, port, None, False, patience)

    def serve(self, device: Device, local: LocalDevice) -> None:
        """From now on turns are its own."""
        self._todo.put(device.attend)
        self._todo.put(partial(self._serve, local))

    def declare(self, spec: TensorSpec, slots: int, priority: int) -> bool:
        """Before the tensor is submitted; the newest priority counts.  False if the name is another tensor's."""
        known, *_ = self._specs.setdefault(spec.name, (spec, slots, priority))
        if known == spec:
            self._specs[spec.name] = spec, slots, priority
        return known == spec

    def contradict(self, spec: TensorSpec, done: Done) -> None:
        """Declare a tensor whose name is another's; `done` gets the job's verdict."""
        self._group.contribute(spec, 0, lambda error: self._todo.put(partial(done, error)))

    def check(self, name: str) -> None:
        """Raise the job's error if it is over."""
        self._group.memory(*self._specs[name][:2])

    def memory(self, name: str) -> tuple[list[memoryview], memoryview]:
        spec, slots, _ = self._specs[name]
        return self._group.memory(spec, slots)

    def contribute(self, name: str, done: Done) -> None:
        spec, _, priority = self._specs[name]
        self._group.contribute(spec, priority, lambda error: self._todo.put(partial(done, error)))

    def announce(self, name: str, half: Half) -> None:
        self._group.tell(msgspec.msgpack.encode(Turn(name, half)))

    def fail(self, error: BytePSError) -> None:
        self._group.violated(str(error))

    def close(self) -> None:
        self._todo.put(None)

    def _hear(self, word: bytes) -> None:
        said = msgspec.msgpack.decode(word, type=int | Turn)
        if isinstance(said, int):
            self._port.put(said)
        elif self._local is None:
            self._early.append(said)
        else:
            self._local.turn(said.name, said.half)

    def _serve(self, local: LocalDevice) -> None:
        self._local = local
        for turn in self._early:
            local.turn(turn.name, turn.half)
        self._early.clear()

    def _run(self) -> None:
        while (one := self._todo.get()) is not None:
            one()


class Summing:
    """A sum on its way back to the user's tensor."""

    def __init__(self, local: LocalDevice, one: Sum, work: torch.Tensor, result: torch.Tensor) -> None:
        self._local, self._one, self._work, self._result = local, one, work, result

        self.over: Future[Pending | None] = Future()  # or its error: then `wait` returns, or raises, at once
        one.finished.add_done_callback(self._tell)

    def _tell(self, finished: "Future[Event]") -> None:
        error = finished.exception()
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)

    def wait(self) -> None:
        """The caller's stream has the sum in the result from then on."""
        self._local.wait(self._one)
        if self._work.data_ptr() != self._result.data_ptr():
            with torch.no_grad():
                self._result.copy_(self._work.view(self._result.shape))
            if self._work.is_cuda:  # allocated on the stream that submitted it
                self._work.record_stream(torch.cuda.current_stream(self._work.device))


def takes(spec: TensorSpec) -> bool:
    """Whether the GPUs of a machine add up what is on them; the same for all its workers."""
    summed = spec.op in (Op.SUM, Op.AVERAGE) and not spec.members and spec.nbytes > 0
    # Averages of narrow integers are summed as int64, which the device would not do.
    return summed and (spec.op is Op.SUM or spec.dtype not in _NARROW)


class Gpu:
    """This worker's GPU."""

    def __init__(
        self,
        host: GroupHost,
        ways: tuple[Way, ...],
        where: torch.device,
        *,
        stall_seconds: float,
        make: Callable[[torch.device, Groups], Device] = CudaDevice,
        groups: Callable[..., Groups] = Groups,
    ) -> None:
        """Waits for the other workers of the machine."""
        self.where = where
        self._host = host
        self._ways = ways
        self._plans: dict[tuple[int, int], DevicePlan] = {}
        sets = {group.ranks for way in ways for group in way.groups}
        device = make(where, groups(host.store(), host.rank, sets))
        self._local = LocalDevice(device, host, stall_seconds=stall_seconds)
        host.serve(device, self._local)
        self._closed = threading.Event()
        threading.Thread(target=self._look, name="gpu watch", daemon=True).start()

    def _look(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            self._local.look()

    def begin(self, spec: TensorSpec, source: torch.Tensor, result: torch.Tensor, priority: int) -> Summing:
        """Start a sum.  `result` may be `source`, and may have another type or layout."""
        if source.device != self.where:
            raise BytePSError(
                f"tensor {spec.name!r} is on {source.device}, earlier ones of this worker are on {self.where}; a "
                "worker has one GPU: call torch.cuda.set_device(byteps.torch.local_rank()) first"
            )
        work = _work(source, result)
        plan = self._plan(spec)
        if self._host.declare(spec, plan.slots, priority):
            one = self._local.submit(spec.name, plan, work.view(-1), source)
        else:
            one = self._local.refused(spec.name, work, partial(self._host.contradict, spec))
        return Summing(self._local, one, work, result)

    def _plan(self, spec: TensorSpec) -> DevicePlan:
        size = spec.numel
        key = size, spec.nbytes // size
        if key not in self._plans:
            self._plans[key] = device_plan(self._ways, *key)
        return self._plans[key]

    def close(self) -> None:
        self._closed.set()
        self._local.close()
        self._host.close()


def _work(source: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Contiguous memory with the contribution, to be summed in place: the result's own if it can be.

    `.data`, since what is written there by the way is no change that autograd or version counters should see.
    """
    target = result.data
    alike = target.dtype == source.dtype and target.device == source.device and target.is_contiguous()
    alike = alike and (source.is_contiguous() or source.data_ptr() != target.data_ptr())
    if not alike or target.is_neg() or target.is_conj():
        return source.data.clone(memory_format=torch.contiguous_format)
    if target.data_ptr() != source.data_ptr():
        target.copy_(source)
    return target


_making = threading.Lock()


def gpu_of(session: Session) -> Gpu:
    """This worker's, made when it is first asked for: by whichever thread has the first gradient."""
    with _making:
        if "gpu" not in session.plugins:
            gpu = session.plugins["gpu"] = _make(session, session.plugins[LOCAL_GROUP])
            session.closing.append(gpu.close)
        made: Gpu = session.plugins["gpu"]
        return made


def _make(session: Session, group: Group) -> Gpu:
    """On the GPU that is this worker's current one."""
    settings = session.settings
    ways, notice = chosen_ways(settings)
    if group.rank == 0:
        log(f"worker {session.rank}", notice)
    host = GroupHost(group, settings.start_seconds)
    where = torch.device("cuda", torch.cuda.current_device())
    return Gpu(host, ways, where, stall_seconds=settings.stall_seconds)
