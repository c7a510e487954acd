import os
import subprocess
import sys
import time
from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps.assign import (
    Shares,
    _Load,
    cluster_shares,
    hash64,
    hash_slot,
    interleave,
    paper_shares,
    place,
    programme_shares,
    slot_weights,
)
from byteps.cluster import Cluster, Machine, uniform_cluster
from byteps.programme import least
from byteps.theory import byteps_seconds, traffic

SIZES = st.tuples(st.integers(1, 40), st.integers(0, 60))
EDGES = [(1, 1), (1, 2), (2, 3), (4, 0), (4, 4)]
RATES = st.floats(0.05, 20)


def cluster_of(gpu_rates, cpu_rates):
    gpu = [Machine(name=f"gpu{i}", role="gpu", nic_bytes_per_s=rate) for i, rate in enumerate(gpu_rates)]
    cpu = [Machine(name=f"cpu{i}", role="cpu", nic_bytes_per_s=rate) for i, rate in enumerate(cpu_rates)]
    return Cluster(machines=(*gpu, *cpu))


def seconds_of(cluster, shares):
    machines = cluster.gpu_machines + cluster.cpu_machines
    return max(carried / m.nic_bytes_per_s for carried, m in zip(traffic(1, shares), machines, strict=True))


def least_seconds(gpu_rates, cpu_rates):
    """The optimum by bisection, without a solver: by T, every machine can own so much; is that M in all? (n >= 2)"""
    n = len(gpu_rates)

    def enough(seconds):
        if seconds * min(gpu_rates) < 1:
            return False
        by_gpu = [(seconds * rate - 1) / (n - 2) if n > 2 else 1 for rate in gpu_rates]
        return sum(by_gpu) + sum(seconds * rate / n for rate in cpu_rates) >= 1

    low, high = 0.0, 2 * n / min(gpu_rates)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


# The closed form


@given(SIZES)
def test_shares_sum_to_one_and_none_is_negative(nk):
    shares = paper_shares(*nk)
    assert (len(shares.gpu), len(shares.cpu)) == nk
    assert sum(shares.all) == pytest.approx(1)
    assert min(shares.all) >= 0


@pytest.mark.parametrize(
    "n, k, gpu, cpu",
    [
        (4, 0, 0.25, None),
        (4, 2, 0.1, 0.3),
        (4, 4, 0, 0.25),
        (8, 1, 0.1, 0.2),
        (8, 2, 0.0789, 0.1842),
        (8, 4, 0.0455, 0.1591),
        (8, 6, 0.02, 0.14),
        (16, 8, 0.0217, 0.0815),
        (32, 16, 0.0106, 0.0412),
        (32, 32, 0, 0.03125),
        (1, 0, 1, None),
        (1, 1, 0, 1),
        (1, 2, 0, 0.5),
        (2, 3, 0, 1 / 3),
    ],
)
def test_the_papers_shares_and_the_edges(n, k, gpu, cpu):
    shares = paper_shares(n, k)
    assert shares.gpu == pytest.approx([gpu] * n, abs=5e-5)
    assert shares.cpu == pytest.approx([cpu] * k, abs=5e-5)


def test_cpu_machines_get_everything_when_k_equals_n():
    assert paper_shares(5, 5) == Shares(gpu=(0,) * 5, cpu=(0.2,) * 5)


def test_more_cpu_machines_than_gpu_machines_are_noticed():
    assert "2 more than can help" in paper_shares(4, 6).notice
    assert paper_shares(4, 4).notice == ""


@pytest.mark.parametrize("n, k", [(0, 1), (2, -1)])
def test_impossible_clusters_are_refused(n, k):
    with pytest.raises(ValueError, match=f"n = {n}, k = {k}"):
        paper_shares(n, k)


# The linear programme


@settings(deadline=None, max_examples=60)
@given(SIZES)
def test_closed_form_and_programme_agree(nk):
    n, k = nk
    cluster = uniform_cluster(n, k, 25e6)
    programme = programme_shares(cluster)
    assert seconds_of(cluster, programme) == pytest.approx(byteps_seconds(1, n, k, 25e6), abs=1e-15)
    if n >= 3:  # k > n too, by the second objective
        assert programme.all == pytest.approx(paper_shares(n, k).all, abs=1e-9)


