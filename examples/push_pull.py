"""The smallest BytePS program: every worker contributes an array, every worker gets the sum.

Run it: byteps launch --workers 4 --servers 2 -- python examples/push_pull.py
"""

import numpy as np

import byteps

byteps.init()
array = np.arange(1_000_000, dtype=np.float32) + byteps.rank()
total = byteps.push_pull(array, "example", op="sum")

workers = byteps.size()
expected = workers * np.arange(1_000_000, dtype=np.float32) + sum(range(workers))
print(f"rank {byteps.rank()} of {workers}: {'right' if np.array_equal(total, expected) else 'WRONG'}", flush=True)
byteps.shutdown()
