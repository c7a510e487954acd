"""Sums without end, until a file appears; run as a worker.  Arguments: the file, and what to do about it (optional).

Prints "pushing" once the job runs, and the text of the error that ends it.  `leave-early`: rank 1 leaves at once.
"""

import os
import sys

import numpy as np

import byteps
from byteps.errors import BytePSError

stop, what = sys.argv[1], (sys.argv[2:] or [""])[0]
try:
    byteps.init()
    rank, size = byteps.rank(), byteps.size()
    mine = np.arange(300_000, dtype=np.float32) + rank
    want = np.arange(300_000, dtype=np.float32) * size + size * (size - 1) // 2
    iteration = 0
    while True:
        assert np.array_equal(byteps.push_pull(mine, "steady", op="sum"), want), f"iteration {iteration} is wrong"
        # All ranks stop in the same iteration: the first one that sees the file says so in a sum.
        stopping = byteps.push_pull(np.int32(os.path.exists(stop)), "stop", op="sum")
        if iteration == 0:
            print("pushing", flush=True)
            if what == "leave-early" and rank == 1:
                break
        if stopping:
            break
        iteration += 1
    byteps.shutdown()
    print(f"left after {iteration} iterations", flush=True)
except BytePSError as error:
    print(f"error {type(error).__name__}: {error}", flush=True)
    try:
        byteps.push_pull(np.ones(3, np.float32), "later")
    except BytePSError as again:
        print(f"error {type(again).__name__}: {again}", flush=True)
    sys.exit(1)
