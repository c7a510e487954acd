"""Collectives of the backend "byteps" against an oracle, and against gloo; run as every worker of a job.

Argument: the partition size in bytes.
"""

import itertools

import collective_ways
import torch
import torch.distributed as dist
from collective_oracle import (
    ANY,
    GATHERED,
    NATIVE,
    PARTITION,
    RANK,
    SIZE,
    contribution,
    operations,
    reduced,
    same,
    shapes,
)
from torch.distributed import ReduceOp


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


CHECKS = (reductions, scattered_sums, copies, bits, layouts, messages, as_gloo)
checks = sum(check() for check in (*CHECKS, *collective_ways.CHECKS))
print(f"rank {RANK}: {checks} checks passed", flush=True)
dist.destroy_process_group()
