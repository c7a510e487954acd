"""Shared memory of a machine's workers: who has which bytes, who adds up which elements, what travels."""

import itertools

import pytest

from byteps.local_layout import (
    PAGE_NBYTES,
    divides_at_the_end,
    itemsize,
    layout,
    part,
    ranks_of,
    refusal,
    travelling,
)
from byteps.wire import DTYPES, Op, TensorSpec

CACHE_LINE = 64


def spec(numel: int = 1000, dtype: str = "float32", op: Op = Op.SUM, **others) -> TensorSpec:
    return TensorSpec(name="weight", shape=(numel,), dtype=dtype, op=op, **others)


@pytest.mark.parametrize("numel", [1, 15, 16, 17, 1000, 65_537])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_parts_are_all_elements_once_and_begin_on_cache_lines(numel: int, size: int, count: int) -> None:
    parts = [part(numel, size, index, count) for index in range(count)]
    assert [element for start, end in parts for element in range(start, end)] == list(range(numel))
    assert all(start * size % CACHE_LINE == 0 for start, end in parts if start < end)
    lengths = [end - start for start, end in parts]
    assert max(lengths) - min(lengths) < 2 * CACHE_LINE // size


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [Op.SUM, Op.AVERAGE, Op.COPY])
@pytest.mark.parametrize("by_page", [False, True])
@pytest.mark.parametrize("slots", [1, 3, 4])
def test_slots_and_result_and_what_travels_do_not_overlap(dtype: str, op: Op, by_page: bool, slots: int) -> None:
    for numel in (1, 7, 64, 5000):
        one = spec(numel, dtype, op)
        place = layout(one, slots, by_page=by_page)
        places = [place.slot(index) for index in range(slots)] + [place.result]
        if place.wide != place.result:
            places.append(place.wide)
        for before, after in itertools.pairwise(places):
            assert before.stop <= after.start
        assert places[-1].stop <= place.total_nbytes
        assert all(each.start % (PAGE_NBYTES if by_page else CACHE_LINE) == 0 for each in places)
        assert all(each.stop - each.start == one.nbytes for each in places[: slots + 1])
        assert place.wide.stop - place.wide.start == travelling(one).nbytes
        assert place.total_nbytes % place.alignment == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_averages_of_integers_travel_as_something_else(dtype: str) -> None:
    for op in (Op.SUM, Op.AVERAGE, Op.COPY):
        one = spec(dtype=dtype, op=op)
        other = travelling(one)
        if op is Op.AVERAGE and dtype in ("uint8", "int32", "int64"):
            assert divides_at_the_end(one)
            assert (other.dtype, other.op, other.shape) == ("int64", Op.SUM, one.shape)
            assert other.name != one.name  # the same name may be declared on no rank with another type
        else:
            assert other == one


def test_a_codec_is_for_what_travels() -> None:
    one = spec(op=Op.AVERAGE, codec="onebit")
    assert travelling(one).codec == "onebit"


def test_item_sizes_are_those_of_the_wire() -> None:
    assert [itemsize(spec(dtype=dtype)) for dtype in DTYPES] == [4, 8, 2, 2, 4, 8, 1]


def test_what_needs_every_worker_on_its_own_is_refused_with_a_way_out() -> None:
    assert refusal(spec()) == ""
    assert refusal(spec(codec="onebit")) == ""
    for one, words in ((spec(op=Op.ADD), "asynchronous training"), (spec(members=(0, 2)), "of rank 0, 2 only")):
        said = refusal(one)
        assert "'weight'" in said
        assert words in said
        assert "BYTEPS_LOCAL_REDUCTION=0" in said


def test_ranks_follow_machines() -> None:
    assert ranks_of((0, 2), 3) == (0, 1, 2, 6, 7, 8)
    assert ranks_of((), 3) == ()
