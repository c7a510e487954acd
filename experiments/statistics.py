"""From samples to intervals: launches, blocks, paired ratios.

The unit of repetition is a launch (fresh processes), because iterations of one launch share their placement, their
connections and the machine's mood: they are not independent.  So iterations are summarised by their median, launches
come in blocks in which every contender runs once, ratios are paired within a block, and intervals are bootstrapped over
blocks, never over iterations.

How much an interval over few blocks is worth.  The percentile bootstrap of a median over B blocks can say no more than
the range of its B values, and the range holds the true median with probability 1 - 2^(1-B) (all B on one side of it
otherwise): 50 % at B = 2, 75 % at 3, 93.75 % at 5.  `Interval.coverage` therefore is the smaller of that and the
nominal confidence, and the report prints it.  One block gives no interval at all.
Pure: randomness comes from the seed that the caller passes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A median over blocks and what is known about it."""

    median: float
    low: float | None  # None with a single block
    high: float | None
    blocks: int
    coverage: float  # probability that low..high holds the true median; 0 with a single block

    @property
    def known(self) -> bool:
        return self.low is not None and self.high is not None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.median:.3f} (n=1)"
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def launch_seconds(samples: Sequence[float]) -> float:
    """A launch in one number: the median of its timed iterations."""
    if not samples:
        raise ValueError("a launch without timed iterations has no median; failed launches must be left out before")
    if min(samples) <= 0:
        raise ValueError(f"iteration of {min(samples)} s: times must be positive")
    return float(np.median(np.asarray(samples, dtype=np.float64)))


def paired_ratios(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> dict[int, float]:
    """Block -> ratio, for the blocks in which both ran; a block with one of them missing says nothing."""
    return {block: numerator[block] / denominator[block] for block in sorted(numerator) if block in denominator}


def interval_over_blocks(
    values: Sequence[float], *, seed: int, confidence: float = 0.95, resamples: int = 10_000
) -> Interval:
    """Percentile bootstrap of the median over blocks."""
    if not values:
        raise ValueError("no blocks: nothing to summarise")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: must lie strictly between 0 and 1, e.g. 0.95")
    data = np.asarray(values, dtype=np.float64)
    middle = float(np.median(data))
    blocks = len(data)
    if blocks == 1:
        return Interval(median=middle, low=None, high=None, blocks=1, coverage=0.0)
    draws = np.random.default_rng(seed).integers(0, blocks, size=(resamples, blocks))
    medians = np.median(data[draws], axis=1)
    tail = (1 - confidence) / 2
    low, high = (float(edge) for edge in np.quantile(medians, [tail, 1 - tail]))
    return Interval(
        median=middle,
        low=min(low, middle),
        high=max(high, middle),
        blocks=blocks,
        coverage=min(confidence, 1 - 2.0 ** (1 - blocks)),
    )
