"""A GPU's tensors through real shared memory of a machine's workers: devices that act at once, collectives by gloo."""

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed")
if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

pytest.importorskip("byteps.local_reduce", reason="the workers of a machine have no shared memory here")

from plain_device import Plain  # noqa: E402

from byteps.device_plan import Way, scattered, ways_of  # noqa: E402
from byteps.errors import BytePSError, MismatchError, StartError  # noqa: E402
from byteps.local_link import Sockets  # noqa: E402
from byteps.local_reduce import LocalGroup  # noqa: E402
from byteps.local_root import LocalRoot  # noqa: E402
from byteps.machine_file import preset  # noqa: E402
from byteps.torch.device_cuda import Groups  # noqa: E402
from byteps.torch.device_session import Gpu, GroupHost, takes  # noqa: E402
from byteps.wire import Op, TensorSpec  # noqa: E402

PATIENCE = 20.0


class Alone:
    """A machine without a network, whose job is what its workers say."""

    def __init__(self) -> None:
        self.groups: list[LocalGroup] = []
        self.specs: dict[str, TensorSpec] = {}
        self.violations: list[str] = []

    def announce(self, spec: TensorSpec) -> None:
        if self.specs.setdefault(spec.name, spec) != spec:
            for group in self.groups:
                threading.Thread(target=group.fail, args=(MismatchError(f"{spec.name} differs"),)).start()

    def violated(self, text: str) -> None:
        self.violations.append(text)
        for group in self.groups:
            threading.Thread(target=group.fail, args=(BytePSError(text),)).start()

    def send(self, spec, source, target, priority, done) -> None:
        raise AssertionError("there is no network")

    def lost(self, local_rank: int) -> None: ...

    def waiting(self, name, seconds, ready) -> None: ...

    def relax(self) -> None: ...


def gloo(store, rank: int, size: int):
    return dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=PATIENCE))


def make_groups(store, rank, sets) -> Groups:
    return Groups(store, rank, sets, gloo)


def run(ranks: int, ways: tuple[Way, ...], task: Callable[[Gpu, int], object]) -> tuple[list[object], Alone]:
    """The task on every worker of a machine; what it returns or raises."""
    around, results = Alone(), [None] * ranks
    pairs = [[socket.socketpair() for _ in range(2)] for _ in range(ranks - 1)]
    ends = [[Sockets(*(pair[side] for pair in each)) for each in pairs] for side in range(2)]
    root = LocalRoot(
        size=ranks,
        machines=1,
        networked=False,
        stall_warn_seconds=PATIENCE,
        sockets=dict(enumerate(ends[0], start=1)),
        around=around,
    )
    others = [LocalGroup(rank=r, size=ranks, sockets={0: ends[1][r - 1]}, around=around) for r in range(1, ranks)]
    around.groups = [root, *others]

    def work(rank: int) -> None:
        host = GroupHost(around.groups[rank], PATIENCE)
        try:
            gpu = Gpu(host, ways, torch.device("cpu"), stall_seconds=PATIENCE, make=Plain, groups=make_groups)
            results[rank] = task(gpu, rank)
            barrier.wait()
            gpu.close()
        except Exception as error:
            results[rank] = error

    barrier = threading.Barrier(ranks, timeout=PATIENCE)
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    for group in around.groups:
        group.leave()
    for group in around.groups:
        group.close()
    return results, around


def spec(name: str, size: int, op: Op = Op.SUM, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, shape=(size,), dtype=dtype, op=op)


def test_tensors_of_all_kinds_are_summed_where_they_are_or_elsewhere() -> None:
    sizes = {"small": 5, "odd": 1001, "large": 40_000}

    def task(gpu: Gpu, rank: int):
        found = []
        for number in range(3):
            tensors = {name: torch.arange(float(size)) % 7 + rank + number for name, size in sizes.items()}
            order = list(sizes) if rank % 2 else list(sizes)[::-1]
            begun = {name: gpu.begin(spec(name, sizes[name]), tensors[name], tensors[name], 0) for name in order}
            for name in sizes:
                begun[name].wait()
            found.append(tensors)
        source = torch.arange(12.0).reshape(3, 4) + rank
        elsewhere = torch.empty(3, 4, dtype=torch.float64)
        one = gpu.begin(spec("elsewhere", 12), source, elsewhere, 0)
        one.wait()
        transposed = torch.arange(12.0).reshape(3, 4).t()
        version = transposed._version
        two = gpu.begin(spec("average", 12, Op.AVERAGE), transposed, transposed, 0)
        assert transposed._version == version
        two.wait()
        return found, source, elsewhere, transposed

    topology = preset("pcie-only")
    kept = {"GPU0", "GPU1", "GPU4", "GPU5"}
    small = replace(
        topology,
        nodes=tuple(node for node in topology.nodes if node.kind != "gpu" or node.name in kept),
        links=tuple(ln for ln in topology.links if not ln.a.startswith("GPU") or ln.a in kept),
    )
    for ways in (scattered(4), ways_of(small, "cpu-assisted"), ways_of(small, "brute-force")):
        results, around = run(4, ways, task)
        for rank, result in enumerate(results):
            assert not isinstance(result, Exception), result
            found, source, elsewhere, average = result
            for number, tensors in enumerate(found):
                for name, size in sizes.items():
                    assert torch.equal(tensors[name], (torch.arange(float(size)) % 7 + number) * 4 + 6), (rank, name)
            assert torch.equal(source, torch.arange(12.0).reshape(3, 4) + rank)
            assert torch.equal(elsewhere, (torch.arange(12.0).reshape(3, 4) * 4 + 6).double())
            assert torch.equal(average, torch.arange(12.0).reshape(3, 4).t())
        assert around.violations == []


def test_workers_that_mean_different_tensors_by_a_name_all_learn_it() -> None:
    def task(gpu: Gpu, rank: int):
        tensor = torch.ones(100 + rank)
        gpu.begin(spec("same", 100), tensor[:100], tensor[:100], 0).wait()
        gpu.begin(spec("same", 100 + rank), tensor, tensor, 0).wait()

    results, _ = run(2, scattered(2), task)
    assert [type(result) for result in results] == [MismatchError, MismatchError]


def test_a_worker_on_another_device_is_told_to_set_its_own() -> None:
    def task(gpu: Gpu, rank: int):
        gpu.begin(spec("away", 4), torch.empty(4, device="meta"), torch.empty(4, device="meta"), 0)

    results, _ = run(2, scattered(2), task)
    assert "a worker has one GPU: call torch.cuda.set_device" in str(results[0])


def test_without_local_rank_0_a_worker_does_not_wait_for_ever() -> None:
    here, there = (Sockets(*pair) for pair in zip(*(socket.socketpair() for _ in range(2)), strict=True))
    group = LocalGroup(rank=1, size=2, sockets={0: here}, around=Alone())
    with pytest.raises(StartError, match="local rank 1 waited 0 s for local rank 0 to sum something on its GPU"):
        GroupHost(group, 0.1).store()
    group.close()
    for sock in there:
        sock.close()


def test_only_sums_that_devices_do_alike_go_this_way() -> None:
    assert takes(spec("sum", 3, dtype="int32"))
    assert takes(spec("average", 3, Op.AVERAGE))
    assert not takes(spec("copy", 3, Op.COPY))
    assert not takes(spec("nothing", 0))
    assert not takes(spec("needs int64", 3, Op.AVERAGE, "int32"))