@pytest.mark.parametrize("n, k", EDGES)
def test_closed_form_and_programme_are_equally_fast_at_the_edges(n, k):
    cluster = uniform_cluster(n, k, 1.0)
    assert seconds_of(cluster, programme_shares(cluster)) == pytest.approx(byteps_seconds(1, n, k, 1.0))


CLUSTERS = st.tuples(st.lists(RATES, min_size=2, max_size=8), st.lists(RATES, max_size=8))


@settings(deadline=None, max_examples=100)
@given(CLUSTERS)
def test_unequal_nics_get_the_fastest_shares(rates):
    cluster = cluster_of(*rates)
    shares = cluster_shares(cluster)
    assert sum(shares.all) == pytest.approx(1)
    assert min(shares.all) >= 0
    assert seconds_of(cluster, shares) == pytest.approx(least_seconds(*rates), rel=1e-6)


@settings(deadline=None, max_examples=60)
@given(CLUSTERS, st.data())
def test_more_bandwidth_is_never_slower(rates, data):
    gpu, cpu = rates
    faster = data.draw(st.integers(0, len(gpu) + len(cpu) - 1))
    factor = data.draw(st.floats(1, 10))
    more = [rate * (factor if index == faster else 1) for index, rate in enumerate(gpu + cpu)]
    before, after = cluster_of(gpu, cpu), cluster_of(more[: len(gpu)], more[len(gpu) :])
    assert seconds_of(after, cluster_shares(after)) <= seconds_of(before, cluster_shares(before)) * (1 + 1e-6)


@settings(deadline=None, max_examples=30)
@given(CLUSTERS, st.floats(1e3, 1e10))
def test_only_the_ratios_of_the_nics_decide_the_shares(rates, factor):
    scaled = cluster_of(*([rate * factor for rate in group] for group in rates))
    assert programme_shares(scaled).all == pytest.approx(programme_shares(cluster_of(*rates)).all, abs=1e-5)


@pytest.mark.parametrize("n", [3, 4, 8])
def test_four_cpu_machines_of_a_quarter_of_the_bandwidth_count_as_one(n):
    cluster = cluster_of([1.0] * n, [0.25] * 4)
    shares = cluster_shares(cluster)
    assert seconds_of(cluster, shares) == pytest.approx(byteps_seconds(1, n, 1, 1.0))
    assert shares.gpu == pytest.approx(paper_shares(n, 1).gpu)
    assert shares.cpu == pytest.approx([paper_shares(n, 1).cpu[0] / 4] * 4)


@pytest.mark.parametrize(
    "gpu, cpu, seconds, shares",
    [
        # Everything binds: (2T - 1) + (T - 1) + (T - 1) = 1.
        ((2, 1, 1), (), 1.0, (1, 0, 0)),
        # Everything binds: 3(T - 1) + 2T/3 = 1.
        ((1, 1, 1), (2,), 12 / 11, (1 / 11, 1 / 11, 1 / 11, 8 / 11)),
        # gpu0 is forced, T = 1; the others could be done at 3/4: 2(2T' - 1) = 1.
        ((1, 2, 2), (), 1.0, (0, 0.5, 0.5)),
        # gpu0 is forced, T = 1; then gpu1, T' = 1/1.2; the rest in proportion to 4 : 8 : 8.
        ((1, 1.2, 4, 8), (8,), 1.0, (0, 0, 0.2, 0.4, 0.4)),
        # k > n: the GPU machines' own M takes T = 1; the CPU machines share by bandwidth.
        ((1, 1, 1), (1, 1, 2, 4), 1.0, (0, 0, 0, 1 / 8, 1 / 8, 1 / 4, 1 / 2)),
        # In pairs own services are free, and CPU machines only add traffic.
        ((1, 1), (5,), 1.0, (0.5, 0.5, 0)),
        # One worker made to use its servers.
        ((4,), (1, 3), 0.25, (0, 0.25, 0.75)),
        ((4,), (), 0.0, (1,)),
    ],
)
def test_cases_by_hand(gpu, cpu, seconds, shares):
    cluster = cluster_of(gpu, cpu)
    programme = programme_shares(cluster)
    assert programme.all == pytest.approx(shares, abs=1e-7)
    assert seconds_of(cluster, programme) == pytest.approx(seconds)


def test_a_machine_without_room_gets_exactly_nothing_and_so_needs_no_service():
    shares = programme_shares(cluster_of((1, 0.5, 0.6011, 1, 0.5), (1, 0.6351, 0.5, 0.9838, 0.5)))
    assert (shares.gpu[1], shares.gpu[4]) == (0, 0)


