"""BytePS as flows: against the closed form, the counts of traffic, and the runtime's own queue."""

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps import theory
from byteps.assign import cluster_shares, hash_slot, paper_shares
from byteps.cluster import Cluster, Machine, uniform_cluster
from byteps.lowering import (
    Discipline,
    Partition,
    Plan,
    Tensor,
    cut,
    fair_share,
    lower,
    ordered,
    ordered_weighted,
    rounds,
    service_windows,
)
from byteps.pipeline import Pipeline, Task, default_credit_bytes
from byteps.wire import Op, TensorEntry, TensorSpec, make_key
from experiments.workloads import read, with_times

B = 7e8
M = 4_096_000
PARTITION = 16_000


def synchronisation(n: int, k: int, discipline: Discipline, partition_bytes: int = PARTITION, nbytes: int = M) -> Plan:
    shares = paper_shares(n, k).all
    return lower(uniform_cluster(n, k, B), cut([Tensor(nbytes=nbytes)], shares, partition_bytes), discipline)


def slowdown(n: int, k: int, discipline: Discipline, partition_bytes: int = PARTITION) -> float:
    """Beyond the closed form."""
    return synchronisation(n, k, discipline, partition_bytes).simulate().seconds / theory.byteps_seconds(M, n, k, B)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(0, 9), st.integers(1, 12))
def test_rounds_end_one_round_after_the_closed_form_and_at_it_without_cpu_machines(n, k, count):
    partitions = rounds(M, paper_shares(n, k).all, count)
    seconds = lower(uniform_cluster(n, k, B), partitions, ordered_weighted(math.inf)).simulate().seconds
    expected = theory.byteps_seconds(M, n, k, B) * (1 + (1 / count if k else 0))
    assert seconds == pytest.approx(expected, rel=1e-6)


def test_rounds_give_every_service_its_share():
    partitions = rounds(600.0, (0.5, 0.0, 0.25, 0.25), 3)
    assert [(each.owner, each.nbytes) for each in partitions] == [(0, 100.0), (2, 50.0), (3, 50.0)] * 3


