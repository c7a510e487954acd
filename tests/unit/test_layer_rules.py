"""Rules per layer: Poseidon's choice and MG-WFBP's groups."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.merge import AlphaBeta, Gradient, exposed_seconds, merged
from byteps.poseidon import Layer, broadcast_factors, choose, factor_elements, server_elements
from byteps.symbolic import check

FC6 = Layer(rows=4096, columns=25088)  # of VGG-16


def test_small_batches_of_large_layers_go_by_factors_and_convolutions_never() -> None:
    layers = [FC6, Layer(rows=64 * 3 * 3 * 3), Layer(rows=10, columns=10)]
    assert choose(layers, workers=8, servers=8, batch=32) == ["factors", "server", "server"]


def test_the_choice_turns_where_both_cost_the_same() -> None:
    at = next(batch for batch in itertools.count(1) if factor_elements(FC6, 8, batch) > server_elements(FC6, 8, 8))
    assert choose([FC6], workers=8, servers=8, batch=at) == ["server"]
    assert choose([FC6], workers=8, servers=8, batch=at - 1) == ["factors"]
    with pytest.raises(ValueError, match="batch 0"):
        choose([FC6], workers=8, servers=8, batch=0)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_everybody_gets_everybody_s_factors(workers: int) -> None:
    check(broadcast_factors(workers))


gradients = st.lists(st.tuples(st.floats(0, 0.01), st.sampled_from([1e3, 1e5, 1e6])), min_size=1, max_size=9)
costs = st.builds(
    AlphaBeta,
    startup_seconds=st.sampled_from([0.0, 1e-4, 1e-3, 1e-2]),
    seconds_per_byte=st.sampled_from([1e-9, 1e-8, 1e-7]),
)


def ready(gaps: list[tuple[float, float]]) -> list[Gradient]:
    moments = itertools.accumulate(gap for gap, _ in gaps)
    return [Gradient(nbytes=nbytes, ready_seconds=at) for at, (_, nbytes) in zip(moments, gaps, strict=True)]


@given(gradients, costs)
def test_merging_is_never_slower_than_layer_by_layer_nor_than_all_at_once(
    gaps: list[tuple[float, float]], cost: AlphaBeta
) -> None:
    found = ready(gaps)
    groups = merged(found, cost)
    assert list(itertools.chain.from_iterable(groups)) == list(range(len(found)))
    single = [[index] for index in range(len(found))]
    for others in (single, [list(range(len(found)))]):
        assert exposed_seconds(found, groups, cost) <= exposed_seconds(found, others, cost) + 1e-12


def test_without_a_startup_only_what_waits_anyway_is_merged() -> None:
    found = [Gradient(nbytes=1e6, ready_seconds=at) for at in (0.0, 0.001, 0.002, 1.0)]
    assert merged(found, AlphaBeta(startup_seconds=0.0, seconds_per_byte=1e-8)) == [[0], [1, 2], [3]]


def test_a_large_startup_merges_everything() -> None:
    found = [Gradient(nbytes=1e6, ready_seconds=at) for at in (0.0, 0.1, 0.2)]
    assert merged(found, AlphaBeta(startup_seconds=1.0, seconds_per_byte=1e-8)) == [[0, 1, 2]]
    with pytest.raises(ValueError, match="gradient 1 is ready before gradient 0"):
        merged(list(reversed(found)), AlphaBeta(startup_seconds=0.0, seconds_per_byte=0.0))
