"""The order and credit of a worker's queue, as laws."""

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps.communication import NOTHING, CommunicationService, Transfer, make_pending
from byteps.pipeline import (
    MAX_CREDIT_OF_ORDERS_NBYTES,
    RELAX_OVERDRAFT_EVERY,
    Frame,
    Pipeline,
    Task,
    default_credit_bytes,
)
from byteps.wire import BATCH_NBYTES, MAX_BATCH_COUNT, SMALL_NBYTES, Op, TensorEntry, TensorSpec, make_key

CUT = 100_000
Part = tuple[int, int]  # tensor, partition


def task(number: int, sizes: int = 3, *, cut: int = CUT, services: int = 2, priority: int = 0, round_: int = 0) -> Task:
    """A tensor of `sizes` partitions, the last one half as large, owned by services in turn."""
    nbytes = cut * sizes - cut // 2
    entry = TensorEntry(
        spec=TensorSpec(name=f"t{number}", shape=(nbytes,), dtype="uint8", op=Op.SUM),
        number=number,
        cut_nbytes=cut,
        owners=tuple((number + part) % services for part in range(sizes)),
    )
    return Task(entry=entry, nbytes=nbytes, priority=priority, round=round_)


def parts(frames: list[Frame]) -> list[Part]:
    return [(each.entry.number, part) for frame in frames for each, part in frame.parts]


def take_all(pipeline: Pipeline) -> list[Frame]:
    """As the worker does: until there is nothing more."""
    taken = []
    while frames := pipeline.take():
        taken += frames
    return taken


def answer(pipeline: Pipeline, wanted: list[Part]) -> None:
    for number, part in wanted:
        pipeline.answer(make_key(number, part))


