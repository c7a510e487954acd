"""The table of `byteps bench`, without running it."""

import pytest

from byteps import bench
from byteps.errors import BytePSError
from byteps.settings import Settings
from byteps.units import parse_rate


def test_sizes_grow_by_the_factor_and_hold_whole_elements() -> None:
    assert bench.sizes(4096, 1 << 20, 4) == [4096, 16384, 65536, 262144, 1 << 20]
    assert bench.sizes(10, 100, 3) == [8, 28, 88]


@pytest.mark.parametrize(("least", "greatest", "factor"), [(0, 8, 2), (16, 8, 2), (4, 8, 1)])
def test_sizes_that_never_end_or_never_begin_are_refused(least: int, greatest: int, factor: int) -> None:
    with pytest.raises(BytePSError, match="use"):
        bench.sizes(least, greatest, factor)


def test_a_row_at_the_optimum_says_one() -> None:
    settings = Settings(num_workers=4, num_servers=4, nic_bytes_per_s=parse_rate("1Gbit"))
    seconds = (64 << 20) / (settings.nic_bytes_per_s * 1448 / 1514)  # k = n: M / B
    fields = bench.line(bench.Row(nbytes=64 << 20, seconds=seconds, wrong=3), settings).split()
    assert fields[:4] == ["67108864", "16777216", "float", "sum"]
    assert fields[6:] == ["67108864", "1.00", "3"]


def test_without_a_nic_rate_there_is_no_fraction() -> None:
    row = bench.Row(nbytes=4096, seconds=1e-3, wrong=0)
    assert bench.line(row, Settings(num_workers=2)).split()[-2:] == ["-", "0"]


def test_columns_stand_under_their_names() -> None:
    names = bench.header(Settings(num_workers=2), 4, 8)[-2]
    row = bench.line(bench.Row(nbytes=4096, seconds=1e-3, wrong=0), Settings(num_workers=2))
    assert len(names) == len(row)
