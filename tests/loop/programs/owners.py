"""One tensor summed and checked; prints the size of its partitions, and how many of them each service owns."""

from collections import Counter

import numpy as np

import byteps
from byteps.session import current

byteps.init()
rank, size = byteps.rank(), byteps.size()
index = np.arange(100_000, dtype=np.float32)
total = byteps.push_pull(index + rank, "w", op="sum")
if not np.array_equal(total, index * size + size * (size - 1) // 2):
    raise AssertionError("the sum is wrong")
entry = current().worker._registry._tensors["w"].entry
print(f"rank {rank}: cut {entry.cut_nbytes}, owners {sorted(Counter(entry.owners).items())}", flush=True)
byteps.shutdown()
