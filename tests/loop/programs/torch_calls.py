"""byteps.torch's calls, in the forms of the official plug-in and of Horovod; run as every worker."""

import time

import torch

import byteps.torch as bps
from byteps.errors import BytePSError

assert not bps.is_initialized()
bps.init()
assert bps.is_initialized()
RANK, SIZE = bps.rank(), bps.size()
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64),
    torch.uint64,
]


def values(rank: int, *shape: int) -> torch.Tensor:
    count = int(torch.tensor(shape).prod())
    return (torch.arange(count) * 7 + rank * 1000.0).reshape(shape)


def total(*shape: int) -> torch.Tensor:
    return sum(values(rank, *shape) for rank in range(SIZE))


def refused(call, *words: str) -> None:
    try:
        call()
    except (BytePSError, ValueError, TypeError) as error:
        said = str(error)
    else:
        said = "it was not refused"
    assert all(word in said for word in words), said


def bits(tensor: torch.Tensor) -> list[int]:
    """Which zero has its sign, but one NaN is as good as another."""
    if tensor.dtype.is_floating_point:
        tensor = torch.where(tensor.float().isnan(), torch.tensor(float("nan")).to(tensor.dtype), tensor)
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def forms_of_the_official_plug_in() -> None:
    mine = values(RANK, 3, 5)
    bps.declare("Gradient.x")
    for name, arguments in {"a": (True, "a"), "b": (True, "b", 0, 3), "c": ("c",)}.items():
        assert torch.equal(bps.push_pull(mine, *arguments), total(3, 5) / SIZE), name
    assert torch.equal(bps.push_pull(mine, average=False, name="d"), total(3, 5))
    half = bps.push_pull(mine, average=True, name="e", compression=bps.Compression.fp16)
    assert half.dtype == torch.float32
    assert torch.equal(half, (sum(values(r, 3, 5).half().float() for r in range(SIZE)) / SIZE).half().float())
    assert torch.equal(mine, values(RANK, 3, 5))  # nothing was done in place
    for times in range(1, 4):  # one name, a new tensor each time
        again = mine.clone() * times
        assert torch.equal(bps.push_pull(again, average=False, name="d"), times * total(3, 5))
        assert torch.equal(again, mine * times)
        del again
    handle = bps.push_pull_async_inplace(mine, False, "f")
    assert bps.synchronize(handle) is mine
    assert torch.equal(mine, total(3, 5))
    strided = values(RANK, 4, 6).t()
    assert bps.push_pull_inplace(strided, "g", op="sum") is strided
    assert torch.equal(strided, total(4, 6).t())
    assert bps.poll(handle)
    negative = torch._neg_view(values(RANK, 3))  # as the imaginary part of a conjugate
    assert negative.is_neg()
    assert torch.equal(bps.push_pull_inplace(negative, "h", op="sum"), -total(3))


