"""The simulator's laws, an oracle in exact arithmetic, and the schemes whose times are known."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps import theory
from byteps.flowsim import Flow, simulate

LINKS = ("a", "b", "c", "d")
RATES = st.fixed_dictionaries(dict.fromkeys(LINKS, st.integers(1, 6).map(float)))
LOADS = st.dictionaries(st.sampled_from(LINKS), st.sampled_from([0.5, 1.0, 2.0]), max_size=3)
TIMES = st.sampled_from([0.0, 0.0, 0.0, 1.0, 2.5])


@st.composite
def workloads(draw, timed: bool = True) -> list[Flow]:
    """Flows of few sizes and rates, so that many things happen at once; no two of a queue have the same order."""
    flows: list[Flow] = []
    count = draw(st.integers(0, 9))
    orders = draw(st.permutations(range(count)))
    for index in range(count):
        earlier = st.integers(0, max(index - 1, 0))
        flows.append(
            Flow(
                loads=draw(LOADS),
                nbytes=float(draw(st.integers(0, 4))),
                weight=draw(st.sampled_from([1.0, 1.0, 3.0])),
                startup_seconds=draw(TIMES) if timed else 0.0,
                release_seconds=draw(TIMES) if timed else 0.0,
                after=tuple(draw(st.sets(earlier, max_size=2))) if index else (),
                queue=draw(st.sampled_from(["", "", "p", "q"])),
                order=float(orders[index]),
            )
        )
    return flows


def with_rates(links: dict[str, float], factor: float) -> dict[str, float]:
    return {name: rate * factor for name, rate in links.items()}


@given(workloads(timed=False), RATES, st.sampled_from([0.01, 0.3, 7.0, 1e9]))
def test_links_so_many_times_as_fast_take_so_much_less_time(flows, links, factor):
    once, again = simulate(flows, links), simulate(flows, with_rates(links, factor))
    assert again.end * factor == pytest.approx(once.end)
    assert again.start * factor == pytest.approx(once.start)
    assert again.bottleneck == once.bottleneck


@given(workloads(), RATES, st.data(), st.permutations(LINKS), st.integers(0, 3))
def test_numbers_of_flows_and_names_and_order_of_links_mean_nothing(flows, links, data, names, credit):
    order = data.draw(st.permutations(range(len(flows))))  # new -> old
    new = {old: index for index, old in enumerate(order)}
    name = dict(zip(LINKS, names, strict=True))
    relabelled = [
        replace(
            flows[old],
            loads={name[link]: load for link, load in reversed(flows[old].loads.items())},
            after=tuple(new[earlier] for earlier in flows[old].after),
            queue=flows[old].queue and f"another {flows[old].queue}",
        )
        for old in order
    ]
    expected = simulate(flows, links, {"p": credit})
    outcome = simulate(relabelled, {name[link]: links[link] for link in names}, {"another p": credit})
    assert outcome.start == pytest.approx(expected.start[order])
    assert outcome.end == pytest.approx(expected.end[order])
    assert [outcome.carried[name[link]] for link in LINKS] == pytest.approx([expected.carried[link] for link in LINKS])


@given(workloads(), RATES)
def test_every_byte_is_carried_and_no_link_carries_more_than_it_can_in_any_while(flows, links):
    outcome = simulate(flows, links)
    for link, rate in links.items():
        nbytes = [flow.loads.get(link, 0.0) * flow.nbytes for flow in flows]
        assert outcome.carried[link] == pytest.approx(sum(nbytes))
        spans = list(zip(outcome.start, outcome.end, nbytes, strict=True))
        for begin in outcome.start:
            for finish in outcome.end:
                inside = sum(part for start, end, part in spans if begin <= start and end <= finish)
                assert inside <= rate * max(finish - begin, 0.0) * (1 + 1e-6) + 1e-9
    busy = {link: nbytes / links[link] for link, nbytes in outcome.carried.items()}
    assert busy.get(outcome.bottleneck, 0.0) == pytest.approx(max(busy.values()))
    assert outcome.seconds == pytest.approx(max(outcome.end, default=0.0))


@given(workloads(), RATES, st.integers(0, 3))
def test_a_flow_starts_after_all_it_waits_for_and_takes_at_least_as_long_as_alone(flows, links, credit):
    outcome = simulate(flows, links, {"p": credit})
    for index, flow in enumerate(flows):
        alone = max((load * flow.nbytes / links[link] for link, load in flow.loads.items()), default=0.0)
        spent = outcome.end[index] - outcome.start[index]
        assert spent >= (flow.startup_seconds + alone) * (1 - 1e-6) - 1e-9
        assert outcome.start[index] >= max((flow.release_seconds, *(outcome.end[i] for i in flow.after)))
    turns = sorted((outcome.start[i], outcome.end[i]) for i, flow in enumerate(flows) if flow.queue == "q")
    assert all(end <= start for (_, end), (start, _) in pairwise(turns))


@given(LOADS, st.integers(0, 4), st.sampled_from([0.1, 1.0, 9.0]), TIMES, RATES, st.floats(1.0, 9.0))
def test_a_flow_alone_takes_its_slowest_link_s_time_and_is_never_slower_with_more_bandwidth(
    loads, nbytes, weight, startup, links, factor
):
    flow = Flow(loads=loads, nbytes=nbytes, weight=weight, startup_seconds=startup)
    alone = simulate([flow], links).seconds
    slowest = max((load * nbytes / links[link] for link, load in loads.items()), default=0.0)
    assert alone == pytest.approx(startup + slowest)
    for link in LINKS:
        assert simulate([flow], links | {link: links[link] * factor}).seconds <= alone


def exact_ends(flows: Sequence[Flow], links: dict[str, float]) -> list[Fraction]:
    """When flows end that all move from the start: filling one link at a time, in fractions."""
    left = {i: Fraction(flow.nbytes) for i, flow in enumerate(flows)}
    now, ends = Fraction(0), [Fraction(0)] * len(flows)
    claims = [{link: Fraction(load * flow.weight) for link, load in flow.loads.items()} for flow in flows]
    moving = {i for i in left if left[i] and claims[i]}
    while moving:
        level: dict[int, Fraction] = {}
        while open_ := moving - level.keys():
            fill = {}
            for link, rate in links.items():
                if claimed := sum(claims[i].get(link, 0) for i in open_):
                    used = sum(claims[i].get(link, 0) * level[i] for i in level)
                    fill[link] = (Fraction(rate) - used) / claimed
            first = min(fill, key=fill.__getitem__)
            level |= {i: fill[first] for i in open_ if first in claims[i]}
        rate_of = {i: level[i] * Fraction(flows[i].weight) for i in moving}
        step = min(left[i] / rate_of[i] for i in moving)
        now += step
        for i in list(moving):
            left[i] -= rate_of[i] * step
            if not left[i]:
                ends[i] = now
                moving.remove(i)
    return ends


@settings(max_examples=200)
@given(workloads(timed=False), RATES)
def test_rates_are_those_of_filling_one_link_at_a_time_in_exact_arithmetic(flows, links):
    flows = [replace(flow, after=(), queue="") for flow in flows]
    assert simulate(flows, links).end == pytest.approx([float(end) for end in exact_ends(flows, links)], rel=1e-9)


@given(st.lists(st.tuples(LOADS.filter(bool), st.floats(-15, 15)), min_size=1, max_size=6), RATES)
def test_weights_of_any_ratio_leave_every_flow_something(kinds, links):
    flows = [Flow(loads=loads, nbytes=1.0, weight=10**exponent) for loads, exponent in kinds]
    outcome = simulate(flows, links)
    busiest = [max(load / links[link] for link, load in flow.loads.items()) for flow in flows]
    assert (outcome.end >= np.array(busiest) * (1 - 1e-6)).all()
    assert outcome.seconds <= sum(busiest) * (1 + 1e-6)


def one(nbytes: float, *links: str, **rest) -> Flow:
    return Flow(loads=dict.fromkeys(links, 1.0), nbytes=nbytes, **rest)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_ring_takes_its_time(n):
    flows = []
    for step in range(2 * (n - 1)):
        for machine in range(n):
            after = ((step - 1) * n + (machine - 1) % n,) if step else ()
            flows.append(one(1000 / n, f"{machine}.out", f"{(machine + 1) % n}.in", after=after))
    links = {f"{machine}.{way}": 25.0 for machine in range(n) for way in ("out", "in")}
    outcome = simulate(flows, links)
    assert outcome.seconds == pytest.approx(theory.ring_seconds(1000, n, 25.0), rel=1e-6)
    assert list(outcome.carried.values()) == pytest.approx([2 * (n - 1) * 1000 / n] * 2 * n)


@pytest.mark.parametrize("n, k", [(4, 1), (4, 4), (8, 3), (3, 8)])
def test_parameter_servers_take_their_time(n, k):
    pairs = [(f"w{worker}", f"s{server}") for worker in range(n) for server in range(k)]
    pushes = [one(1000 / k, f"{worker}.out", f"{server}.in") for worker, server in pairs]
    pulls = [one(1000 / k, f"{server}.out", f"{worker}.in") for worker, server in pairs]
    machines = {machine for pair in pairs for machine in pair}
    links = {f"{machine}.{way}": 25.0 for machine in machines for way in ("out", "in")}
    expected = theory.noncolocated_ps_seconds(1000, n, k, 25.0)
    assert simulate(pushes + pulls, links).seconds == pytest.approx(expected, rel=1e-6)
    later = [replace(pull, after=tuple(range(len(pushes)))) for pull in pulls]
    assert simulate(pushes + later, links).seconds == pytest.approx(2 * expected, rel=1e-6)
