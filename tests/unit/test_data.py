"""The gradients and their oracle catch what constant data would hide."""

import numpy as np
import pytest
from test_record import make_case

from baselines import data
from experiments import adder

NUMEL = 2 * data.PERIOD + 12345
CUT = 16384  # elements of a 64 KiB partition


def gradients(size: int, iteration: int = 0) -> list[np.ndarray]:
    result = []
    for rank in range(size):
        array = np.empty(NUMEL, np.float32)
        data.fill(array, rank, iteration)
        result.append(array)
    return result


@pytest.mark.parametrize("size", [1, 2, 8])
def test_the_right_sum_has_no_error(size):
    assert data.largest_error(np.sum(gradients(size), axis=0, dtype=np.float32), size, 0) == 0.0


@pytest.mark.parametrize("numel", [1, data.PERIOD - 1, data.PERIOD, data.PERIOD + 1])
def test_sizes_around_the_period_are_checked_whole(numel):
    array = np.empty(numel, np.float32)
    data.fill(array, 0, 3)
    assert data.largest_error(array, 1, 3) == 0.0
    array[-1] += 1
    assert data.largest_error(array, 1, 3) == 1.0


def test_swapped_partitions_a_doubled_rank_a_stale_sum_and_nan_are_seen():
    total = np.sum(gradients(4), axis=0, dtype=np.float32)
    swapped = total.copy()
    swapped[:CUT], swapped[CUT : 2 * CUT] = total[CUT : 2 * CUT], total[:CUT]
    ranks = gradients(4)
    doubled = ranks[0] + ranks[0] + ranks[2] + ranks[3]
    nan = total.copy()
    nan[5] = np.nan
    assert data.largest_error(total, 4, 0) == 0.0
    for wrong in (swapped, doubled, nan):
        assert data.largest_error(wrong, 4, 0) > 0
    assert data.largest_error(total, 4, 1) > 0


@pytest.mark.parametrize("size", [1, 4, 20])
def test_half_precision_is_exact_in_any_order_of_addition_up_to_twenty_ranks(size):
    ranks = [np.empty(NUMEL, np.float16) for _ in range(size)]
    for rank, array in enumerate(ranks):
        data.fill(array, rank, 1)
        assert np.abs(array).max() == 100
    for order in (ranks, ranks[::-1]):
        total = np.zeros(NUMEL, np.float16)
        for array in order:
            total += array
        assert data.largest_error(total, size, 1) == 0.0
    total[7] += 1
    assert data.largest_error(total, size, 1) == 1.0


def test_half_precision_and_single_do_not_share_their_data():
    half, single = np.empty(NUMEL, np.float16), np.empty(NUMEL, np.float32)
    data.fill(half, 0, 0)
    data.fill(single, 0, 0)
    assert data.largest_error(half, 1, 0) == data.largest_error(single, 1, 0) == 0.0
    assert np.abs(single).max() == 1000


@pytest.mark.parametrize("dtype", sorted(adder.DTYPES))
@pytest.mark.parametrize("cores", ["1", "all"])
def test_the_adder_sums_exactly_in_every_type(dtype, cores):
    case = make_case(settings={"dtype": dtype, "cores": cores}, n=1, k=0, nbytes=100_003 * 4)
    outcome = adder.run(case)
    assert outcome.oracle.passed
    assert (len(outcome.warmup_seconds), len(outcome.seconds)) == (1, 3)


def test_the_adder_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="dtype = 'fp8'"):
        adder.run(make_case(settings={"dtype": "fp8", "cores": "1"}))
    with pytest.raises(ValueError, match="cores = '3'"):
        adder.run(make_case(settings={"dtype": "fp32", "cores": "3"}))
