"""Every sum of one job against an oracle; run as every worker.  Argument: the partition size in bytes."""

import itertools
import os
import sys

import ml_dtypes
import numpy as np

import byteps

PARTITION = int(sys.argv[1])
DTYPES = [np.dtype(name) for name in ("float32", "float64", "float16", "int32", "int64", "uint8")]
DTYPES.append(np.dtype(ml_dtypes.bfloat16))


def contribution(rank: int, shape: tuple[int, ...], dtype: np.dtype, salt: int = 0) -> np.ndarray:
    """Integer values that depend on rank and index, exact in every type; negative ones where there are any."""
    index = np.arange(int(np.prod(shape)), dtype=np.int64) + salt
    if dtype == np.uint8:
        values = (index * 31 + rank * 77) % 256
    elif dtype.itemsize == 2:
        values = (index * 7 + rank * 13) % 61 - 30
    else:
        values = (index * 1009 + rank * 4001) % 20011 - 10005
    return values.astype(dtype).reshape(shape)


def expected(shape: tuple[int, ...], dtype: np.dtype, op: str, salt: int = 0) -> np.ndarray:
    """The sum in a type where it is exact; for an average one division; one rounding at the end."""
    exact = np.int64 if dtype.kind in "iu" else np.float64
    total = sum(contribution(r, shape, dtype, salt).astype(exact) for r in range(SIZE))
    total = np.asarray(total, exact)
    if op == "average":
        total = total // SIZE if dtype.kind in "iu" else divided(total, dtype)
    return total.astype(dtype)


