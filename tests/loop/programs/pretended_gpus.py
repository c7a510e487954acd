"""Workers of a machine whose GPUs are pretended: the whole way of a gradient, with gloo and the CPU in their places."""

import sys
import threading
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist

import byteps.torch as bps
from byteps.session import current
from byteps.torch import device_session
from byteps.torch.device_cuda import Groups
from byteps.torch.device_ways import chosen_ways

PATIENCE = 30.0


class Pretended:
    """Does everything at once, where it is asked to."""

    def __init__(self, _where, groups) -> None:
        self._groups = groups
        groups.connect(torch.zeros(1))

    def stream(self, name):
        return SimpleNamespace(name=name)

    def current(self):
        return self.stream("compute")

    def attend(self) -> None: ...

    def record(self, stream):
        return stream

    def wait(self, stream, event) -> None: ...

    def reached(self, event) -> bool:
        return True

    def watch(self, event, done) -> None:
        threading.Thread(target=done, args=(None,)).start()

    def copy(self, stream, source, target) -> None:
        target.copy_(source)

    def collect(self, stream, step, memory) -> None:
        self._groups.collect(step, memory)

    def pin(self, memory, like):
        return torch.frombuffer(memory, dtype=like.dtype)

    def abort(self) -> None:
        self._groups.end("abort")

    def close(self) -> None:
        self._groups.end("shutdown", PATIENCE)


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU to whoever asks for the way it takes."""

    @property
    def device(self):
        return torch.device("cuda", 0)


def gloo(store, rank, size):
    return dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=PATIENCE))


def make(session, group):
    ways, _ = chosen_ways(session.settings)
    host = device_session.GroupHost(group, PATIENCE)
    return device_session.Gpu(
        host,
        ways,
        torch.device("cuda", 0),
        stall_seconds=PATIENCE,
        make=Pretended,
        groups=lambda store, rank, sets: Groups(store, rank, sets, gloo),
    )


def main() -> None:
    device_session._make = make
    bps.init()
    rank, size = bps.rank(), bps.size()
    for number in range(3):
        handles, tensors = {}, {}
        for length in (3, 1000, 100_000)[:: 1 if rank % 2 else -1]:
            tensors[length] = torch.arange(float(length)).remainder(7) + rank + number
            there = tensors[length].as_subclass(OnGpu)
            handles[length] = bps.push_pull_async_inplace(there, f"gradient {length}", op="sum" if length > 3 else None)
        for length, handle in handles.items():
            bps.synchronize(handle)
            expected = torch.arange(float(length)).remainder(7) * size + sum(range(size)) + number * size
            assert torch.equal(tensors[length], expected / (1 if length > 3 else size)), (length, tensors[length])
    assert "gpu" in current().plugins
    on_host = bps.push_pull(torch.full((5,), float(rank)), "host", op="sum")
    assert on_host.tolist() == [float(sum(range(size)))] * 5
    if sys.argv[1:] == ["mismatch"]:
        bps.push_pull_inplace(torch.ones(10 + rank).as_subclass(OnGpu), name="odd", op="sum")
    print("right", flush=True)


main()
