"""Tensors of some ranks, contributions without bytes, declined answers and copies; run as every worker of a job.

Argument: the partition size in bytes.
"""

import itertools
import sys

import ml_dtypes
import numpy as np
import pytest

from byteps.communication import NOTHING
from byteps.errors import BytePSError
from byteps.kernels import DTYPE_NAMES
from byteps.session import current, init, shutdown
from byteps.wire import Op, TensorSpec

PARTITION = int(sys.argv[1])
DTYPES = [np.dtype(name) for name in ("float32", "float16", "int64", "uint8")] + [np.dtype(ml_dtypes.bfloat16)]


def contribution(rank: int, numel: int, dtype: np.dtype, salt: int) -> np.ndarray:
    """Small integers, so that sums are exact in every type."""
    return ((np.arange(numel) * 7 + rank * 13 + salt) % 50).astype(dtype)


def view(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


class Round:
    """One round, started: who takes part, who contributes, who wants the answer."""

    def __init__(self, name, numel, dtype, op, members, givers, takers, salt):
        self.name, self.takers = name, takers
        shape = (numel,)
        members = () if len(members) == SIZE else tuple(members)
        spec = TensorSpec(name=name, shape=shape, dtype=DTYPE_NAMES[dtype], op=op, members=members)
        self.result = np.zeros(numel, dtype)
        exact = np.float64 if dtype.kind != "i" else np.int64
        total = sum(contribution(r, numel, dtype, salt).astype(exact) for r in givers)
        if op == Op.AVERAGE:
            total = total // (len(members) or SIZE) if dtype.kind in "iu" else total / (len(members) or SIZE)
        self.want = total.astype(dtype)
        mine = contribution(RANK, numel, dtype, salt)
        source = view(mine) if RANK in givers else NOTHING
        target = view(self.result) if RANK in takers else NOTHING
        self.pending = SESSION.worker.submit(spec, source, target, salt)

    def check(self) -> int:
        assert SESSION.worker.wait(self.pending)
        want = self.want if RANK in self.takers else np.zeros_like(self.want)
        assert np.array_equal(self.result, want), f"{self.name}: {self.result} instead of {want}"
        return 1


def subsets(ranks):
    return [list(c) for size in range(1, len(ranks) + 1) for c in itertools.combinations(ranks, size)]


def rounds():
    """Every set of members; in turn every set of givers and takers; small, odd and large tensors."""
    turn = itertools.count()
    for members in subsets(range(SIZE)):
        for givers, takers in itertools.product(subsets(members), subsets(members)):
            number = next(turn)
            dtype = DTYPES[number % len(DTYPES)]
            numel = (3, PARTITION // dtype.itemsize * 5 + 1, PARTITION // dtype.itemsize)[number % 3]
            op = Op.COPY if len(givers) == 1 and number % 2 else (Op.SUM, Op.AVERAGE)[number % 2]
            name = f"of {members} from {givers} to {takers}"
            yield lambda salt, all=(name, numel, dtype, op, members, givers, takers): Round(*all, salt)


def many_at_once() -> int:
    count = 0
    for salt in range(2):  # the second time, ranks give them another order
        mine = [start for start in rounds() if RANK in start.__defaults__[0][4]]
        if salt and RANK % 2:
            mine.reverse()
        under_way = [start(salt) for start in mine]
        count += sum(each.check() for each in under_way)
    return count


def copies_are_exact() -> int:
    """Bits that arithmetic would lose: signs of zeros, payloads of NaNs, signalling ones."""
    bits = np.array([0x8000, 0x7E01, 0xFE02, 0x7C01, 0x0001, 0x8001], np.uint16)
    for dtype in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        for numel in (6, 6 * PARTITION):
            given = np.resize(bits, numel)
            got = np.zeros(numel, np.uint16)
            spec = TensorSpec(name=f"bits {dtype} {numel}", shape=(numel,), dtype=DTYPE_NAMES[dtype], op=Op.COPY)
            root = RANK == SIZE - 1
            pending = SESSION.worker.submit(spec, view(given) if root else NOTHING, view(got), 0)
            SESSION.worker.wait(pending)
            assert np.array_equal(got, given), f"{dtype}: {got[:6]} instead of {given[:6]}"
    return 4


def time_is_kept() -> int:
    """A wait with a limit ends; the round goes on."""
    spec = TensorSpec(name="late", shape=(1,), dtype="int64", op=Op.SUM)
    got = np.zeros(1, np.int64)
    if RANK == 0:
        pending = SESSION.worker.submit(spec, view(np.ones(1, np.int64)), view(got), 0)
        assert SIZE == 1 or not SESSION.worker.wait(pending, seconds=0.1)
    Round("go on", 1, DTYPES[0], Op.SUM, range(SIZE), range(SIZE), range(SIZE), 0).check()
    if RANK != 0:
        pending = SESSION.worker.submit(spec, view(np.ones(1, np.int64)), view(got), 0)
    assert SESSION.worker.wait(pending, seconds=60)
    assert got[0] == SIZE
    return 1


def strangers_are_refused() -> int:
    if SIZE == 1:
        return 0
    spec = TensorSpec(name="of others", shape=(1,), dtype="int64", op=Op.SUM, members=((RANK + 1) % SIZE,))
    text = f"of rank {(RANK + 1) % SIZE}; this is rank {RANK}"
    with pytest.raises(BytePSError, match=text):
        SESSION.worker.submit(spec, NOTHING, NOTHING, 0)
    return 1


init()
SESSION = current()
RANK, SIZE = SESSION.rank, SESSION.settings.num_workers
checks = sum(check() for check in (many_at_once, copies_are_exact, time_is_kept, strangers_are_refused))
print(f"rank {RANK}: {checks} checks passed", flush=True)
shutdown()
