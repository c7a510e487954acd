"""Ways to call collectives: at once, in groups, from C++, with objects; what they cost; and what is refused."""

import itertools
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from collective_oracle import PARTITION, RANK, SIZE, contribution, reduced, same
from torch.distributed import ReduceOp

from byteps.net import Connection
from byteps.torch.streams import UNDER_WAY


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


CHECKS = (
    objects,
    a_loop_registers_nothing_new,
    asynchronous,
    patience,
    costs,
    groups,
    functional,
    refusals,
    again,
)
