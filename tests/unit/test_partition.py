import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.partition import DEFAULT_PARTITION_BYTES, auto_partition_bytes, split

ITEMSIZES = st.sampled_from([1, 2, 4, 8])


def check_cuts(cuts, nbytes, itemsize, partition_bytes):
    position = 0
    for offset, size in cuts:
        assert offset == position
        assert offset % itemsize == 0
        assert size % itemsize == 0
        assert 0 < size <= max(partition_bytes, itemsize)
        position += size
    assert position == nbytes
    sizes = [size for _, size in cuts]
    assert len(set(sizes[:-1])) <= 1
    assert not sizes or sizes[-1] <= sizes[0]


@given(numel=st.integers(0, 5000), itemsize=ITEMSIZES, partition_bytes=st.integers(1, 4096))
def test_partitions_cover_the_tensor_in_whole_elements(numel, itemsize, partition_bytes):
    check_cuts(split(numel * itemsize, itemsize, partition_bytes), numel * itemsize, itemsize, partition_bytes)


@pytest.mark.parametrize("num_partitions", range(1, 10))
@pytest.mark.parametrize("numel", range(21))
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_few_elements_in_up_to_nine_partitions(numel, num_partitions, itemsize):
    nbytes = numel * itemsize
    partition_bytes = max(-(-numel // num_partitions), 1) * itemsize
    cuts = split(nbytes, itemsize, partition_bytes)
    check_cuts(cuts, nbytes, itemsize, partition_bytes)
    assert len(cuts) <= num_partitions


def test_an_empty_tensor_has_no_partition():
    assert split(0, 4, DEFAULT_PARTITION_BYTES) == []


def test_a_partition_size_that_would_cut_an_element_is_rounded_down():
    assert split(8200, 4, 4097) == [(0, 4096), (4096, 4096), (8192, 8)]


def test_a_partition_smaller_than_an_element_holds_one_element():
    assert split(16, 8, 1) == [(0, 8), (8, 8)]


def test_a_size_that_is_no_multiple_of_the_partition_ends_in_a_smaller_one():
    assert split(10 * 2**20 + 3, 1, 4 * 2**20) == [(0, 2**22), (2**22, 2**22), (2**23, 2**21 + 3)]


def test_more_than_65536_partitions():
    cuts = split(4096 * 65_537, 4, 4096)
    assert len(cuts) == 65_537
    check_cuts(cuts, 4096 * 65_537, 4, 4096)


def test_tensors_beyond_4_gib():
    nbytes = 2**32 + 12
    cuts = split(nbytes, 4, 2**28)
    check_cuts(cuts, nbytes, 4, 2**28)
    assert cuts[-1] == (2**32, 12)


@pytest.mark.parametrize(
    "arguments, named",
    [((10, 4, 8), "nbytes is 10"), ((8, 4, 0), "partition_bytes is 0"), ((8, 0, 8), "itemsize is 0")],
)
def test_impossible_requests_are_refused_by_name(arguments, named):
    with pytest.raises(ValueError, match=named):
        split(*arguments)


@given(total=st.integers(0, 2**45), rate=st.floats(1e3, 1e12))
def test_automatic_partitions_keep_to_their_bounds_and_grow_with_size_and_rate(total, rate):
    size = auto_partition_bytes(total, rate)
    assert 64 * 1024 <= size <= DEFAULT_PARTITION_BYTES
    assert auto_partition_bytes(2 * total, rate) >= size
    assert auto_partition_bytes(total, 2 * rate) >= size


@pytest.mark.parametrize(
    "total, rate, size",
    [
        (64 << 20, 25e6, 65_536),  # the lab: 64 MiB at 200 Mbit/s
        (1 << 30, 25e6, 1 << 20),  # M / 1024
        (64 << 20, 1.25e9, 1_250_000),  # a millisecond at 10 Gbit/s
        (1 << 40, 25e6, 4_096_000),
        (64 << 20, 12.5e9, 4_096_000),
        (64 << 20, None, 4_096_000),
    ],
)
def test_automatic_partitions(total, rate, size):
    assert auto_partition_bytes(total, rate) == size