def test_a_span_is_cut_aligned_and_the_last_one_is_smaller():
    one = task(0, 3)
    assert [one.span(part) for part in range(3)] == [(0, CUT), (CUT, 2 * CUT), (2 * CUT, 2 * CUT + CUT // 2)]


TASKS = st.lists(st.tuples(st.integers(1, 4), st.integers(-2, 2)), min_size=1, max_size=8)


@given(TASKS, st.randoms(use_true_random=False))
def test_priority_then_number_then_offset_whatever_the_order_of_submission(shapes, chance: random.Random):
    tasks = [task(number, sizes, priority=priority) for number, (sizes, priority) in enumerate(shapes)]
    chance.shuffle(tasks)
    pipeline = Pipeline(1 << 60)
    pipeline.submit(tasks)
    expected = sorted(
        (-each.priority, each.entry.number, part) for each in tasks for part in range(len(each.entry.owners))
    )
    assert parts(take_all(pipeline)) == [(number, part) for _, number, part in expected]


@given(TASKS, st.integers(1, 5 * CUT), st.randoms(use_true_random=False))
def test_no_more_than_the_credit_and_one_partition_is_in_flight(shapes, credit, chance: random.Random):
    pipeline = Pipeline(credit)
    tasks = [task(number, sizes, priority=priority) for number, (sizes, priority) in enumerate(shapes)]
    pipeline.submit(tasks)
    in_flight: list[tuple[Part, int]] = []
    seen = []
    while True:
        for frame in take_all(pipeline):
            for each, part in frame.parts:
                start, end = each.span(part)
                in_flight.append(((each.entry.number, part), end - start))
                seen.append((each.entry.number, part))
            assert frame.service == frame.parts[0][0].entry.owners[frame.parts[0][1]]
        total = sum(nbytes for _, nbytes in in_flight)
        assert total == pipeline.in_flight_bytes < credit + CUT
        if not in_flight:
            break
        done, _ = in_flight.pop(chance.randrange(len(in_flight)))
        answer(pipeline, [done])
    assert sorted(seen) == sorted((t.entry.number, part) for t in tasks for part in range(len(t.entry.owners)))
    assert not pipeline.ready


@pytest.mark.parametrize(
    "cut, services, credit",
    [
        (1, 8, 28 << 16),
        (64 << 10, 14, 28 << 16),
        (1 << 20, 1, 28 << 20),
        (4_096_000, 4, 32 << 20),
        (40 << 20, 1, 80 << 20),
        (4_096_000, 128, 256 * 4_096_000),
    ],
)
def test_the_credit_is_28_partitions_within_bounds_and_two_for_every_service(cut, services, credit):
    assert default_credit_bytes(cut, services) == credit


def test_where_priorities_differ_twice_as_much_may_be_in_flight_of_large_partitions():
    """Workers' orders differ from moment to moment, and part of the credit waits for what others hold back."""
    limit = MAX_CREDIT_OF_ORDERS_NBYTES
    assert default_credit_bytes(4_096_000, 4, limit) == 2 * default_credit_bytes(4_096_000, 4)
    assert default_credit_bytes(64 << 10, 4, limit) == default_credit_bytes(64 << 10, 4)
    service = CommunicationService(
        credit_bytes=0, completed=lambda _: None, lost=lambda _: None, violated=lambda *_: None
    )
    service.tune(4_096_000)
    transfers = [
        Transfer(
            entry=task(number).entry,
            nbytes=1,
            priority=priority,
            round=0,
            source=NOTHING,
            target=NOTHING,
            pending=make_pending(),
        )
        for number, priority in enumerate([1, 1, 2])
    ]
    credits = []
    for transfer in transfers:
        service.submit(transfer)
        credits.append(service._pipeline.credit_bytes)
    assert credits == [32 << 20, 32 << 20, limit]


def test_something_is_in_flight_even_if_a_partition_exceeds_the_credit():
    pipeline = Pipeline(1)
    pipeline.submit([task(0)])
    assert parts(take_all(pipeline)) == [(0, 0)]
    answer(pipeline, [(0, 0)])
    assert parts(take_all(pipeline)) == [(0, 1)]


def test_a_later_tensor_of_higher_priority_overtakes():
    pipeline = Pipeline(1)
    pipeline.submit([task(0, 3)])
    take_all(pipeline)
    pipeline.submit([task(1, 1, priority=5)])
    answer(pipeline, [(0, 0)])
    assert parts(take_all(pipeline)) == [(1, 0)]


def test_an_answer_for_what_is_not_under_way_is_an_error():
    pipeline = Pipeline(CUT)
    pipeline.submit([task(0)])
    with pytest.raises(KeyError):
        pipeline.answer(make_key(0, 0))
    take_all(pipeline)
    answer(pipeline, [(0, 0)])
    with pytest.raises(KeyError):
        pipeline.answer(make_key(0, 0))


@given(st.integers(1, 300), st.integers(1, 3))
@settings(deadline=None)
def test_small_partitions_travel_together_and_none_is_forgotten(count, services):
    pipeline = Pipeline(1 << 60)
    tasks = [task(number, 1, cut=64, services=services) for number in range(count)]
    pipeline.submit(tasks)
    seen = []
    rounds = 0
    while frames := take_all(pipeline):
        rounds += 1
        for frame in frames:
            assert {each.entry.owners[part] for each, part in frame.parts} == {frame.service}
            assert len(frame.parts) <= MAX_BATCH_COUNT
            assert (
                sum(each.span(part)[1] - each.span(part)[0] for each, part in frame.parts)
                <= BATCH_NBYTES + SMALL_NBYTES
            )
        seen += parts(frames)
        answer(pipeline, parts(frames))
    assert sorted(seen) == [(number, 0) for number in range(count)]
    assert rounds <= 2


class Service:
    """Answers a partition to every worker once all have pushed it."""

    def __init__(self, workers: int) -> None:
        self.arrived: dict[Part, set[int]] = defaultdict(set)
        self.workers = workers

    def push(self, worker: int, wanted: list[Part]) -> list[Part]:
        complete = []
        for part in wanted:
            self.arrived[part].add(worker)
            if len(self.arrived[part]) == self.workers:
                complete.append(part)
        return complete


@given(
    st.integers(2, 3),
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from([64, 20_000])), min_size=1, max_size=8),
    st.integers(1, 60_000),
    st.integers(0, 2**32),
)
@settings(deadline=None)
def test_workers_whose_orders_differ_all_finish(workers, shapes, credit, seed):
    """Each submits the same tensors in its own order and with its own priorities, then waits: relaxing ends it."""
    chance = random.Random(seed)
    pipelines = [Pipeline(credit) for _ in range(workers)]
    service = Service(workers)
    pending = []
    for _ in pipelines:
        tasks = [task(i, sizes, cut=cut, priority=chance.randint(-3, 3)) for i, (sizes, cut) in enumerate(shapes)]
        pending.append(chance.sample(tasks, len(tasks)))
    remaining = sum(sizes for sizes, _ in shapes)
    for _ in range(RELAX_OVERDRAFT_EVERY * 2 * remaining + len(shapes)):
        for worker in chance.sample(range(workers), workers):
            pipeline = pipelines[worker]
            if pending[worker]:
                pipeline.submit([pending[worker].pop()])
            else:
                pipeline.relax()
            for part in service.push(worker, parts(take_all(pipeline))):
                remaining -= 1
                for each in pipelines:
                    each.answer(make_key(*part))
    assert remaining == 0
    assert all(pipeline.in_flight_bytes == 0 for pipeline in pipelines)


def test_the_overdraft_ends_with_the_silence():
    pipeline = Pipeline(CUT)
    pipeline.submit([task(0, 9)])
    first = parts(take_all(pipeline))
    for _ in range(5):
        pipeline.relax()
    more = parts(take_all(pipeline))
    assert len(more) >= 1
    answer(pipeline, first + more[:-1])
    take_all(pipeline)
    assert pipeline.in_flight_bytes < 2 * CUT
