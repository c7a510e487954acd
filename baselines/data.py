"""The gradients of every contender, and the oracle they are checked against.

Element i of rank r in iteration t is an integer of at most 1000 in magnitude, a hash of (i mod PERIOD, r, t).  Sums of
integers below 2^24 are exact in fp32 in whatever order they are added, so the check needs no tolerance; for fp16, exact
below 2^11, the integers are at most 100, which is enough for 20 ranks.  A value that
depended on r and i linearly, or not at all, would hide swapped partitions and contributions counted twice.  PERIOD is a
prime: cuts of partitions and chunks fall on round numbers of elements, so no misplaced piece lines up with the pattern.
It also makes the oracle cheap: one period per rank is summed in float64, not the whole tensor.
Standard library and numpy only (>= 1.22), since it runs in every contender's own environment.
"""

from typing import Any

import numpy as np

PERIOD = 65521
LARGEST = {np.dtype(np.float32): 1000, np.dtype(np.float16): 100}
_ROWS = 16  # periods compared at a time, so that the float64 copies stay small

Array = np.ndarray[Any, np.dtype[Any]]


def pattern(rank: int, iteration: int, largest: int) -> Array:
    """One period of the gradient of a rank: integers, as float64."""
    x = np.arange(PERIOD, dtype=np.uint64)
    x += np.uint64((rank + 1) * 0x9E3779B97F4A7C15 % 2**64) ^ np.uint64((iteration + 1) * 0xD1B54A32D192ED03 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64's finaliser
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return (x % np.uint64(2 * largest + 1)).astype(np.float64) - largest


def fill(array: Array, rank: int, iteration: int) -> None:
    """Write a rank's gradient into a flat array."""
    row = pattern(rank, iteration, LARGEST[array.dtype]).astype(array.dtype)
    whole = len(array) // PERIOD * PERIOD
    array[:whole].reshape(-1, PERIOD)[:] = row
    array[whole:] = row[: len(array) - whole]


def expected_sum(size: int, iteration: int, largest: int) -> Array:
    """One period of the sum over ranks 0 .. size - 1, in float64."""
    total = np.zeros(PERIOD)
    for rank in range(size):
        total += pattern(rank, iteration, largest)
    return total


def largest_error(result: Array, size: int, iteration: int) -> float:
    """Largest |result - oracle| over all elements; NaN anywhere counts as infinite."""
    oracle = expected_sum(size, iteration, LARGEST[result.dtype])
    whole = len(result) // PERIOD * PERIOD
    rows = result[:whole].reshape(-1, PERIOD)
    worst = 0.0
    for start in range(0, len(rows), _ROWS):
        worst = _larger(worst, rows[start : start + _ROWS] - oracle)
    return _larger(worst, result[whole:] - oracle[: len(result) - whole])


def _larger(worst: float, difference: Array) -> float:
    if difference.size == 0:
        return worst
    error = float(np.abs(difference).max())
    return float("inf") if error != error else max(worst, error)