def test_no_grid_of_shares_is_faster():
    cluster = cluster_of((1.0, 0.7, 1.5), (0.9,))
    steps = 24
    grid = (
        Shares(gpu=(a / steps, b / steps, c / steps), cpu=((steps - a - b - c) / steps,))
        for a in range(steps + 1)
        for b in range(steps + 1 - a)
        for c in range(steps + 1 - a - b)
    )
    best = min(seconds_of(cluster, shares) for shares in grid)
    optimum = seconds_of(cluster, programme_shares(cluster))
    assert optimum * (1 - 1e-9) <= best <= optimum * 1.1


def test_a_machine_that_limits_all_is_noticed():
    assert "gpu0 through its own NIC" in programme_shares(cluster_of((1, 2, 2), ())).notice
    assert programme_shares(cluster_of((1, 1, 1), (2,))).notice == ""


def by_solver(load, limit, timed):
    """The same least T by HiGHS, with a variable for every machine."""
    slope, everything = np.diag(load.slope)[timed], np.ones((1, len(limit)))
    return least(slope, load.fixed[timed], load.rate[timed], limit, sums=everything).seconds


SOME_ALIKE = st.one_of(st.sampled_from([0.25, 0.5, 1.0]), RATES)


@settings(deadline=None, max_examples=100)
@given(st.lists(SOME_ALIKE, min_size=1, max_size=8), st.lists(SOME_ALIKE, max_size=8), st.data())
def test_the_least_time_is_the_solvers(gpu, cpu, data):
    n, k = len(gpu), len(cpu)
    load = _Load(
        rate=np.array(gpu + cpu),
        fixed=np.repeat([1.0, 0.0], [n, k]),
        slope=np.repeat([max(n - 2.0, 0.0), float(n)], [n, k]),
    )
    limits = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=n + k, max_size=n + k)
    limit = np.array(data.draw(limits.filter(lambda some: sum(some) > 1)))
    timed = np.array(data.draw(st.lists(st.booleans(), min_size=n + k, max_size=n + k).filter(any)))
    assert load.least_seconds(limit, timed) == pytest.approx(by_solver(load, limit, timed), rel=1e-6, abs=1e-9)


@settings(deadline=None, max_examples=60)
@given(CLUSTERS)
def test_shares_are_those_by_the_solver(rates):
    cluster = cluster_of(*rates)
    with mock.patch.object(_Load, "least_seconds", by_solver):
        solved = programme_shares(cluster)
    assert programme_shares(cluster).all == pytest.approx(solved.all, abs=1e-6)


def test_ten_thousand_unequal_machines_take_a_moment():
    cluster = cluster_of([1 + i / 7000 for i in range(7000)], [1 + i / 3000 for i in range(3000)])
    start = time.process_time()
    shares = programme_shares(cluster)
    assert time.process_time() - start < 2  # 108 s and 3 GB, by the solver
    assert seconds_of(cluster, shares) == pytest.approx(
        least_seconds(
            [m.nic_bytes_per_s for m in cluster.gpu_machines], [m.nic_bytes_per_s for m in cluster.cpu_machines]
        )
    )


def test_shares_need_no_scipy():
    code = (
        "import sys; from byteps import assign, cluster as c; assign.cluster_shares(c.uniform_cluster(4, 2, 1.0));"
        "fast = c.Machine(name='fast', role='cpu', nic_bytes_per_s=2.0);"
        "assign.cluster_shares(c.Cluster(machines=(*c.uniform_cluster(4, 2, 1.0).machines, fast)))"
    )
    subprocess.run([sys.executable, "-c", code + "; assert 'scipy' not in sys.modules"], check=True, cwd=os.getcwd())


# Placement

WEIGHTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1)), min_size=1, max_size=12).filter(any)


@given(st.lists(st.integers(1, 10**7), max_size=300), WEIGHTS)
def test_every_service_is_within_one_partition_of_its_share(nbytes, weights):
    owned = dict.fromkeys(range(len(weights)), 0)
    for size, owner in zip(nbytes, place(nbytes, weights), strict=True):
        owned[owner] += size
    for owner, weight in enumerate(weights):
        assert abs(owned[owner] - weight / sum(weights) * sum(nbytes)) <= max(nbytes, default=0) + 1e-3
        assert weight > 0 or owned[owner] == 0


