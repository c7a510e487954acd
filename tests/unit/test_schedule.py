"""Schedules: every scheme proved, broken ones refused, and numbers that agree with the proof."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.schedule import (
    Reduce,
    Round,
    Schedule,
    Send,
    boundaries,
    dependencies,
    gather_half,
    one_round,
    reduce_half,
)
from byteps.schedules import passed, served
from byteps.symbolic import ScheduleError, check
from tests.unit.schemes import all_schemes

SCHEMES = all_schemes()
HALVES = {name: one for name, one in SCHEMES.items() if not name.startswith("racks")}


@pytest.mark.parametrize("name", SCHEMES)
def test_every_worker_ends_with_every_contribution_exactly_once(name: str) -> None:
    proof = check(SCHEMES[name])
    assert 0 < proof.most_stored <= 1 + 1e-9


@pytest.mark.parametrize("name", HALVES)
def test_the_halves_are_a_reduce_scatter_and_an_all_gather(name: str) -> None:
    check(reduce_half(HALVES[name]))
    check(gather_half(HALVES[name]))


def run_in_any_order(schedule: Schedule, values: np.ndarray, seed: int) -> np.ndarray:
    """The places after running the steps in an order that dependencies allow, chosen at random."""
    places = np.zeros((schedule.num_nodes, schedule.shares.size))
    places[: schedule.num_workers] = values
    steps = list(schedule.steps())
    left = dependencies(schedule)
    done, waiting = set[int](), set(range(len(steps)))
    messages: dict[int, float] = {}
    arrived: dict[tuple[int, int], list[int]] = {}
    for index, step in enumerate(steps):
        if isinstance(step, Send):
            arrived.setdefault((step.dst, step.chunk), []).append(index)
    random = np.random.default_rng(seed)
    while waiting:
        ready = sorted(index for index in waiting if done.issuperset(left[index]))
        index = int(random.choice(ready))
        step = steps[index]
        if isinstance(step, Send):
            messages[index] = places[step.src, step.chunk]
        else:
            mine = [one for one in arrived[step.node, step.chunk] if one in left[index]]
            total = sum(messages[one] for one in mine)
            places[step.node, step.chunk] = total + (places[step.node, step.chunk] if step.keep else 0)
        waiting.remove(index)
        done.add(index)
    return places


@pytest.mark.parametrize("name", ["ring 5", "tree 5, 5 pieces", "HiPS 3 2", "BytePS 4 2", "halving and doubling 5"])
def test_the_sums_are_right_in_every_order_that_the_dependencies_allow(name: str) -> None:
    schedule = SCHEMES[name]
    workers, chunks = schedule.num_workers, schedule.shares.size
    values = np.arange(workers)[:, None] * 1000.0 + np.arange(chunks)[None]
    for seed in range(3):
        places = run_in_any_order(schedule, values, seed)
        assert (places[:workers] == values.sum(axis=0)).all()


def without_message(schedule: Schedule, number: int, index: int) -> Schedule:
    one = schedule.rounds[number]
    rest = np.arange(one.src.size) != index
    less = Round(src=one.src[rest], dst=one.dst[rest], chunk=one.chunk[rest], keep=one.keep)
    return dataclasses.replace(schedule, rounds=(*schedule.rounds[:number], less, *schedule.rounds[number + 1 :]))


@given(st.sampled_from(["mesh 4", "ring 5", "tree 8", "HiPS 3 2", "BytePS 4 2", "racks 3 3"]), st.data())
def test_a_schedule_that_lacks_any_message_is_refused(name: str, data: st.DataObject) -> None:
    schedule = SCHEMES[name]
    number = data.draw(st.integers(0, len(schedule.rounds) - 1))
    index = data.draw(st.integers(0, schedule.rounds[number].src.size - 1))
    with pytest.raises(ScheduleError, match=r"lacks the contribution|before it holds|counted"):
        check(without_message(schedule, number, index))


def small(*rounds: Round) -> Schedule:
    return Schedule(name="small", num_workers=2, num_nodes=3, shares=np.ones(1), rounds=rounds)


def test_a_contribution_that_is_counted_twice_is_named() -> None:
    twice = small(one_round([(0, 1, 0)], keep=True), one_round([(0, 1, 0)], keep=True))
    with pytest.raises(
        ScheduleError, match=r"round 1: worker 0's contribution to chunk 0 is counted 2 times at node 1"
    ):
        check(twice)


def test_reading_a_place_that_nobody_wrote_is_named() -> None:
    with pytest.raises(ScheduleError, match=r"round 0: node 2 sends chunk 0 to node 1 before it holds anything"):
        check(small(one_round([(2, 1, 0)], keep=True)))


def test_two_messages_that_replace_one_place_are_named() -> None:
    with pytest.raises(ScheduleError, match=r"2 messages replace chunk 0 of node 2; send one, or add them"):
        check(small(one_round([(0, 2, 0), (1, 2, 0)], keep=False)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shares": np.array([0.5, 0.4])}, "sum to 0.9"),
        ({"shares": np.array([1.0, 0.0])}, "more than nothing"),
        ({"num_workers": 4}, "4 workers among 3 nodes"),
        ({"rounds": (one_round([(0, 7, 0)], keep=True),)}, "round 0 has receiver 7; allowed are 0 to 2"),
        ({"rounds": (one_round([(1, 1, 0)], keep=True),)}, "node 1 sends to itself"),
        ({"goal": "all-gather"}, "needs the owner"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(small(), **change)  # type: ignore[arg-type]


def test_a_reduction_waits_for_messages_that_still_read_its_place() -> None:
    schedule = small(one_round([(0, 1, 0)], keep=True), one_round([(1, 0, 0)], keep=False))
    steps = list(schedule.steps())
    assert steps[:2] == [Send(src=0, dst=1, chunk=0), Reduce(node=1, chunk=0, keep=True)]
    assert dependencies(schedule) == [(), (0,), (1,), (0, 2)]


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=20), st.integers(0, 1000))
def test_chunks_cover_every_element_once(weights: list[float], elements: int) -> None:
    shares = np.array(weights) / sum(weights)
    ends = boundaries(shares, elements)
    assert ends[0] == 0
    assert ends[-1] == elements
    assert (np.diff(ends) >= 0).all()
    assert np.abs(np.diff(ends) - shares * elements).max() <= 1


def test_what_is_sent_is_received() -> None:
    for schedule in SCHEMES.values():
        assert schedule.sent().sum() == pytest.approx(schedule.received().sum())


def test_memory_of_a_ring_is_one_chunk_and_of_a_server_everybody_s() -> None:
    assert check(passed.ring(8)).most_waiting == pytest.approx(1 / 8)
    assert check(served.parameter_server(8, 1)).most_waiting == pytest.approx(8)
