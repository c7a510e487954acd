"""Figure 9b: how many gradient bytes a machine's CPU sums per second.

The loop is a summation service's inner loop: one incoming gradient after another is added to an accumulator by
`byteps.kernels.accumulate` (fp16 and bf16 into fp32).  Throughput counts the incoming bytes, as the paper does when it
compares the adder with a NIC, whose rate too counts a gradient once.  `cores = "all"` gives every core a thread with
its own slice, as a summation service sharded over cores has.  numpy releases the interpreter lock while it adds.

The sum is checked: each round adds small integers, exact in every type, and all elements are compared at the end.
"""

import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from byteps.kernels import Array, accumulate
from experiments.record import Case, OracleCheck

DTYPES: dict[str, tuple[np.dtype, np.dtype]] = {  # incoming, accumulator
    "fp32": (np.dtype(np.float32), np.dtype(np.float32)),
    "fp16": (np.dtype(np.float16), np.dtype(np.float32)),
    "bf16": (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)),
}
PIECE_BYTES = 4_096_000  # a summation service adds partition by partition


@dataclass(frozen=True, kw_only=True)
class AdderOutcome:
    """Seconds per pass over all incoming bytes."""

    warmup_seconds: list[float]
    seconds: list[float]
    oracle: OracleCheck
    cpu_seconds: float
    num_threads: int


def num_threads(cores: str) -> int:
    """ "1" or "all" in numbers."""
    if cores == "all":
        return len(os.sched_getaffinity(0))
    if cores != "1":
        raise ValueError(f'cores = {cores!r}: use "1" or "all"')
    return 1


def run(case: Case) -> AdderOutcome:
    """One launch of the adder in this process."""
    dtype = case.settings["dtype"]
    if dtype not in DTYPES:
        raise ValueError(f"dtype = {dtype!r}: use one of {', '.join(DTYPES)}")
    incoming_dtype, total_dtype = DTYPES[dtype]
    numel = case.nbytes // incoming_dtype.itemsize
    incoming = (np.arange(numel) % 7).astype(incoming_dtype)
    total = np.zeros(numel, dtype=total_dtype)
    threads = num_threads(case.settings["cores"])
    cuts = [numel * index // threads for index in range(threads + 1)]
    slices = [slice(start, stop) for start, stop in itertools.pairwise(cuts)]
    passes: list[float] = []
    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="adder") as pool:
        cpu_started = 0.0
        for iteration in range(case.warmups + case.iterations):
            if iteration == case.warmups:
                cpu_started = time.process_time()
            started = time.perf_counter()
            list(pool.map(lambda part: _add(total[part], incoming[part]), slices))
            passes.append(time.perf_counter() - started)
        cpu_seconds = time.process_time() - cpu_started
    expected = (np.arange(numel) % 7).astype(np.float64) * len(passes)
    error = float(np.abs(total - expected).max())
    return AdderOutcome(
        warmup_seconds=passes[: case.warmups],
        seconds=passes[case.warmups :],
        oracle=OracleCheck(max_error=error, tolerance=0.0, checked=1, passed=error == 0.0),
        cpu_seconds=cpu_seconds,
        num_threads=threads,
    )


def _add(total: Array, incoming: Array) -> None:
    step = PIECE_BYTES // incoming.dtype.itemsize
    for start in range(0, len(incoming), step):
        accumulate(total[start : start + step], incoming[start : start + step])
