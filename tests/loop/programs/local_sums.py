"""A worker of a machine with several: sums of every type and operation against an exact oracle, several under way."""

import sys

import ml_dtypes
import numpy as np

import byteps
from byteps.kernels import NUMPY_DTYPES

byteps.init()
rank, size, local = byteps.rank(), byteps.size(), int(sys.argv[1])
assert size == int(sys.argv[2]), size
assert byteps.local_size() == local
assert byteps.local_rank() == rank % local, (rank, byteps.local_rank())


def gradient(of: int, numel: int, dtype: np.dtype, round_: int) -> np.ndarray:
    """Small integers, so that every type adds them up exactly."""
    return ((np.arange(numel) * (of + 2) + 3 * of + round_) % 5 + of % 2).astype(dtype)


wrong = 0
for numel in (1, 1000, 150_001):
    for dtype in NUMPY_DTYPES:
        for op in ("sum", "average"):
            name = f"{op} of {numel} {dtype}"
            handles = []
            for round_ in range(3):  # of one name, under way together
                mine = gradient(rank, numel, dtype, round_)
                handles.append(byteps.push_pull_async(mine, name, op=op))
            for round_, handle in enumerate(handles):
                total = sum(gradient(one, numel, np.dtype("float64"), round_) for one in range(size))
                if op == "average":
                    total = total / size if dtype.kind == "f" or dtype == ml_dtypes.bfloat16 else total // size
                got = byteps.synchronize(handle)
                limit = 0.0 if op == "sum" or dtype.kind != "f" else 1e-2 if dtype.itemsize == 2 else 1e-6
                limit = 4e-2 if dtype == ml_dtypes.bfloat16 and op == "average" else limit
                wrong += int(
                    np.count_nonzero(np.abs(got.astype("float64") - total.astype(dtype).astype("float64")) > limit)
                )
byteps.declare({f"declared {i}": np.zeros(i + 1, np.float32) for i in range(20)}, op="sum")
handles = [byteps.push_pull_async(np.full(i + 1, rank, np.float32), f"declared {i}", op="sum") for i in range(20)]
for handle in handles:
    wrong += int(np.any(byteps.synchronize(handle) != size * (size - 1) / 2))
for root in range(size):
    got = byteps.broadcast(np.arange(100_000, dtype=np.int32) + rank, root)
    wrong += int(np.any(got != np.arange(100_000) + root))
byteps.shutdown()
print(f"rank {rank}: {wrong} wrong", flush=True)