def forms_of_horovod() -> None:
    mine = values(RANK, 7)
    assert torch.equal(bps.allreduce(mine), total(7) / SIZE)
    assert torch.equal(bps.allreduce(mine, op=bps.Sum, name="s"), total(7))
    assert torch.equal(bps.allreduce(mine, prescale_factor=0.5, postscale_factor=4.0, op=bps.Sum), 2 * total(7))
    assert torch.equal(bps.synchronize(bps.allreduce_async(mine, op=bps.Average)), total(7) / SIZE)
    assert torch.equal(
        bps.synchronize(bps.allreduce_async_(mine.clone(), op=bps.Sum, prescale_factor=2.0)), 2 * total(7)
    )
    again = mine.clone()
    assert bps.allreduce_(again, average=False) is again
    assert torch.equal(again, total(7))
    grouped = bps.grouped_allreduce([mine, values(RANK, 2, 2)], op=bps.Sum, name="group")
    assert torch.equal(grouped[0], total(7))
    assert torch.equal(grouped[1], total(2, 2))
    refused(lambda: bps.allreduce(mine, op=bps.Adasum), "adasum", "'average' or 'sum'")
    refused(lambda: bps.allreduce(mine, process_set=1), "process sets are not supported")
    refused(lambda: bps.allreduce(mine, average=True, op=bps.Sum), "contradicts")
    bps.barrier()
    assert bps.nccl_built() is bps.mpi_threads_supported() is False
    assert (bps.cross_size(), bps.cross_rank()) == (SIZE // bps.local_size(), RANK // bps.local_size())
    for name in ("elastic", "SyncBatchNorm", "start_timeline"):
        assert not hasattr(bps, name)
    scalar = bps.allreduce(torch.tensor(3.5 + RANK))
    assert scalar.shape == ()
    assert scalar.item() == 3.5 + (SIZE - 1) / 2
    assert bps.allreduce(torch.empty(2, 0)).shape == (2, 0)


def groups_of_horovod() -> None:
    shapes = [(7,), (5, 2), (2, 0)]
    mine = [values(RANK, *shape) for shape in shapes]
    want = [total(*shape) for shape in shapes]
    rows = [each.tensor_split(SIZE)[RANK] for each in want]

    def same(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
        assert len(got) == len(wanted)
        assert all(torch.equal(*pair) for pair in zip(got, wanted, strict=True))

    small = [torch.arange(5.0) + RANK, torch.full((2, 2), 1.0 + RANK)]
    halves = bps.grouped_allreduce(small, None, "16", bps.Compression.fp16, bps.Sum)
    same(halves, [sum(torch.arange(5.0) + r for r in range(SIZE)), torch.full((2, 2), SIZE * (SIZE + 1) / 2)])
    handle = bps.grouped_allreduce_async(mine, None, "a", bps.Sum, 0.5, 4.0)
    same(bps.synchronize(handle), [2 * each for each in want])
    assert bps.poll(handle)
    places = [each.clone() for each in mine]
    assert all(got is place for got, place in zip(bps.grouped_allreduce_(places, op=bps.Sum), places, strict=True))
    same(places, want)
    bps.synchronize(bps.grouped_allreduce_async_(places, op=bps.Average, name="c"))
    same(places, want)
    leaf = values(RANK, 3).requires_grad_()
    bps.grouped_allreduce([leaf], op=bps.Sum)[0].sum().backward()
    assert torch.equal(leaf.grad, torch.full((3,), float(SIZE)))

    own = torch.full((RANK + 1, 2), float(RANK))
    everything = torch.cat([torch.full((rank + 1, 2), float(rank)) for rank in range(SIZE)])
    same(bps.grouped_allgather([own, own], "g"), [everything] * 2)
    same(bps.synchronize(bps.grouped_allgather_async([own, own])), [everything] * 2)

    same([bps.reducescatter(mine[0], "r", bps.Compression.none, bps.Sum)], rows[:1])
    same([bps.reducescatter(mine[1], op=bps.Sum, prescale_factor=2.0)], [2 * rows[1]])
    same([bps.synchronize(bps.reducescatter_async(each, None, bps.Sum)) for each in mine], rows)
    same(bps.grouped_reducescatter(mine, op=bps.Sum), rows)
    same(bps.synchronize(bps.grouped_reducescatter_async(mine, "s", bps.Sum)), rows)
    refused(lambda: bps.reducescatter(torch.tensor(1.0)), "a scalar has none")


def gradients_flow_through_sums() -> None:
    mine = values(RANK, 4).requires_grad_()
    (bps.push_pull(mine, op="sum", name="loss") * (RANK + 1)).sum().backward()
    assert torch.equal(mine.grad, torch.full((4,), SIZE * (SIZE + 1) / 2))
    mine.grad = None
    (bps.allreduce(mine, compression=bps.Compression.bf16) * (RANK + 1)).sum().backward()
    assert torch.equal(mine.grad, torch.full((4,), (SIZE + 1) / 2))
    rows = values(RANK, RANK + 1, 2).requires_grad_()
    gathered = bps.allgather(rows)
    weights = torch.arange(gathered.numel()).reshape(gathered.shape) * (RANK + 1.0)
    (gathered * weights).sum().backward()
    start = RANK * (RANK + 1) // 2
    expected = torch.arange(gathered.numel()).reshape(gathered.shape)[start : start + RANK + 1] * (
        SIZE * (SIZE + 1) / 2
    )
    assert torch.equal(rows.grad, expected)


def broadcasts_are_exact_to_the_bit() -> None:
    for dtype in DTYPES:
        for root in range(SIZE):
            sources = [(values(rank, 3, 4) % 120 + rank).to(dtype) for rank in range(SIZE)]
            if dtype.is_floating_point:
                for source in sources:
                    source[0, :2] = torch.tensor([-0.0, float("nan")]).to(dtype)
            mine = sources[RANK].clone()
            assert bits(bps.broadcast(mine, root, f"{dtype}")) == bits(sources[root]), dtype
            assert bits(mine) == bits(sources[RANK]), dtype
            assert bps.broadcast_(mine, root_rank=root) is mine
            assert bits(mine) == bits(sources[root]), dtype
            parameter = torch.nn.Parameter(sources[RANK].clone(), requires_grad=False).t()
            bps.synchronize(bps.broadcast_async_(parameter, root, f"t{dtype}"))
            assert bits(parameter) == bits(sources[root].t()), dtype
    refused(lambda: bps.broadcast(torch.ones(2), SIZE), f"root is {SIZE}")
    refused(lambda: bps.broadcast(torch.ones(2, dtype=torch.complex64), 0), "complex64")


def gathers() -> None:
    for dtype in DTYPES:
        all_of_them = [(values(rank, rank % 3, 2) % 120 - 0.0).to(dtype) for rank in range(SIZE)]
        got = bps.allgather(all_of_them[RANK], name=f"gather {dtype}")
        assert got.dtype == dtype
        assert bits(got) == [bit for each in all_of_them for bit in bits(each)], dtype
        same = [(values(rank, 2, 3) % 120).to(dtype) for rank in range(SIZE)]
        assert bits(bps.allgather(same[RANK])) == [bit for each in same for bit in bits(each)], dtype
    for length in range(1, 6):  # the same name with other lengths, as a metric of the last batches has
        got = bps.allgather(torch.full((length + RANK,), RANK), name="lengths")
        assert got.tolist() == [rank for rank in range(SIZE) for _ in range(length + rank)]
    refused(lambda: bps.allgather(torch.tensor(1.0)), "tensor.reshape(1)")
    if SIZE > 1:
        odd = torch.ones(2, 3) if RANK else torch.ones(2, 4)
        refused(lambda: bps.allgather(odd), "rank 0 has shape (2, 4) float32", "rank 1 has shape (2, 3) float32")


forms_of_the_official_plug_in()
forms_of_horovod()
groups_of_horovod()
gradients_flow_through_sums()
broadcasts_are_exact_to_the_bit()
gathers()
bps.shutdown()
assert not bps.is_initialized()
if SIZE > 1:  # alone, nobody is left
    left = time.monotonic()
    refused(bps.init, "this process has left the job of scheduler 127.0.0.1:", "call shutdown() once, at the end")
    assert time.monotonic() - left < 1
print("right", flush=True)
