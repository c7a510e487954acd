import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps import theory
from byteps.assign import paper_shares, place

SIZES = st.tuples(st.integers(2, 40), st.integers(0, 60))

# n, k, time in M/B, gamma_a, gamma_p, goodput at 90 Gbit/s
TABLE = [
    (4, 0, 1.5000, 1.000, math.inf, 60.00),
    (4, 2, 1.2000, 1.250, 1.667, 75.00),
    (4, 4, 1.0000, 1.500, 1.000, 90.00),
    (8, 0, 1.7500, 1.000, math.inf, 51.43),
    (8, 1, 1.6000, 1.094, 5.000, 56.25),
    (8, 2, 1.4737, 1.188, 2.714, 61.07),
    (8, 4, 1.2727, 1.375, 1.571, 70.71),
    (8, 6, 1.1200, 1.563, 1.190, 80.36),
    (8, 8, 1.0000, 1.750, 1.000, 90.00),
    (16, 8, 1.3043, 1.438, 1.533, 69.00),
    (32, 16, 1.3191, 1.469, 1.516, 68.23),
    (32, 32, 1.0000, 1.938, 1.000, 90.00),
]


@given(SIZES, st.floats(1, 1e12), st.floats(1, 1e12))
def test_the_time_is_that_of_the_busiest_nic(nk, nbytes, rate):
    busiest = max(theory.traffic(nbytes, paper_shares(*nk)))
    assert theory.byteps_seconds(nbytes, *nk, rate) == pytest.approx(busiest / rate)


@pytest.mark.parametrize("n, k", [(1, 0), (1, 1), (1, 2), (2, 3), (4, 0), (4, 4)])
def test_the_time_is_that_of_the_busiest_nic_at_the_edges(n, k):
    assert theory.byteps_seconds(6, n, k, 2) == pytest.approx(max(theory.traffic(6, paper_shares(n, k))) / 2)


@given(SIZES)
def test_every_nic_is_busy_until_the_end(nk):
    n, k = nk
    if k <= n:
        assert theory.traffic(1, paper_shares(n, k)) == pytest.approx([theory.byteps_seconds(1, n, k, 1)] * (n + k))


@given(SIZES)
def test_byteps_is_never_slower_than_its_opponents_nor_with_one_more_cpu_machine(nk):
    n, k = nk
    seconds = theory.byteps_seconds(1, n, k, 1) * (1 - 1e-12)
    assert seconds <= theory.ring_seconds(1, n, 1)
    assert seconds <= theory.colocated_ps_seconds(1, n, 1)
    assert seconds <= theory.noncolocated_ps_seconds(1, n, k, 1)
    assert theory.byteps_seconds(1, n, k + 1, 1) * (1 - 1e-12) <= theory.byteps_seconds(1, n, k, 1)


@given(st.integers(2, 40))
def test_byteps_is_the_ring_without_cpu_machines_and_the_parameter_server_with_n(n):
    assert theory.byteps_seconds(1, n, 0, 1) == pytest.approx(theory.ring_seconds(1, n, 1))
    assert theory.byteps_seconds(1, n, n, 1) == pytest.approx(theory.noncolocated_ps_seconds(1, n, n, 1))


@pytest.mark.parametrize("n, k, seconds, gamma_a, gamma_p, goodput", TABLE)
def test_the_papers_numbers(n, k, seconds, gamma_a, gamma_p, goodput):
    assert theory.byteps_seconds(1, n, k, 1) == pytest.approx(seconds, abs=5e-5)
    assert theory.gamma_a(n, k) == pytest.approx(gamma_a, abs=6e-4)
    assert theory.gamma_p(n, k) == pytest.approx(gamma_p, abs=6e-4)
    assert theory.goodput(n, k, 90) == pytest.approx(goodput, abs=5e-3)


def test_tcp_leaves_95_6_percent_of_ethernet_for_payload():
    assert pytest.approx(0.9564, abs=5e-5) == theory.TCP_PAYLOAD_FRACTION


def test_figure_12_is_a_line_in_k():
    assert [theory.goodput(8, k, 90) for k in range(9)] == pytest.approx([360 / 7 + k * 135 / 28 for k in range(9)])


def test_one_machine_takes_no_time_unless_it_uses_servers():
    assert theory.byteps_seconds(100, 1, 0, 10) == 0
    assert theory.goodput(1, 0, 10) == math.inf
    assert theory.byteps_seconds(100, 1, 2, 10) == 10
    with pytest.raises(ValueError, match="n = 1"):
        theory.gamma_a(1, 0)


@given(SIZES, st.lists(st.integers(1, 10**6), min_size=1, max_size=200))
def test_placement_sends_what_its_shares_say_within_n_partitions(nk, nbytes):
    n, k = nk
    shares = paper_shares(n, k)
    owned = [0] * (n + k)
    for size, owner in zip(nbytes, place(nbytes, shares.all), strict=True):
        owned[owner] += size
    sent = theory.traffic_of_placement(owned, n, k)
    assert sent == pytest.approx(theory.traffic(sum(nbytes), shares), abs=n * max(nbytes) + 1)
    assert sum(sent) == 2 * n * sum(nbytes) - 2 * sum(owned[:n])  # a push and a pull for each worker, but to itself


def test_traffic_of_a_placement_needs_every_owner():
    with pytest.raises(ValueError, match=r"3 entries.*need 4"):
        theory.traffic_of_placement([1, 2, 3], 2, 2)
