"""Adding up slots: against float64, with one rounding, in pieces that fit the cache."""

import ml_dtypes
import numpy as np
import pytest

from byteps import local_sums

HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
NUMELS = (1, 1000, 70_001, 300_000)  # within a piece, across pieces of every type


def slots(count: int, numel: int, dtype: np.dtype, scale: float = 1.0) -> list[np.ndarray]:
    return [(np.random.default_rng(one).standard_normal(numel) * scale).astype(dtype) for one in range(count)]


def added(sources: list[np.ndarray], divisor: int = 1, dtype: np.dtype | None = None) -> np.ndarray:
    total = np.empty(sources[0].size, dtype or sources[0].dtype)
    local_sums.add_up(sources, total, divisor)
    return total


@pytest.mark.parametrize("numel", NUMELS)
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("divisor", [1, 4])
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float64)])
def test_sums_of_floats_are_the_oracles(numel: int, count: int, divisor: int, dtype: np.dtype) -> None:
    sources = slots(count, numel, dtype)
    want = np.sum([source.astype(np.float64) for source in sources], axis=0) / divisor
    bound = count * np.finfo(dtype).eps * np.sum([abs(source) for source in sources], axis=0)
    assert np.all(np.abs(added(sources, divisor) - want) <= bound)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("divisor", [1, 4])
def test_16_bit_floats_are_rounded_once(dtype: np.dtype, divisor: int) -> None:
    sources = slots(4, 70_001, dtype)
    exact = sum(source.astype(np.float32) for source in sources) / divisor
    assert np.array_equal(added(sources, divisor), exact.astype(dtype))


def test_an_average_of_halves_does_not_overflow_where_their_sum_would() -> None:
    sources = [np.full(10, 60_000, np.float16)] * 4
    assert np.all(added(sources, 4) == np.float16(60_000))


@pytest.mark.parametrize("dtype", HALVES)
def test_a_slot_alone_is_handed_on_bit_by_bit(dtype: np.dtype) -> None:
    odd = np.arange(1 << 16, dtype=np.uint16).view(dtype)  # every NaN, too
    assert np.array_equal(added([odd]).view(np.uint16), odd.view(np.uint16))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_integers_are_added_up_in_int64_where_their_average_is_to_come(dtype: type) -> None:
    sources = [np.full(70_001, np.iinfo(dtype).max, dtype)] * 3
    total = added(sources, dtype=np.dtype(np.int64))
    assert np.all(total == 3 * int(np.iinfo(dtype).max))
    result = np.empty(total.size, dtype)
    local_sums.divide(total, 3, result)
    assert np.all(result == np.iinfo(dtype).max)


def test_an_integer_average_is_the_floor() -> None:
    result = np.empty(3, np.int32)
    local_sums.divide(np.array([-7, 7, -8], np.int64), 4, result)
    assert result.tolist() == [-2, 1, -2]


def test_a_view_is_of_the_same_memory() -> None:
    memory = memoryview(bytearray(8))
    local_sums.view(memory, "int32")[1] = 5
    assert bytes(memory) == b"\0\0\0\0\5\0\0\0"
