"""Launches, blocks, intervals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.statistics import interval_over_blocks, launch_seconds, paired_ratios

values = st.lists(st.floats(0.1, 100), min_size=2, max_size=12)


def test_a_launch_is_the_median_of_its_iterations():
    assert launch_seconds([3.0, 1.0, 50.0]) == 3.0


@pytest.mark.parametrize("samples", [[], [1.0, 0.0], [-1.0]])
def test_a_launch_needs_positive_times(samples):
    with pytest.raises(ValueError, match=r"must be|no median"):
        launch_seconds(samples)


def test_ratios_are_paired_within_a_block_and_lonely_blocks_are_left_out():
    assert paired_ratios({0: 4.0, 1: 6.0, 2: 8.0}, {0: 2.0, 2: 2.0, 3: 1.0}) == {0: 2.0, 2: 4.0}


def test_a_single_block_has_no_interval():
    interval = interval_over_blocks([0.97], seed=0)
    assert (interval.median, interval.low, interval.high, interval.coverage) == (0.97, None, None, 0.0)
    assert str(interval) == "0.970 (n=1)"


def test_two_blocks_give_their_range_and_say_that_it_covers_half():
    interval = interval_over_blocks([0.95, 0.99], seed=0)
    assert (interval.low, interval.high, interval.coverage) == (0.95, 0.99, 0.5)


@given(values, st.integers(0, 5))
def test_the_interval_lies_in_the_range_and_holds_the_median(data, seed):
    interval = interval_over_blocks(data, seed=seed)
    assert min(data) <= interval.low <= interval.median <= interval.high <= max(data)


@given(values)
def test_the_same_seed_gives_the_same_interval(data):
    assert interval_over_blocks(data, seed=3) == interval_over_blocks(data, seed=3)


def test_more_blocks_of_the_same_spread_give_a_narrower_interval():
    few, many = [interval_over_blocks([1.0, 1.1, 1.2] * times, seed=0) for times in (1, 10)]
    assert many.high - many.low < few.high - few.low
    assert few.coverage == 0.75
    assert many.coverage == 0.95


def test_no_blocks_and_a_wrong_confidence_are_errors():
    with pytest.raises(ValueError, match="no blocks"):
        interval_over_blocks([], seed=0)
    with pytest.raises(ValueError, match="confidence"):
        interval_over_blocks([1.0], seed=0, confidence=95)
