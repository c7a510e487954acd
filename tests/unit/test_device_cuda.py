"""What of the CUDA device runs without one: collectives over gloo in NCCL's place, pinning, watching events."""

import mmap
import queue
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed")
if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

from byteps.device_plan import Collective, Span, device_plan, scattered  # noqa: E402
from byteps.torch import device_cuda  # noqa: E402
from byteps.torch.device import DeviceError  # noqa: E402
from byteps.torch.device_cuda import Groups, nccl, register, unregister  # noqa: E402

PATIENCE = 20.0
EVERYONE = (0, 1, 2)


def gloo(store, rank: int, size: int):
    return dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=PATIENCE))


def together(task) -> list:
    """The task of every rank at the same time; its results."""
    store, results = dist.HashStore(), [None] * len(EVERYONE)

    def run(rank: int) -> None:
        try:
            groups = Groups(store, rank, [EVERYONE, (0, 2), (1,)], gloo)
            groups.connect(torch.zeros(1))
            results[rank] = task(groups, rank)
            groups.end("shutdown", PATIENCE)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in EVERYONE]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return results


def gradient(rank: int) -> "torch.Tensor":
    return torch.arange(12.0) + 100 * rank


def test_collectives_do_what_the_plan_means_by_them() -> None:
    def task(groups: Groups, rank: int):
        memory, found = gradient(rank), []
        span = Span(start=0, end=12)
        groups.collect(Collective(what="reduce-scatter", ranks=EVERYONE, span=span), memory)
        found.append(memory[4 * rank : 4 * rank + 4].tolist())
        groups.collect(Collective(what="all-gather", ranks=EVERYONE, span=span), memory)
        found.append(memory.tolist())
        memory = gradient(rank)
        if rank in (0, 2):
            groups.collect(Collective(what="reduce", ranks=(0, 2), span=span, root=2), memory)
            found.append(memory.tolist() if rank == 2 else [])
            groups.collect(Collective(what="broadcast", ranks=(0, 2), span=span, root=2), memory)
            found.append(memory.tolist())
        return found

    total = (torch.arange(12.0) * 3 + 300).tolist()
    of_two = (torch.arange(12.0) * 2 + 200).tolist()
    for rank, found in enumerate(together(task)):
        assert found[:2] == [total[4 * rank : 4 * rank + 4], total]
        assert rank == 1 or found[2:] == [of_two if rank == 2 else [], of_two]


def test_a_whole_plan_sums_over_real_collectives() -> None:
    plan = device_plan(scattered(3), 1000, 4, 1600)
    slot, result = torch.full((1000,), torch.nan), torch.full((1000,), torch.nan)
    barrier = threading.Barrier(3, timeout=PATIENCE)

    def task(groups: Groups, rank: int):
        memory = torch.arange(1000.0) % 7 + rank
        for steps, source, target in ((plan.before, memory, slot), (plan.after, result, memory)):
            for step in plan.steps(rank, steps):
                place = slice(step.span.start, step.span.end)
                if isinstance(step, Collective):
                    groups.collect(step, memory[place])
                else:
                    target[place] = source[place]
            if barrier.wait() == 0:
                result.copy_(slot)
            barrier.wait()
        return memory

    for found in together(task):
        assert torch.equal(found, (torch.arange(1000.0) % 7) * 3 + 3)


@pytest.mark.skipif(dist.is_nccl_available(), reason="this torch has NCCL")
def test_without_nccl_it_is_said_what_to_do() -> None:
    with pytest.raises(DeviceError, match=r"has no NCCL.*install a build of torch for CUDA, or start one worker"):
        nccl(dist.HashStore(), 0, 2)


class Cudart:
    """The runtime, which registers as long as it likes."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.calls = code, []

    def cudaHostRegister(self, *call: int) -> int:  # noqa: N802
        self.calls.append(call)
        return self.code

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.calls.append((address,))
        return 0


def test_whole_pages_are_pinned_and_a_refusal_says_what_to_do(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: granting)
    granting = Cudart()
    for _ in range(2):
        register(3 * mmap.PAGESIZE, 5000)
    assert granting.calls == [(3 * mmap.PAGESIZE, 2 * mmap.PAGESIZE, 1)]
    for count in (1, 2):
        unregister(3 * mmap.PAGESIZE)
        assert len(granting.calls) == count
    with pytest.raises(DeviceError, match="at 0x7 does not begin with a page"):
        register(7, 10)
    granting = Cudart(code=2)
    with pytest.raises(
        DeviceError, match=r"pinning 8,192 bytes .* CUDA error 2 \(no more memory can be locked\).*ulimit"
    ):
        register(0, 5000)


def test_events_are_told_in_their_order_and_errors_to_whom_they_belong() -> None:
    def broken() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    watched, told = queue.SimpleQueue(), []
    for synchronize in (lambda: None, broken, lambda: None):
        watched.put((SimpleNamespace(synchronize=synchronize), lambda error: told.append(str(error))))
    watched.put(None)
    thread = threading.Thread(target=device_cuda._watch, args=(watched, lambda: told.append("attends")))
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert told == ["attends", "None", "an illegal memory access was encountered", "None"]


def test_a_group_is_ended_by_whatever_name_torch_has_for_it() -> None:
    called = []
    old = SimpleNamespace(_shutdown=lambda: called.append("_shutdown"))
    newer = SimpleNamespace(_abort=lambda: called.append("_abort"), _shutdown=lambda: called.append("no"))
    newest = SimpleNamespace(abort=lambda: called.append("abort"), _shutdown=lambda: called.append("no"))
    for backend in (old, newer, newest):
        groups = Groups(dist.HashStore(), 0, [(0, 1)], lambda *_, backend=backend: backend)
        assert groups.end("abort", PATIENCE)
    assert called == ["_shutdown", "_abort", "abort"]


def test_an_abort_that_hangs_is_left_alone() -> None:
    release = threading.Event()
    stuck = SimpleNamespace(abort=lambda: release.wait(PATIENCE))
    groups = Groups(dist.HashStore(), 0, [(0, 1)], lambda *_: stuck)
    assert not groups.end("abort")
    release.set()
    assert groups.end("abort", PATIENCE)