def divided(total: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """In the accumulator's type: float32 for the small ones."""
    wide = np.float64 if dtype == np.float64 else np.float32
    return total.astype(wide) / wide(SIZE)


def same(got: np.ndarray, want: np.ndarray, what: str) -> None:
    assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
    assert got.dtype == want.dtype, f"{what}: {got.dtype}, not {want.dtype}"
    if not np.array_equal(got, want):
        where = np.flatnonzero(got.reshape(-1) != want.reshape(-1))
        first = where[0]
        raise AssertionError(
            f"{what}: {len(where)} of {got.size} elements wrong, the first at {first}: "
            f"{got.reshape(-1)[first]}, not {want.reshape(-1)[first]}"
        )


def shapes(itemsize: int) -> list[tuple[int, ...]]:
    part = PARTITION // itemsize
    return [(0,), (2, 0, 3), (), (1,), (part - 1,), (part,), (part + 1,), (3, 2 * part + 1)]


def every_type_operation_and_size() -> int:
    count = 0
    for dtype, op in itertools.product(DTYPES, ("sum", "average")):
        for shape in shapes(dtype.itemsize):
            what = f"{dtype} {op} {shape}"
            mine = contribution(RANK, shape, dtype)
            before = mine.copy()
            same(byteps.push_pull(mine, f"plain {what}", op=op), expected(shape, dtype, op), what)
            same(mine, before, f"{what}: the input")
            count += 1
    return count


def layouts() -> int:
    shape = (37, 53)
    for dtype in DTYPES:
        want = expected(shape, dtype, "sum")
        mine = contribution(RANK, shape, dtype)
        fortran = np.asfortranarray(mine)
        strided = np.zeros((74, 106), dtype)[::2, ::2]
        strided[...] = mine
        same(byteps.push_pull(fortran, f"layout F {dtype}", op="sum"), want, f"Fortran order {dtype}")
        same(byteps.push_pull(strided[::-1, ::-1], f"layout - {dtype}", op="sum"), want[::-1, ::-1], f"strides {dtype}")
        same(byteps.push_pull_inplace(strided, f"layout s {dtype}", op="sum"), want, f"in-place strided {dtype}")
        same(strided, want, f"the strided array itself {dtype}")
        whole = mine.copy()
        assert byteps.push_pull_inplace(whole, f"layout i {dtype}", op="average") is whole
        same(whole, expected(shape, dtype, "average"), f"in-place {dtype}")
    frozen = np.ones(5, np.float32)
    frozen.flags.writeable = False
    same(byteps.push_pull(frozen, "frozen", op="sum"), np.full(5, SIZE, np.float32), "read-only input")
    try:
        byteps.push_pull_inplace(frozen, "frozen", op="sum")
    except ValueError as error:
        same_words(error, "'frozen'", "read-only")
    else:
        raise AssertionError("a read-only array was changed in place")
    return len(DTYPES) * 4 + 1


def roundings() -> int:
    """Reals: within 4 n eps sum|x|; 16-bit floats sum in float32 and round once."""
    for dtype, wide in ((np.float32, np.float64), (np.float64, np.longdouble)):
        all_ranks = [np.random.default_rng(rank).standard_normal(5000).astype(dtype) for rank in range(SIZE)]
        got = byteps.push_pull(all_ranks[RANK], f"reals {np.dtype(dtype)}", op="sum")
        exact = sum(x.astype(wide) for x in all_ranks)
        bound = 4 * SIZE * np.finfo(dtype).eps * sum(np.abs(x.astype(wide)) for x in all_ranks)
        assert (np.abs(got - exact) <= bound).all(), f"{np.dtype(dtype)} beyond the bound"
    for dtype in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        # 2048 + 1 and 256 + 1 are lost by adding in fp16 and bf16; in fp32 they add up, and one rounding remains.
        base = 2048 if dtype == np.float16 else 256
        mine = np.full(100, base if RANK == 0 else 1.0, np.float32).astype(dtype)
        want = np.full(100, base + SIZE - 1, np.float32).astype(dtype)
        same(byteps.push_pull(mine, f"rounding {dtype}", op="sum"), want, f"one rounding of {dtype}")
    big = np.full(3, 60000, np.float16)
    same(byteps.push_pull(big, "average fp16", op="average"), big, "an fp16 average does not overflow")
    return 5


def integers() -> int:
    """An average is the floor, and numel is not the number of workers."""
    mine = np.array([-7, -1, 7, 2**40 + RANK, -(2**40) - RANK], np.int64) - (RANK == 0)
    totals = sum(np.array([-7, -1, 7, 2**40 + r, -(2**40) - r], np.int64) - (r == 0) for r in range(SIZE))
    same(byteps.push_pull(mine, "floor", op="average"), totals // SIZE, "floor of negatives")
    same(byteps.push_pull(mine, "default"), totals // SIZE, "the default is the average")
    full = np.full(7, 255, np.uint8)
    same(byteps.push_pull(full, "bytes", average=True), full, "a uint8 average does not overflow")
    high = np.full(3, 2**31 - 1, np.int32)
    same(byteps.push_pull(high, "high", average=True), high, "an int32 average does not overflow")
    return 4


def same_words(error: Exception, *words: str) -> None:
    missing = [word for word in words if word not in str(error)]
    if missing:
        raise AssertionError(f"{error} does not say {missing}")


def misuse() -> int:
    for arguments, text in (
        ({"op": "max"}, "op='max'"),
        ({"op": "sum", "average": True}, "contradicts"),
    ):
        try:
            byteps.push_pull(np.ones(2, np.float32), "misuse", **arguments)
        except RuntimeError as error:
            same_words(error, text)
        else:
            raise AssertionError(f"{arguments} was accepted")
    try:
        byteps.push_pull(np.ones(2, np.complex64), "complex")
    except RuntimeError as error:
        same_words(error, "complex64", "float32")
    else:
        raise AssertionError("complex64 was accepted")
    return 3


def order_of_first_use() -> int:
    """Ranks use their tensors for the first time in different orders, with different hash seeds."""
    names = {f"layer {i}.weight" for i in range(40)}
    order = sorted(names) if RANK == 0 else list(names) if RANK == 1 else sorted(names, reverse=True)
    handles = {
        name: byteps.push_pull_async(contribution(RANK, (900,), DTYPES[0], int(name.split(".")[0][6:])), name, op="sum")
        for name in order
    }
    for name, handle in handles.items():
        same(byteps.synchronize(handle), expected((900,), DTYPES[0], "sum", int(name.split(".")[0][6:])), name)
    return len(names)


def declared_beforehand() -> int:
    tensors = {f"declared {i}": np.empty((i, 300), np.float32) for i in range(8)}
    byteps.declare(dict(sorted(tensors.items(), reverse=bool(RANK % 2))), op="sum")
    for name, tensor in tensors.items():
        mine = contribution(RANK, tensor.shape, tensor.dtype)
        same(byteps.push_pull(mine, name, op="sum"), expected(tensor.shape, tensor.dtype, "sum"), name)
    byteps.declare(tensors, op="sum")  # once more changes nothing
    return len(tensors)


def back_to_back(iterations: int = 200) -> int:
    """No barrier between iterations, and a worker may be ahead by one."""
    shape = (PARTITION // 4 * 3 + 5,)
    for iteration in range(iterations):
        got = byteps.push_pull(contribution(RANK, shape, DTYPES[0], iteration), "loop", op="sum")
        if iteration % 10 == 0 or iteration == iterations - 1:
            same(got, expected(shape, DTYPES[0], "sum", iteration), f"iteration {iteration}")
        elif not np.array_equal(got[:50], expected((50,), DTYPES[0], "sum", iteration)):
            raise AssertionError(f"iteration {iteration} is wrong")
    return iterations


def many_at_once() -> int:
    """Several rounds of the same tensors submitted before any is waited for, with priorities."""
    handles = []
    for round_, i in itertools.product(range(3), range(30)):
        shape = (i * 117 % 2500 + 1,)
        mine = contribution(RANK, shape, DTYPES[i % 7], round_)
        handle = byteps.push_pull_async(mine, f"many {i}", op="sum", priority=-i if round_ else i)
        handles.append((handle, mine, expected(shape, DTYPES[i % 7], "sum", round_), f"many {i} round {round_}"))
    for handle, _, want, what in reversed(handles):
        same(byteps.synchronize(handle), want, what)
        assert byteps.poll(handle)
        same(byteps.synchronize(handle), want, f"{what}, synchronised again")
    return len(handles)


def crossed_orders() -> int:
    """Workers hand over the same tensors in opposite orders, more than fits into the credit, large and small ones."""
    shapes = {f"crossed {i}": (7,) if i % 3 else (PARTITION * 3,) for i in range(24)}
    byteps.declare({name: np.empty(shape, np.float32) for name, shape in shapes.items()}, op="sum")
    for round_ in range(3):
        mine = {name: contribution(RANK, shape, DTYPES[0], round_) for name, shape in shapes.items()}
        order = list(shapes) if RANK % 2 else list(reversed(shapes))
        handles = {name: byteps.push_pull_async(mine[name], name, op="sum") for name in order}
        while round_ == 1 and not all(map(byteps.poll, handles.values())):
            pass  # whoever only polls must get there, too
        for name in order:
            same(byteps.synchronize(handles[name]), expected(shapes[name], DTYPES[0], "sum", round_), name)
    return 3 * len(shapes)


def unnamed_and_broadcast() -> int:
    for i in range(6):
        got = byteps.push_pull(contribution(RANK, (i + 1,), DTYPES[0], i), op="sum")
        same(got, expected((i + 1,), DTYPES[0], "sum", i), f"unnamed {i}")
    one, two = (byteps.push_pull_async(np.full(4, RANK + i, np.int32), op="sum") for i in range(2))
    ranks = SIZE * (SIZE - 1) // 2
    same(byteps.synchronize(two), np.full(4, ranks + SIZE, np.int32), "second unnamed")
    same(byteps.synchronize(one), np.full(4, ranks, np.int32), "first unnamed")
    for root in range(SIZE):
        mine = contribution(RANK, (3, 5), DTYPES[3])
        same(byteps.broadcast(mine, root, f"from {root}"), contribution(root, (3, 5), DTYPES[3]), f"root {root}")
    assert byteps.push_pull(np.float32(RANK), "scalar", op="sum").item() == ranks
    return 8 + SIZE


byteps.init()
RANK, SIZE = byteps.rank(), byteps.size()
assert int(os.environ["DMLC_NUM_WORKER"]) == SIZE
assert int(os.environ["DMLC_WORKER_ID"]) == RANK
checks = sum(
    check()
    for check in (
        every_type_operation_and_size,
        layouts,
        roundings,
        integers,
        misuse,
        order_of_first_use,
        declared_beforehand,
        back_to_back,
        many_at_once,
        crossed_orders,
        unnamed_and_broadcast,
    )
)
assert "torch" not in sys.modules
print(f"rank {RANK}: {checks} checks passed", flush=True)
byteps.shutdown()
