"""What the GPUs of this machine do in the benchmark `device`: `python -m experiments.device_program SETTINGS`.

One process, a thread for each GPU, `byteps.torch.local_device` as in a job.  The host's part is left out: the slot is
the result, so what is timed is what GPUs and PCIe do.  Iteration after iteration, each over the same tensors:

    out, in     copies alone, of the part of each GPU
    both        the same at the same time, on two streams: the bound
    collect     reduce-scatter and all-gather alone (no time with one GPU)
    pipeline    everything, all tensors under way at once; sums are checked

Prints one line of JSON: seconds of every iteration, by what was timed.
"""

import json
import mmap
import queue
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import HashStore

from byteps.device_plan import Collective, Copy, DevicePlan, device_plan, scattered
from byteps.errors import BytePSError
from byteps.torch.device import Done, Half
from byteps.torch.device_cuda import CudaDevice, Groups
from byteps.torch.local_device import LocalDevice

PATIENCE = 120.0


class Host:
    """Shared memory without anything behind it: when all have copied, the result is there."""

    def __init__(self, plans: dict[str, DevicePlan], element_nbytes: int, ranks: int) -> None:
        self._maps = {name: mmap.mmap(-1, plan.size * element_nbytes) for name, plan in plans.items()}
        self._there: dict[str, list[tuple[int, Done]]] = {name: [] for name in plans}
        self._lock = threading.Lock()  # guards _there
        self.devices: list[LocalDevice] = []
        self._told: list[queue.SimpleQueue[Callable[[], None]]] = [queue.SimpleQueue() for _ in range(ranks)]
        for told in self._told:
            threading.Thread(target=_tell, args=(told,), name="host", daemon=True).start()

    def memory(self, name: str) -> tuple[list[memoryview], memoryview]:
        view = memoryview(self._maps[name])
        return [view], view

    def contribute(self, rank: int, name: str, done: Done) -> None:
        with self._lock:
            there = self._there[name]
            there.append((rank, done))
            if len(there) < len(self._told):
                return
            self._there[name] = []
        for one, then in there:
            self._told[one].put(partial(then, None))

    def announce(self, name: str, half: Half) -> None:
        for rank, device in enumerate(self.devices[1:], start=1):
            self._told[rank].put(partial(device.turn, name, half))

    def check(self, name: str) -> None:
        pass

    def fail(self, error: BytePSError) -> None:
        for rank, device in enumerate(self.devices):
            self._told[rank].put(partial(device.fail, error))


def _tell(told: "queue.SimpleQueue[Callable[[], None]]") -> None:
    """What a rank is told, in order; never under another rank's lock."""
    while True:
        told.get()()


class Rank:
    """The host as one rank sees it."""

    def __init__(self, host: Host, rank: int) -> None:
        self.rank = rank
        self.memory, self.announce, self.check, self.fail = host.memory, host.announce, host.check, host.fail
        self.contribute = partial(host.contribute, rank)


def place(rank: int) -> torch.device:
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


class Gpu:
    """One rank: its device, its tensors, and what is timed."""

    def __init__(self, rank: int, ranks: int, plans: dict[str, DevicePlan], store: Any, host: Host) -> None:
        self.rank, self.ranks, self.plans = rank, ranks, plans
        where = place(rank)
        self.device = CudaDevice(where, Groups(store, rank, [tuple(range(ranks))]))
        self.local = LocalDevice(self.device, Rank(host, rank), stall_seconds=PATIENCE)
        self.tensors = {name: torch.empty(plan.size, device=where) for name, plan in plans.items()}
        self._maps = [mmap.mmap(-1, tensor.nbytes) for tensor in self.tensors.values()]
        self.pinned = {
            name: self.device.pin(memoryview(one), tensor)
            for (name, tensor), one in zip(self.tensors.items(), self._maps, strict=True)
        }

    def prepare(self) -> None:
        for name, tensor in self.tensors.items():
            torch.arange(len(tensor), out=tensor)
            tensor.remainder_(1000).add_(self.rank + len(name))
        self.synchronize()

    def copies(self, *ways: str) -> None:
        for name, plan in self.plans.items():
            for step in plan.steps(self.rank, (*plan.before, *plan.after)):
                if isinstance(step, Copy) and step.what in ways:
                    span = slice(step.span.start, step.span.end)
                    ends = self.tensors[name][span], self.pinned[name][span]
                    source, target = ends if step.what == "out" else ends[::-1]
                    self.device.copy(self.device.stream("out" if step.what == "out" else "back"), source, target)
        self.synchronize()

    def collect(self) -> None:
        for name, plan in self.plans.items():
            for step in plan.steps(self.rank, (*plan.before, *plan.after)):
                if isinstance(step, Collective):
                    part = self.tensors[name][step.span.start : step.span.end]
                    self.device.collect(self.device.stream("collect"), step, part)
        self.synchronize()

    def pipeline(self) -> None:
        sums = [self.local.submit(name, plan, self.tensors[name]) for name, plan in self.plans.items()]
        for one in sums:
            self.local.wait(one)
        self.synchronize()

    def largest_error(self) -> float:
        """After a pipeline."""
        errors = []
        for name, tensor in self.tensors.items():
            expected = torch.arange(len(tensor), device=tensor.device, dtype=torch.float64).remainder_(1000)
            expected = (expected + len(name)) * self.ranks + sum(range(self.ranks))
            errors.append((tensor - expected).abs().max().item())
        return max(errors)

    def synchronize(self) -> None:
        for name in ("collect", "out", "back"):
            self.device.stream(name).synchronize()
        self.device.current().synchronize()


def run(ranks: int, tensors: int, nbytes: int, warmups: int, iterations: int) -> dict[str, Any]:
    """All of it; the bytes are each tensor's."""
    plans = {f"tensor {number}": device_plan(scattered(ranks), nbytes // 4, 4) for number in range(tensors)}
    store, host = HashStore(), Host(plans, 4, ranks)
    barrier = threading.Barrier(ranks, timeout=PATIENCE)
    seconds: dict[str, list[float]] = {}
    errors, failures = list[float](), list[BaseException]()

    def timed(what: str, rank: int, run_: Callable[[], None]) -> None:
        barrier.wait()
        started = time.monotonic()
        run_()
        barrier.wait()
        if rank == 0:
            seconds.setdefault(what, []).append(time.monotonic() - started)

    def one(rank: int) -> None:
        try:
            gpu = Gpu(rank, ranks, plans, store, host)
            made[rank] = gpu.local
            barrier.wait()
            host.devices = [made[index] for index in range(ranks)]
            for _ in range(warmups + iterations):
                timed("out", rank, partial(gpu.copies, "out"))
                timed("in", rank, partial(gpu.copies, "in"))
                timed("both", rank, partial(gpu.copies, "out", "in"))
                if ranks > 1:
                    timed("collect", rank, gpu.collect)
                gpu.prepare()
                timed("pipeline", rank, gpu.pipeline)
                errors.append(gpu.largest_error())
            barrier.wait()
            gpu.local.close()
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    made: dict[int, LocalDevice] = {}
    threads = [threading.Thread(target=one, args=(rank,), name=f"rank {rank}") for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise next((error for error in failures if not isinstance(error, threading.BrokenBarrierError)), failures[0])
    return {
        "seconds": {what: values[warmups:] for what, values in seconds.items()},
        "max_error": max(errors),
        "checked": len(errors),
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    print(json.dumps(run(**json.loads(sys.argv[1]))), flush=True)
