"""Collectives of the backend "byteps" against an oracle, and against gloo; run as every worker of a job.

Argument: the partition size in bytes.
"""

import itertools
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import reduce

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import byteps.torch
from byteps.net import Connection
from byteps.torch.streams import UNDER_WAY

PARTITION = int(sys.argv[1])
NATIVE = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8]
GATHERED = [torch.int8, torch.int16, torch.complex64]
ANY = [*NATIVE, *GATHERED, torch.bool, torch.float8_e5m2]


def contribution(rank: int, shape: tuple[int, ...], dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Integers that depend on rank and index, exact in every type, as are their sums and products."""
    index = torch.arange(torch.Size(shape).numel()) + salt
    return ((index * 3 + rank * (index % 5 + 1)) % 4 + 1).reshape(shape).to(dtype)


def shapes(dtype: torch.dtype) -> list[tuple[int, ...]]:
    part = PARTITION // dtype.itemsize
    return [(), (1,), (0,), (3, 0), (7, 5), (part,), (3, part + 1)]


def reduced(op: ReduceOp, shape: tuple[int, ...], dtype: torch.dtype, ranks: range | list[int]) -> torch.Tensor:
    all_given = [contribution(rank, shape, dtype) for rank in ranks]
    if op in (ReduceOp.SUM, ReduceOp.AVG):
        exact = torch.complex128 if dtype.is_complex else torch.float64
        total = sum(each.to(exact) for each in all_given)
        if op == ReduceOp.AVG:
            whole = not (dtype.is_floating_point or dtype.is_complex)
            total = torch.div(total, len(all_given), rounding_mode="floor" if whole else None)
            total = total.float() if dtype.itemsize == 2 and not whole else total  # one rounding, from float32
        return total.to(dtype)
    functions = {
        ReduceOp.MIN: torch.minimum,
        ReduceOp.MAX: torch.maximum,
        ReduceOp.PRODUCT: torch.mul,
        ReduceOp.BAND: torch.bitwise_and,
        ReduceOp.BOR: torch.bitwise_or,
        ReduceOp.BXOR: torch.bitwise_xor,
    }
    return reduce(functions[op], all_given)


def same(got: torch.Tensor, want: torch.Tensor, what: str) -> int:
    assert got.dtype == want.dtype, f"{what}: {got.dtype}, not {want.dtype}"
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    raw = [each.contiguous().reshape(-1).view(torch.uint8) for each in (got, want)]
    assert torch.equal(*raw), f"{what}: {got} instead of {want}"
    return 1


def operations(dtype: torch.dtype) -> list[ReduceOp]:
    if dtype.is_complex:
        return [ReduceOp.SUM]
    bits = [] if dtype.is_floating_point else [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
    return [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT, *bits]


def reductions() -> int:
    count = 0
    for dtype in NATIVE + GATHERED:
        for op, shape in itertools.product(operations(dtype), shapes(dtype)):
            what = f"{op} {dtype} {shape}"
            want = reduced(op, shape, dtype, range(SIZE))
            mine = contribution(RANK, shape, dtype)
            dist.all_reduce(mine, op)
            count += same(mine, want, f"all_reduce {what}")
            root = len(shape) % SIZE
            mine = contribution(RANK, shape, dtype)
            dist.reduce(mine, root, op)
            count += same(mine, want if root == RANK else contribution(RANK, shape, dtype), f"reduce {what}")
    return count


def scattered_sums() -> int:
    count = 0
    for dtype in NATIVE + GATHERED[:1]:
        for op, shape in itertools.product(operations(dtype)[:4], [(), (5,), (3, PARTITION // dtype.itemsize)]):
            what = f"reduce_scatter {op} {dtype} {shape}"
            want = reduced(op, (SIZE, *shape), dtype, range(SIZE))[RANK]
            mine = contribution(RANK, (SIZE, *shape), dtype)
            got = torch.zeros(shape, dtype=dtype)
            dist.reduce_scatter(got, list(mine.unbind()), op)
            count += same(got, want, what)
            got = torch.zeros(shape or (1,), dtype=dtype)
            dist.reduce_scatter_tensor(got, mine.reshape(-1), op)
            count += same(got.reshape(shape), want, f"{what}, one tensor")
            count += same(mine, contribution(RANK, (SIZE, *shape), dtype), f"{what}: the input")
            row = mine[RANK].view(-1)
            dist.reduce_scatter_tensor(row, mine.view(-1), op)
            count += same(mine[RANK], want, f"{what}, in place")
    return count


def copies() -> int:
    count = 0
    for dtype, shape in itertools.product(ANY, [(), (1,), (0,), (7, 3), (PARTITION // 2 + 1,)]):
        what = f"{dtype} {shape}"
        all_given = [contribution(rank, shape, torch.float32, 1).to(dtype) for rank in range(SIZE)]
        mine = all_given[RANK]
        for root in range(SIZE):
            got = mine.clone()
            dist.broadcast(got, root)
            count += same(got, all_given[root], f"broadcast {what}")
            got = torch.zeros_like(mine)
            dist.scatter(got, all_given if root == RANK else None, root)
            count += same(got, mine, f"scatter {what}")
            rows = [torch.zeros_like(mine) for _ in range(SIZE)] if root == RANK else None
            dist.gather(mine, rows, root)
            for rank in range(SIZE) if root == RANK else ():
                count += same(rows[rank], all_given[rank], f"gather {what} of {rank}")
        rows = [torch.zeros_like(mine) for _ in range(SIZE)]
        dist.all_gather(rows, mine)
        for rank in range(SIZE):
            count += same(rows[rank], all_given[rank], f"all_gather {what} of {rank}")
        whole = torch.zeros(SIZE, mine.numel(), dtype=dtype)
        whole[RANK] = mine.reshape(-1)
        dist.all_gather_into_tensor(whole.view(-1), whole[RANK])
        count += same(whole.view(SIZE, *shape), torch.stack(all_given), f"all_gather {what} in place")
        sent = [contribution(rank, shape, torch.float32, 2 + RANK).to(dtype) for rank in range(SIZE)]
        rows = [torch.zeros_like(mine) for _ in range(SIZE)]
        dist.all_to_all(rows, sent)
        for rank in range(SIZE):
            want = contribution(RANK, shape, torch.float32, 2 + rank).to(dtype)
            count += same(rows[rank], want, f"all_to_all {what} of {rank}")
    return count


def bits() -> int:
    """What arithmetic would lose: signs of zeros, payloads of NaNs, signalling ones."""
    patterns = torch.tensor([0x8000, 0x7E01, 0xFE02 - 2**16, 0x7C01, 1, 0x8001 - 2**16], dtype=torch.int32)
    for dtype in (torch.float16, torch.bfloat16):
        given = patterns.to(torch.int16).view(dtype)
        got = given.clone() if RANK == 0 else torch.zeros_like(given)
        dist.broadcast(got, 0)
        same(got, given, f"bits of {dtype}")
    return 2


def layouts() -> int:
    count = 0
    shape = (6, 10)
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        want = reduced(ReduceOp.SUM, shape, dtype, range(SIZE))
        for what, make in {
            "transposed": lambda t: t.t().contiguous().t(),
            "strided": lambda t: torch.zeros(12, 20, dtype=t.dtype)[::2, ::2].copy_(t),
            "a leaf": lambda t: t.clone().requires_grad_(t.is_floating_point()),
        }.items():
            mine = make(contribution(RANK, shape, dtype))
            strides = mine.stride()
            dist.all_reduce(mine)
            count += same(mine.detach(), want, f"{what} {dtype}")
            assert mine.stride() == strides
        rows = [torch.zeros(10, 6, dtype=dtype).t() for _ in range(SIZE)]
        dist.all_gather(rows, contribution(RANK, (10, 6), dtype).t())
        for rank in range(SIZE):
            count += same(rows[rank], contribution(rank, (10, 6), dtype).t(), f"transposed all_gather {dtype}")
    return count


def messages() -> int:
    """Each rank to each other, both ways at once, by tag."""
    if SIZE == 1:
        return 0
    peers = [rank for rank in range(SIZE) if rank != RANK]
    got = {(peer, tag): torch.zeros(tag + 2) for peer in peers for tag in range(2)}
    works = [dist.irecv(got[peer, tag], peer, tag=tag) for peer, tag in got]
    works += [dist.isend(torch.full((tag + 2,), 10.0 * RANK + tag), peer, tag=tag) for peer, tag in reversed(got)]
    for work in works:
        work.wait()
    for (peer, tag), each in got.items():
        same(each, torch.full((tag + 2,), 10.0 * peer + tag), f"message {tag} of {peer}")
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    each = torch.zeros(3)
    ring = [dist.P2POp(dist.isend, torch.full((3,), float(RANK)), right), dist.P2POp(dist.irecv, each, left)]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    same(each, torch.full((3,), float(left)), "ring")
    sizes = [RANK + rank for rank in range(SIZE)]
    received = torch.zeros(sum(sizes))
    dist.all_to_all_single(received, torch.full((sum(sizes),), float(RANK)), sizes, sizes)
    want = torch.cat([torch.full((RANK + rank,), float(rank)) for rank in range(SIZE)])
    return len(got) + 1 + same(received, want, "all_to_all_single")


def objects() -> int:
    """Of other sizes all the time, which must not make more and more tensors."""

    def thing(rank: int, number: int) -> dict[str, object]:
        return {"rank": rank, "text": "x" * (600 + number * 2 + rank * 3)}

    known = 0
    for number in range(120):
        everything: list[object] = [None] * SIZE
        dist.all_gather_object(everything, thing(RANK, number))
        assert everything == [thing(rank, number) for rank in range(SIZE)]
        root = number % SIZE
        pair = [thing(RANK, number), RANK] if root == RANK else [None, None]
        dist.broadcast_object_list(pair, root)
        assert pair == [thing(root, number), root]
        place: list[object] = [None]
        given = [thing(rank, number) for rank in range(SIZE)] if root == RANK else None
        dist.scatter_object_list(place, given, root)
        assert place == [thing(RANK, number)]
        gathered = [None] * SIZE if root == RANK else None
        dist.gather_object(thing(RANK, number), gathered, root)
        assert gathered is None or gathered == [thing(rank, number) for rank in range(SIZE)]
        if number == 60:
            known = number_of_tensors()
    assert number_of_tensors() == known, "ever new tensors"
    return 4 * 120


def number_of_tensors() -> int:
    """That this rank has named in the group of all."""
    streams = dist.group.WORLD._rounds._streams._streams.values()
    return sum(len(names) for stream in streams for names in stream.names.values())


def a_loop_registers_nothing_new() -> int:
    before = number_of_tensors()
    for _ in range(30):
        dist.all_reduce(torch.ones(17, 19))
    assert number_of_tensors() <= before + UNDER_WAY
    return 1


def asynchronous() -> int:
    works, tensors = [], []
    for number in range(3 * UNDER_WAY):
        shape = (number % 3 + 1, PARTITION // 4)
        mine = contribution(RANK, shape, torch.float32, number)
        want = sum(contribution(rank, shape, torch.float32, number) for rank in range(SIZE))
        works.append(dist.all_reduce(mine, async_op=True))
        tensors.append((mine, want))
    doubled = [work.get_future().then(lambda future: future.value()[0] * 2) for work in works[::2]]
    while not works[-1].is_completed():
        pass  # whoever only polls must get there, too
    for work, (mine, want) in zip(reversed(works), reversed(tensors), strict=True):
        assert work.wait()
        assert work.is_success()
        assert work.exception() is None
        same(mine, want, "asynchronous")
        same(work.result()[0], want, "result")
    for future, (_, want) in zip(doubled, tensors[::2], strict=True):
        same(future.wait(), want * 2, "a future's continuation")
    return 2 * len(works)


def patience() -> int:
    """A wait may end before the work does, which goes on."""
    mine = torch.full((3,), float(RANK))
    late = dist.all_reduce(mine, async_op=True) if RANK == 0 else None
    if late is not None and SIZE > 1:
        with pytest.raises(
            RuntimeError, match=r"world: all_reduce is not over after 0\.05 s, the time-out of its call"
        ):
            late.wait(timedelta(milliseconds=50))
        assert not late.is_completed()
        assert late.exception() is None
    other = dist.new_group()
    dist.barrier(other)
    late = late or dist.all_reduce(mine, async_op=True)
    assert late.wait(timedelta(seconds=60))
    return same(mine, torch.full((3,), SIZE * (SIZE - 1) / 2), "late")


def costs() -> int:
    """Bytes that leave and reach this process, as the table in docs/training.md has them; headers aside."""
    if SIZE == 1:
        return 0
    part = 8 * PARTITION
    large, small = torch.zeros(SIZE, part // 4), torch.zeros(part // 4)
    rows, whole, mine = list(large.unbind()), SIZE * part, RANK == 0
    others = whole - part
    calls: dict[str, tuple[Callable[[], object], int, int]] = {
        "all_reduce": (lambda: dist.all_reduce(large), whole, whole),
        "reduce_scatter": (lambda: dist.reduce_scatter(small, rows), whole, part),
        "all_gather": (lambda: dist.all_gather(rows, small), part, others),
        "broadcast": (lambda: dist.broadcast(large, 0), whole * mine, whole * (not mine)),
        "reduce": (lambda: dist.reduce(large, 0), whole, whole * mine),
        "gather": (lambda: dist.gather(small, rows if mine else None, 0), part * (not mine), others * mine),
        "scatter": (lambda: dist.scatter(small, rows if mine else None, 0), others * mine, part * (not mine)),
        "all_to_all": (lambda: dist.all_to_all([*large.clone().unbind()], rows), others, others),
        "all_reduce MAX": (lambda: dist.all_reduce(small, ReduceOp.MAX), part, others),
    }
    plain_send, plain_receive = Connection.send, Connection.receive_exactly
    moved = [0, 0]

    def send(self, *buffers, **options):
        moved[0] += sum(map(len, buffers))
        plain_send(self, *buffers, **options)

    def receive(self, view):
        moved[1] += len(view)
        plain_receive(self, view)

    Connection.send, Connection.receive_exactly = send, receive
    for what, (call, sent, received) in calls.items():
        for _ in range(UNDER_WAY):
            call()  # afterwards nothing has to be registered
        dist.barrier()
        moved[:] = 0, 0
        call()
        dist.barrier()
        slack = part // 4
        assert sent <= moved[0] < sent + slack, f"{what} sends {moved[0]} bytes instead of {sent}"
        assert received <= moved[1] < received + slack, f"{what} receives {moved[1]} bytes instead of {received}"
    Connection.send, Connection.receive_exactly = plain_send, plain_receive
    return len(calls)


def groups() -> int:
    """Every pair of ranks, and all but one: members alone take part, whatever order they do it in."""
    members = [list(pair) for pair in itertools.combinations(range(SIZE), 2)]
    members += [[rank for rank in range(SIZE) if rank != left] for left in range(SIZE) if SIZE > 2]
    made = [(ranks, dist.new_group(ranks)) for ranks in members]
    mine = [(ranks, group) for ranks, group in made if RANK in ranks]
    count = 0
    for reverse in (False, True):
        under_way = []
        for ranks, group in reversed(mine) if reverse and RANK % 2 else mine:
            assert (dist.get_rank(group), dist.get_world_size(group)) == (ranks.index(RANK), len(ranks))
            each = contribution(RANK, (700,), torch.float32)
            under_way.append((ranks, each, dist.all_reduce(each, ReduceOp.AVG, group=group, async_op=True)))
        for ranks, each, work in reversed(under_way):
            work.wait()
            count += same(each, reduced(ReduceOp.AVG, (700,), torch.float32, ranks), f"average of {ranks}")
    for ranks, group in mine:
        each = torch.full((3,), float(RANK))
        dist.broadcast(each, ranks[-1], group=group)
        count += same(each, torch.full((3,), float(ranks[-1])), f"broadcast among {ranks}")
        rows = [torch.zeros(2) for _ in ranks]
        dist.all_gather(rows, torch.full((2,), float(RANK)), group=group)
        count += same(torch.stack(rows)[:, 0], torch.tensor(ranks, dtype=torch.float32), f"all_gather of {ranks}")
        got = torch.zeros(2)
        dist.reduce_scatter_tensor(got, torch.arange(2.0 * len(ranks)), group=group)
        index = ranks.index(RANK)
        want = torch.arange(2.0) + 2 * index
        count += same(got, want * len(ranks), f"reduce_scatter among {ranks}")
        everything = [None] * len(ranks)
        dist.all_gather_object(everything, RANK, group=group)
        assert everything == ranks
        dist.barrier(group)
    return count


def as_gloo() -> int:
    """The same calls in a group of gloo, on the same data."""
    gloo = dist.new_group(backend="gloo")
    count = 0
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8):
        for shape in ((), (5,), (3, 0), (31, 67)):
            made = {}
            for group in (gloo, dist.group.WORLD):
                mine = contribution(RANK, (SIZE, *shape), dtype)
                total, largest, one = (mine[0].clone() for _ in range(3))
                dist.all_reduce(total, group=group)
                dist.all_reduce(largest, ReduceOp.MAX, group=group)
                dist.broadcast(one, SIZE - 1, group=group)
                rows = [torch.zeros_like(one) for _ in range(SIZE)]
                dist.all_gather(rows, mine[1 % SIZE], group=group)
                part = torch.zeros_like(one)
                dist.reduce_scatter(part, list(mine), group=group)
                made[group] = [total, largest, one, *rows, part]
            for ours, theirs in zip(made[dist.group.WORLD], made[gloo], strict=True):
                count += same(ours, theirs, f"as gloo: {dtype} {shape}")
    return count


def functional() -> int:
    """What torch.compile and DTensor call, from C++."""
    from torch.distributed import _functional_collectives as calls
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mine = contribution(RANK, (SIZE * 4, 3), torch.float32)
    total = reduced(ReduceOp.SUM, (SIZE * 4, 3), torch.float32, range(SIZE))
    same(calls.all_reduce(mine, "sum", dist.group.WORLD) + 0, total, "functional all_reduce")
    got = calls.reduce_scatter_tensor(mine, "sum", 0, dist.group.WORLD) + 0
    same(got, total[RANK * 4 : RANK * 4 + 4], "functional reduce_scatter")
    want = torch.cat([contribution(rank, (SIZE * 4, 3), torch.float32) for rank in range(SIZE)])
    same(calls.all_gather_tensor(mine, 0, dist.group.WORLD) + 0, want, "functional all_gather")
    mesh = init_device_mesh("cpu", (SIZE,))
    table = torch.arange(24.0).reshape(8, 3)
    sharded = distribute_tensor(table, mesh, [Shard(0)])
    same(sharded.redistribute(mesh, [Replicate()]).to_local(), table, "DTensor")
    same((sharded @ sharded.t()).full_tensor(), table @ table.t(), "DTensor product")
    pair = [torch.full((2,), float(RANK)), torch.ones(3)]
    with dist._coalescing_manager(async_ops=True) as coalesced:
        for each in pair:
            dist.all_reduce(each)
    coalesced.wait()
    same(pair[0], torch.full((2,), SIZE * (SIZE - 1) / 2), "coalesced")
    return 6


def refusals() -> int:
    def refused(call: Callable[[], object], *words: str) -> int:
        with pytest.raises(RuntimeError) as caught:
            call()
        assert all(word in str(caught.value) for word in words), f"{caught.value} does not say {words}"
        return 1

    three = torch.ones(3)
    premultiplied = dist._make_nccl_premul_sum(2.0)
    return (
        refused(lambda: dist.all_reduce(three, premultiplied), "PREMUL_SUM", "PRODUCT")
        + refused(lambda: dist.all_reduce(three.to_sparse()), "sparse")
        + refused(lambda: dist.recv(three), "name the sender")
        + refused(lambda: dist.all_gather_into_tensor(torch.ones(7 * SIZE + 1), torch.ones(7)), "(7,)", f"{SIZE} times")
    )


def again() -> int:
    """A process group ended and another begun, also by its own rendezvous."""
    for number, method in enumerate((None, "byteps://", None)):
        dist.destroy_process_group()
        assert not dist.is_initialized()
        dist.init_process_group("byteps", init_method=method)
        mine = torch.full((number + 1,), float(RANK))  # another shape under what would be the same name
        dist.all_reduce(mine)
        same(mine, torch.full((number + 1,), SIZE * (SIZE - 1) / 2), f"group {number}")
        dist.barrier()
    return 3


warnings.simplefilter("ignore", FutureWarning)  # new names for calls that scripts have under the old ones
torch.set_num_threads(1)
dist.init_process_group("byteps")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
assert (byteps.torch.rank(), byteps.torch.size(), dist.get_backend()) == (RANK, SIZE, "byteps")
CHECKS = (
    reductions,
    scattered_sums,
    copies,
    bits,
    layouts,
    messages,
    objects,
    a_loop_registers_nothing_new,
    asynchronous,
    patience,
    costs,
    groups,
    as_gloo,
    functional,
    refusals,
    again,
)
checks = sum(check() for check in CHECKS)
print(f"rank {RANK}: {checks} checks passed", flush=True)
dist.destroy_process_group()
