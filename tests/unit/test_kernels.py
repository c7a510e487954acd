import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps import kernels
from byteps.kernels import ACCUMULATORS, NUMPY_DTYPES
from byteps.wire import Op

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SIZES = [0, 1, 5, 16383, 16384, 16385, 40001]


def summed(arrays: list[np.ndarray], op: Op = Op.SUM) -> np.ndarray:
    """As a summation service does it."""
    dtype = arrays[0].dtype
    same = ACCUMULATORS[NUMPY_DTYPES.index(dtype)] == dtype
    total = arrays[0].copy() if same else kernels.widen(arrays[0])
    for array in arrays[1:]:
        kernels.accumulate(total, array)
    return kernels.finish(total, op, len(arrays), dtype)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_sums_of_integers_are_exact(dtype, size):
    arrays = [((np.arange(size) * 7 + worker * 13) % 61).astype(dtype) for worker in range(3)]
    want = sum(array.astype(np.float64) for array in arrays)
    assert np.array_equal(summed(arrays).astype(np.float64), want)
    assert summed(arrays).dtype == dtype


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
@given(data=st.data())
def test_sixteen_bit_floats_are_summed_in_float32_and_rounded_once(dtype, data):
    bits = st.lists(st.integers(0, 0xFFFF), min_size=4, max_size=4)
    arrays = [np.array(data.draw(bits), np.uint16).view(dtype) for _ in range(3)]
    with np.errstate(all="ignore"):
        wide = (arrays[0].astype(np.float32) + arrays[1].astype(np.float32)) + arrays[2].astype(np.float32)
        want, average = wide.astype(dtype), (wide / np.float32(3)).astype(dtype)
        got, got_average = summed(arrays), summed(arrays, Op.AVERAGE)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
    np.testing.assert_array_equal(got_average.astype(np.float32), average.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_an_integer_average_is_the_floor_and_does_not_overflow(dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if dtype != np.int64:
        full = np.array([low, high], dtype)
        assert np.array_equal(summed([full] * 5, Op.AVERAGE), full)
    if low < 0:
        arrays = [np.array([-7, -1, 7, -2], dtype), np.array([0, 0, 0, -1], dtype)]
        assert summed(arrays, Op.AVERAGE).tolist() == [-4, -1, 3, -2]


def test_an_overflow_of_fp16_is_infinity_without_a_warning(recwarn):
    big = np.full(3, 60000, np.float16)
    assert np.isinf(summed([big, big])).all()
    assert not recwarn.list


def test_special_values_of_bfloat16_survive():
    values = np.array([np.inf, -np.inf, np.nan, -0.0, 1e-40, 3e38], np.float32).astype(BFLOAT16)
    wide = kernels.widen(values)
    np.testing.assert_array_equal(wide, values.astype(np.float32))


def test_the_accumulator_is_answered_itself_where_no_conversion_is_needed():
    total = np.ones(4, np.float32)
    assert kernels.finish(total, Op.AVERAGE, 2, total.dtype) is total
