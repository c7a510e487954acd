"""Simulations worked out by hand, odd ones, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from byteps.flowsim import Flow, simulate


def one(nbytes: float, *links: str, **rest) -> Flow:
    return Flow(loads=dict.fromkeys(links, 1.0), nbytes=nbytes, **rest)


def test_two_flows_into_one_link_share_it_by_weight():
    outcome = simulate([one(30, "in", weight=3.0), one(30, "in")], {"in": 10.0})
    assert outcome.end == pytest.approx([4.0, 6.0])  # 7.5 and 2.5 bytes/s, then 10
    assert outcome.carried == {"in": 60.0}
    assert outcome.bottleneck == "in"


def test_a_parking_lot_gives_the_long_way_no_more_than_its_share_of_each_link():
    flows = [one(40, "a", "b", "c"), one(40, "a"), one(40, "b"), one(60, "c")]
    outcome = simulate(flows, {"a": 10.0, "b": 16.0, "c": 20.0})
    # 5, 5, 11, 15 bytes/s until flow 2 ends at 40/11 and flow 3 at 4; then 5 and 5 until 8
    assert outcome.end == pytest.approx([8.0, 8.0, 40 / 11, 4.0])


def test_what_a_flow_cannot_use_goes_to_others():
    flows = [one(4, "slow", "shared"), one(50, "shared"), one(24, "shared")]
    outcome = simulate(flows, {"slow": 1.0, "shared": 13.0})
    assert outcome.end == pytest.approx([4.0, 6.0, 4.0])  # 1, 6 and 6 bytes/s until 4, then 13


def test_a_load_of_two_takes_a_link_twice():
    outcome = simulate([Flow(loads={"a": 2.0, "b": 1.0}, nbytes=10), one(10, "a")], {"a": 30.0, "b": 100.0})
    assert outcome.end == pytest.approx([1.0, 1.0])  # both at 10 bytes/s: 20 + 10 on link a
    assert outcome.carried == {"a": 30.0, "b": 10.0}


def test_start_up_comes_once_the_turn_has_come_and_keeps_it():
    flows = [one(10, "a", queue="q", startup_seconds=2.0), one(10, "a", queue="q", startup_seconds=2.0)]
    outcome = simulate(flows, {"a": 10.0})
    assert outcome.start == pytest.approx([0.0, 3.0])
    assert outcome.end == pytest.approx([3.0, 6.0])


def test_start_up_and_release_overlap_what_others_move():
    flows = [one(20, "a"), one(10, "a", startup_seconds=1.0), one(10, "a", release_seconds=1.0)]
    outcome = simulate(flows, {"a": 10.0})
    assert outcome.start == pytest.approx([0.0, 0.0, 1.0])
    assert outcome.end == pytest.approx([4.0, 4.0, 4.0])


def test_a_queue_takes_the_smallest_order_of_those_that_could_start_then_the_smallest_index():
    flows = [
        one(10, "a", queue="q", order=5.0),
        one(10, "a", queue="q", order=1.0, release_seconds=0.5),
        one(10, "a", queue="q", order=4.0),
        one(10, "a", queue="q", order=4.0),
        one(10, "a", queue="q", order=0.0, after=(2,)),
    ]
    assert simulate(flows, {"a": 10.0}).start == pytest.approx([4.0, 2.0, 0.0, 3.0, 1.0])


def test_a_queue_chooses_once_all_that_becomes_possible_at_the_moment_is_known():
    """Flow 0 ends; flow 2 could start at once, flow 4 by way of a flow of no bytes, and comes first."""
    flows = [one(10, "a", queue="q"), Flow(loads={}, nbytes=0, after=(0,))]
    flows += [one(10, "a", queue="q", order=2.0), Flow(loads={}, nbytes=0, after=(1,))]
    flows += [one(10, "a", queue="q", order=1.0, after=(3,))]
    assert simulate(flows, {"a": 10.0}).start == pytest.approx([0.0, 1.0, 2.0, 1.0, 1.0])


def test_a_queue_starts_flows_while_less_than_its_credit_is_in_flight():
    flows = [one(10, "a", queue="q") for _ in range(5)]
    outcome = simulate(flows, {"a": 10.0}, {"q": 15.0})
    assert outcome.start == pytest.approx([0.0, 0.0, 2.0, 2.0, 4.0])  # 10 < 15, then 20
    assert outcome.end == pytest.approx([2.0, 2.0, 4.0, 4.0, 5.0])


def test_a_flow_larger_than_the_credit_goes_alone():
    flows = [one(100, "a", queue="q"), one(10, "a", queue="q")]
    assert simulate(flows, {"a": 10.0}, {"q": 20.0}).start == pytest.approx([0.0, 10.0])


def test_credit_comes_back_at_the_end_of_another_flow():
    flows = [
        one(10, "out", queue="q", until=1),
        one(10, "in", after=(0,)),
        one(10, "out", queue="q", until=3),
        one(10, "in", after=(2,)),
    ]
    links = {"out": 10.0, "in": 10.0}
    assert simulate(flows, links).start == pytest.approx([0.0, 1.0, 2.0, 3.0])
    assert simulate(flows, links, {"q": 15.0}).end == pytest.approx([2.0, 4.0, 2.0, 4.0])


def test_a_flow_whose_credit_would_come_back_before_it_starts_takes_none():
    flows = [one(10, "a"), one(30, "b", queue="q", after=(0,), until=0), one(30, "b", queue="q", after=(0,))]
    assert simulate(flows, {"a": 10.0, "b": 10.0}).start == pytest.approx([0.0, 1.0, 1.0])


def test_what_loads_no_link_that_is_limited_moves_at_once():
    flows = [Flow(loads={}, nbytes=9, startup_seconds=1.0), one(9, "free", after=(0,)), one(0, "a", after=(1,))]
    outcome = simulate(flows, {"a": 1.0, "free": float("inf")})
    assert outcome.end.tolist() == [1.0, 1.0, 1.0]
    assert outcome.carried == {"a": 0.0, "free": 9.0}
    assert outcome.bottleneck == "free"


def test_nothing_takes_no_time():
    outcome = simulate([], {"a": 1.0})
    assert (outcome.seconds, outcome.carried, outcome.bottleneck) == (0.0, {"a": 0.0}, "")
    assert simulate([], {}).end.shape == (0,)


def test_thousands_of_ties_end_at_one_moment():
    """All to all, in thirds whose sums round differently, then all again."""
    n = 50
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    flows = [one(1 / 3, f"out{a}", f"in{b}") for a, b in pairs]
    flows += [replace(flow, after=(index,), nbytes=0.1) for index, flow in enumerate(flows)]
    outcome = simulate(flows, {f"{way}{i}": 0.1 + 0.2 for way in ("out", "in") for i in range(n)})
    assert len(set(outcome.end)) == 2
    assert outcome.seconds == pytest.approx((n - 1) * (1 / 3 + 0.1) / 0.3)


def test_rounding_does_not_split_what_happens_at_the_same_time():
    """Thirty tenths are not quite three."""
    steps = [one(0.1, "a", after=(index - 1,) if index else ()) for index in range(30)]
    flows = [*steps, one(3.0, "b"), one(1.0, "c", queue="q", after=(29,), order=1.0)]
    flows += [one(1.0, "c", queue="q", after=(30,), order=0.0)]
    outcome = simulate(flows, {"a": 1.0, "b": 1.0, "c": 1.0})
    assert outcome.end[29] == outcome.end[30]
    assert outcome.start[32] < outcome.start[31]


@pytest.mark.parametrize(
    "flow, text",
    [
        (one(1, "x"), r"flow 0 loads link 'x'; the 2 links are a, dead"),
        (one(1, "dead"), r"link 'dead', which flow 0 needs, has 0\.0 bytes/s; use more than 1e-100"),
        (one(-1, "a"), r"nbytes of flow 0 is -1"),
        (one(float("nan"), "a"), r"nbytes of flow 0 is nan"),
        (one(1, "a", weight=0.0), r"weight of flow 0 is 0\.0; use a number above 1e-100"),
        (one(1, "a", startup_seconds=-1.0), r"startup_seconds of flow 0 is -1\.0"),
        (one(1, "a", release_seconds=float("inf")), r"release_seconds of flow 0 is inf"),
        (Flow(loads={"a": -1.0}, nbytes=1), r"load of flow 0 on link 'a' is -1\.0"),
        (one(1, "a", after=(1,)), r"flow 0 waits for flow 1; there are flows 0 to 0"),
        (one(1, "a", until=-1), r"flow 0 waits for flow -1"),
        (one(1, "a", after=(0,)), r"1 of 1 flows can never start: flow 0 waits for the end of flow 0"),
    ],
)
def test_what_cannot_be_simulated_is_said(flow, text):
    with pytest.raises(ValueError, match=text):
        simulate([flow], {"a": 1.0, "dead": 0.0})


def test_a_dead_link_that_nothing_needs_does_not_matter():
    assert simulate([one(1, "a"), Flow(loads={"dead": 0.0}, nbytes=1)], {"a": 1.0, "dead": 0.0}).seconds == 1.0


def test_a_negative_credit_is_refused():
    with pytest.raises(ValueError, match=r"credit of queue 'q' is -1"):
        simulate([one(1, "a", queue="q")], {"a": 1.0}, {"q": -1})


def test_a_cycle_names_the_first_flows_in_it():
    flows = [one(1, "a"), *(one(1, "a", after=((index + 1) % 7 + 1,)) for index in range(7))]
    with pytest.raises(ValueError, match=r"7 of 8 flows can never start: flow 1 waits for the end of flow 2; .*\.\.\."):
        simulate(flows, {"a": 1.0})


def test_credit_that_never_comes_back_is_named():
    flows = [one(1, "a", queue="q", until=2), one(1, "a", queue="q", order=1.0), one(1, "a", after=(1,))]
    with pytest.raises(
        ValueError, match=r"flow 1 waits in queue 'q' for the credit of flow 0, until flow 2 ends; flow 2"
    ):
        simulate(flows, {"a": 1.0})


def test_results_do_not_depend_on_how_numbers_are_typed():
    whole = simulate([Flow(loads={"a": 1}, nbytes=3, weight=2)], {"a": 3})
    assert whole.end.dtype == np.float64
    assert whole.seconds == 1.0


@pytest.mark.timeout(20)
@pytest.mark.parametrize("nbytes", [5e-324, 1e-320, 1e-312, 1e-300, 1e-30])
def test_flows_of_next_to_nothing_end(nbytes):
    """The time that they take rounds to 0, or to a few of the smallest numbers there are."""
    flows = [Flow(loads={"a": 1.0}, nbytes=nbytes, queue="q") for _ in range(3)]
    flows += [Flow(loads={"a": 1.0}, nbytes=1e9, after=(2,)), Flow(loads={"a": 1.0}, nbytes=nbytes, after=(3,))]
    assert simulate(flows, {"a": 1e9}).seconds == pytest.approx(1.0)


def test_links_so_slow_that_times_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match=r"link 'a', which flow 0 needs, has 1e-320 bytes/s; use more than 1e-100"):
        simulate([Flow(loads={"a": 1.0}, nbytes=1.0)], {"a": 1e-320})
