"""Workers that do not agree; run as a worker.  Argument: about what.  Prints every error, and raises the last one."""

import sys
import time

import numpy as np

import byteps
from byteps.errors import BytePSError

what = sys.argv[1]
byteps.init()
rank, last = byteps.rank(), byteps.size() - 1
odd = rank == last


def busy_elsewhere(until: float = time.monotonic() + 4.5) -> None:
    time.sleep(max(until - time.monotonic(), 0.0))


def quarrel() -> None:
    if what == "shape":
        byteps.push_pull(np.ones((3, 5) if odd else (5, 3), np.float32), "fc.weight", op="sum")
    elif what == "dtype":
        byteps.push_pull(np.ones(10, np.float64 if odd else np.float32), "fc.weight", op="sum")
    elif what == "op":
        byteps.push_pull(np.ones(10, np.float32), "fc.weight", op="average" if odd else "sum")
    elif what == "codec":
        byteps.push_pull(np.ones(10, np.float32), "fc.weight", op="sum", codec="topk:0.1" if odd else "topk:0.2")
    elif what == "later shape":
        byteps.push_pull(np.ones(11 if odd else 10, np.float32), "agreed", op="sum")
    elif what == "names":
        names = ["a", "b", "c"] if odd else ["a", "b"]
        byteps.declare({name: np.ones(2, np.float32) for name in names})
    elif what == "stall":
        if not odd:
            byteps.push_pull(np.ones(10, np.float32), "half", op="sum")
        busy_elsewhere()
        byteps.push_pull(np.ones(10, np.float32), "whole", op="sum")
    elif what == "barrier":
        if not odd:
            byteps.declare({"half": np.ones(2, np.float32)})
        busy_elsewhere()
        byteps.push_pull(np.ones(10, np.float32), "whole", op="sum")
    elif what == "outstanding":
        if odd:
            byteps.push_pull_async(np.ones(10, np.float32), "half", op="sum")
            byteps.shutdown()
            sys.exit(0)
        byteps.push_pull(np.ones(10, np.float32), "whole", op="sum")
    elif what == "absent":
        if odd:
            byteps.shutdown()
            sys.exit(0)
        byteps.push_pull(np.ones(10, np.float32), "half", op="sum")
    elif what == "absent from the barrier":
        if odd:
            byteps.shutdown()
            sys.exit(0)
        byteps.declare({"half": np.ones(2, np.float32)})


started = time.monotonic()
try:
    # A quick rank may be in the quarrel while a slow one still waits here: that is where it hears of it.
    byteps.push_pull(np.ones(10, np.float32), "agreed", op="sum")
    quarrel()
except BytePSError as error:
    print(f"error {type(error).__name__}: {error}", flush=True)
    print(f"after {time.monotonic() - started:.2f} s", flush=True)
    for call in (quarrel, lambda: byteps.push_pull(np.ones(4, np.float32), "later")):
        try:
            call()
        except BytePSError as again:
            print(f"error {type(again).__name__}: {again}", flush=True)
    raise