@pytest.mark.parametrize("n, k", [(2, 1), (4, 2), (8, 1), (8, 4), (8, 8)])
def test_whole_partitions_come_near_the_closed_form_as_they_shrink(n, k):
    sizes = [M // count for count in (64, 256, 1024)]
    found = [slowdown(n, k, ordered_weighted(28 * size), size) for size in sizes]
    assert found[0] > found[1] - 0.005
    assert found[1] > found[2] - 0.005
    assert 1 < found[2] < 1.015


def test_without_cpu_machines_whole_partitions_lose_nothing():
    assert slowdown(8, 0, ordered(28 * PARTITION)) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("k", [2, 4, 6])
def test_disciplines_rank_as_the_fluid_model_and_the_emulation_say(k):
    credit = 28 * PARTITION
    disciplines = (fair_share, service_windows(credit), ordered(credit), ordered_weighted(credit))
    all_at_once, windows, one_credit, weighted = (slowdown(8, k, discipline) for discipline in disciplines)
    assert 1.95 < all_at_once < 2.25
    assert 1.1 < windows < 1.3
    assert 1.0 < weighted < one_credit <= windows + 0.001


def test_windows_of_services_are_in_proportion_to_their_shares():
    plan = synchronisation(4, 2, service_windows(1e6))
    assert list(plan.credits.values()) == pytest.approx([share * 1e6 for share in paper_shares(4, 2).all], rel=0.03)
    assert len({flow.queue for flow in plan.flows if flow.queue in plan.credits}) == 6


def test_fair_sharing_costs_the_overlap_of_pushes_and_pulls():
    assert slowdown(8, 8, fair_share) == pytest.approx(2)


@pytest.mark.parametrize("discipline", [fair_share, service_windows(3e5), ordered(3e5), ordered_weighted(3e5)])
@pytest.mark.parametrize("n, k", [(1, 1), (2, 1), (4, 0), (4, 3), (5, 5)])
def test_every_nic_carries_the_bytes_that_placement_counts(n, k, discipline):
    partitions = cut([Tensor(nbytes=M), Tensor(nbytes=123_457)], paper_shares(n, k).all, PARTITION)
    plan = lower(uniform_cluster(n, k, B), partitions, discipline)
    outcome = plan.simulate()
    owned = [int(sum(part.nbytes for part in partitions if part.owner == owner)) for owner in range(n + k)]
    names = [f"gpu{i}" for i in range(n)] + [f"cpu{i}" for i in range(k)]
    for way in ("out", "in"):
        carried = [outcome.carried[f"{name}.{way}"] for name in names]
        assert carried == pytest.approx(theory.traffic_of_placement(owned, n, k))
        assert max(carried) <= B * outcome.seconds * (1 + 1e-9)


def test_a_worker_alone_with_its_own_service_sends_nothing():
    outcome = synchronisation(1, 0, ordered(1e6)).simulate()
    assert outcome.seconds == 0
    assert set(outcome.carried.values()) == {0.0}


def test_bandwidth_a_hundredth_takes_a_hundred_times_as_long():
    partitions = cut([Tensor(nbytes=M)], paper_shares(4, 2).all, PARTITION)
    fast, slow = (lower(uniform_cluster(4, 2, rate), partitions, ordered(2e5)).simulate() for rate in (B, B / 100))
    assert slow.end == pytest.approx(100 * fast.end)


def test_size_cluster_and_discipline_change_the_answer():
    cases = [(4, 2, M), (4, 2, 2 * M), (4, 3, M), (5, 2, M)]
    found = {synchronisation(n, k, ordered(2e5), nbytes=nbytes).simulate().seconds for n, k, nbytes in cases}
    assert len(found) == len(cases)


def test_exact_placement_beats_the_paper_s_hash():
    """Its slots are uneven, and so is what falls into them."""
    exact = cut([Tensor(nbytes=M)], paper_shares(8, 4).all, PARTITION)
    hashed = [replace(part, owner=hash_slot(key, 8, 4)) for key, part in enumerate(exact)]
    plans = (lower(uniform_cluster(8, 4, B), each, ordered_weighted(28 * PARTITION)) for each in (exact, hashed))
    seconds, seconds_hashed = (plan.simulate().seconds for plan in plans)
    assert seconds_hashed > 1.1 * seconds


def test_unequal_nics_come_near_the_linear_programme():
    nics = {"a": 2.0, "b": 1.0, "c": 1.0, "d": 0.5}
    gpu = [Machine(name=name, role="gpu", nic_bytes_per_s=rate * B) for name, rate in nics.items()]
    cluster = Cluster(machines=(*gpu, Machine(name="e", role="cpu", nic_bytes_per_s=4 * B)))
    shares = cluster_shares(cluster)
    busiest = max(
        carried / machine.nic_bytes_per_s
        for carried, machine in zip(theory.traffic(M, shares), cluster.machines, strict=True)
    )
    plan = lower(cluster, cut([Tensor(nbytes=M)], shares.all, 4000), ordered_weighted(28 * 4000))
    assert busiest * (1 - 1e-3) < plan.simulate().seconds < 1.1 * busiest


def test_what_goes_from_rack_to_rack_goes_over_both_uplinks():
    machines = [Machine(name=f"g{i}", role="gpu", nic_bytes_per_s=10.0, rack=f"r{i // 2}") for i in range(4)]
    cpu = Machine(name="c", role="cpu", nic_bytes_per_s=40.0)  # at the core
    cluster = Cluster(machines=(*machines, cpu), oversubscription=4.0)
    outcome = lower(cluster, [Partition(nbytes=20.0, owner=4), Partition(nbytes=20.0, owner=0)], fair_share).simulate()
    # To c: 4 workers' 20 bytes; to g0: 20 from its own rack, 40 from the other; and as much back.
    assert outcome.carried["r0.up"] == outcome.carried["r0.down"] == 40 + 40
    assert outcome.carried["r1.up"] == outcome.carried["r1.down"] == 40 + 40
    assert outcome.carried["c.in"] == 80
    assert outcome.bottleneck.startswith("r")
    assert outcome.seconds >= 80 / 5


def test_each_message_costs_its_time_on_the_way_there_and_back():
    alone = lower(uniform_cluster(2, 1, 10.0), [Partition(nbytes=20.0, owner=2)] * 2, ordered(40.0), 0.5).simulate()
    assert alone.seconds == pytest.approx(0.5 + 4 + 0.5 + 4 + 0.5 + 4)  # the second push goes while the first pull does
    own = lower(uniform_cluster(1, 0, 10.0), [Partition(nbytes=20.0, owner=0)], ordered(40.0), 0.5).simulate()
    assert own.seconds == 0


def test_an_owner_that_is_no_machine_is_refused():
    with pytest.raises(ValueError, match="owner of a partition is 3; the machines are 0 to 2"):
        lower(uniform_cluster(2, 1, B), [Partition(nbytes=1.0, owner=3)], fair_share)


def test_nothing_to_synchronise_takes_no_time():
    assert lower(uniform_cluster(2, 1, B), [], ordered(1.0)).simulate().seconds == 0
    assert synchronisation(2, 1, ordered(1.0), nbytes=0).simulate().seconds == 0


TENSORS = st.lists(
    st.builds(
        Tensor,
        nbytes=st.integers(1, 10).map(lambda parts: 40_000 * parts - 15_000),
        ready_seconds=st.sampled_from([0.0, 1e-4, 3e-4]),
        priority=st.integers(-1, 1),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=50, deadline=None)
@given(TENSORS, st.integers(2, 4), st.integers(0, 4), st.integers(1, 300_000))
def test_partitions_leave_as_the_runtime_s_own_queue_lets_them(tensors, n, k, credit):
    """At every moment of the simulation: what has been answered, what has become ready, what is taken."""
    size = 40_000  # the last partition of a tensor is too large to be batched, too
    partitions = cut(tensors, paper_shares(n, k).all, size)
    plan = lower(uniform_cluster(n, k, B), partitions, ordered(credit))
    outcome = plan.simulate()
    keys, tasks = [], []
    for number, tensor in enumerate(tensors):
        count = math.ceil(tensor.nbytes / size)
        spec = TensorSpec(name=f"t{number}", shape=(tensor.nbytes,), dtype="uint8", op=Op.SUM)
        owners = tuple(part.owner for part in partitions[len(keys) : len(keys) + count])
        entry = TensorEntry(spec=spec, number=number, cut_nbytes=size, owners=owners)
        tasks.append(Task(entry=entry, nbytes=tensor.nbytes, priority=tensor.priority, round=0))
        keys += [make_key(number, part) for part in range(count)]
    pipeline = Pipeline(credit)
    answers, left, ready = defaultdict(list), defaultdict(list), defaultdict(list)
    for key, pulls in zip(keys, plan.pulls, strict=True):
        grant = pulls[0] - n - 2
        assert plan.flows[grant].queue
        answers[outcome.end[pulls].max()].append(key)
        left[outcome.start[grant]].append(key)
    for task, tensor in zip(tasks, tensors, strict=True):
        ready[tensor.ready_seconds].append(task)
    for moment in sorted(answers | left | ready):
        for key in answers[moment]:
            pipeline.answer(key)
        pipeline.submit(ready[moment])
        taken = []
        while frames := pipeline.take():
            taken += [make_key(task.entry.number, part) for frame in frames for task, part in frame.parts]
        assert sorted(taken) == sorted(left[moment])


def test_a_tensor_of_higher_priority_overtakes_what_has_not_left():
    tensors = [Tensor(nbytes=M), Tensor(nbytes=10 * PARTITION, ready_seconds=1e-3, priority=1)]
    partitions = cut(tensors, paper_shares(4, 4).all, PARTITION)
    plan = lower(uniform_cluster(4, 4, B), partitions, ordered(default_credit_bytes(PARTITION, 8) / 40))
    ends = plan.simulate().end[plan.pulls].max(axis=1)
    assert ends[-10:].max() < ends[:-10].max() / 2
    assert ends[-10:].min() > 1e-3


def test_an_iteration_of_vgg_16_ends_no_sooner_than_its_last_gradient_and_its_bytes_allow():
    workload = with_times(read("vgg16"))
    tensors = [
        Tensor(nbytes=tensor.nbytes, ready_seconds=tensor.ready_seconds, priority=-tensor.forward_position)
        for tensor in workload.tensors
    ]
    partitions = cut(tensors, paper_shares(4, 2).all, 4_096_000)
    slow, fast = 1e9, 1e12
    seconds = {}
    for rate in (slow, fast):
        plan = lower(uniform_cluster(4, 2, rate), partitions, ordered_weighted(default_credit_bytes(4_096_000, 6)))
        outcome = plan.simulate()
        ready = np.array([partition.ready_seconds for partition in partitions])
        assert (outcome.end[plan.pulls].min(axis=1) >= ready).all()
        seconds[rate] = outcome.seconds
    assert workload.backward_seconds < seconds[fast] < workload.backward_seconds * 1.01
    best = theory.byteps_seconds(workload.nbytes, 4, 2, slow)
    assert best < seconds[slow] < best + workload.backward_seconds