@given(SIZES, st.integers(1, 2000))
def test_every_prefix_of_equal_partitions_is_spread_by_share(nk, num_partitions):
    shares = paper_shares(*nk).all
    owners = place([65536] * num_partitions, shares)
    counts, seen = Counter(owners), Counter()
    for length, owner in enumerate(owners, start=1):
        seen[owner] += 1
        fair = length * counts[owner] / num_partitions
        assert abs(seen[owner] - fair) <= 1 + 1e-9


@given(st.lists(st.sampled_from([4, 1000, 65536]), min_size=1, max_size=100), SIZES, st.randoms())
def test_loads_do_not_depend_on_the_order_of_the_batch(nbytes, nk, random):
    shares = paper_shares(*nk).all
    shuffled = random.sample(nbytes, len(nbytes))
    pairs = Counter(zip(nbytes, place(nbytes, shares), strict=True))
    assert Counter(zip(shuffled, place(shuffled, shares), strict=True)) == pairs


def test_interleaving_is_even():
    assert interleave({0: 1, 1: 2, 2: 4}) == [2, 1, 2, 0, 2, 1, 2]


def test_owners_of_equal_share_do_not_bunch_up_around_a_larger_one():
    # Otherwise every worker sends two partitions in a row to the large one, whose NIC then queues.
    assert interleave({0: 1, 1: 1, 2: 1, 3: 1, 4: 2}) == [4, 0, 1, 4, 2, 3]


def test_golden_placement():
    nbytes = [65536] * 20 + [100, 40000, 65536, 4, 65536, 4]
    assert place(nbytes, paper_shares(4, 2).all) == [
        *(4, 5, 0, 1, 4, 5, 2, 4, 5, 3, 4, 5, 0, 4, 5, 1, 4, 5, 2, 4),
        *(1, 0, 5, 2, 3, 3),
    ]


def test_placement_and_hash_do_not_depend_on_the_hash_seed():
    code = (
        "from byteps.assign import *; s = paper_shares(4, 2).all;"
        "print(place([i % 7 + 1 for i in range(50)], s), [hash_slot(i, 4, 2) for i in range(50)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(outputs) == 1


def test_nothing_is_placed_where_there_is_nothing():
    assert place([], [0.5, 0.5]) == []


def test_a_service_without_a_share_gets_not_even_empty_partitions():
    assert place([0, 0, 8], [0.0, 1.0]) == [1, 1, 1]


@pytest.mark.parametrize("shares", [(), (0.0, 0.0), (1.5, -0.5)])
def test_impossible_shares_are_refused(shares):
    with pytest.raises(ValueError, match="shares are"):
        place([1], shares)


def test_a_hundred_thousand_partitions_are_placed_in_a_second():
    start = time.process_time()  # whatever else the machine does
    place([index % 5000 + 4 for index in range(100_000)], paper_shares(32, 16).all)
    assert time.process_time() - start < 1


# The hash


def test_golden_hashes():
    # The first two are known answers of SplitMix64 for the seeds 0 and 1234567.
    known = {0: 0xE220A8397B1DCDAF, 1234567: 6457827717110365317, 1: 0x910A2DEC89025CC1, 2**64 - 1: 0xE4D971771B652C20}
    assert {key: hash64(key) for key in known} == known


@given(SIZES)
def test_the_slots_are_the_papers(nk):
    n, k = nk
    if n > 1 and k <= n:
        assert slot_weights(n, k) == [n - k] * n + [2 * (n - 1)] * k
        assert sum(slot_weights(n, k)) == n * n + k * n - 2 * k


@pytest.mark.parametrize("n, k", [*EDGES, (4, 2), (8, 4), (16, 8)])
def test_the_hash_approximates_the_shares(n, k):
    num_keys = 20_000
    counts = Counter(hash_slot(key, n, k) for key in range(num_keys))
    for owner, share in enumerate(paper_shares(n, k).all):
        spread = (num_keys * share * (1 - share)) ** 0.5
        assert abs(counts[owner] - num_keys * share) <= 4 * spread


def test_golden_owners_by_hash():
    assert [hash_slot(key, 4, 2) for key in range(20)] == [5, 2, 4, 4, 5, 5, 4, 3, 1, 4, 3, 4, 1, 5, 5, 0, 5, 5, 4, 5]
