"""BSP, ASP and SSP: laws of clocks and staleness, the runtime's own rule, and schedules that allow no choice."""

import numpy as np
import pytest

from byteps.cluster import uniform_cluster
from byteps.network import Network, star
from byteps.policy import ASP, BSP, Execution, Policy, execute, has_servers, ssp
from byteps.schedule import Schedule
from byteps.scheduled import link_loads, simulate
from byteps.schedules import levels, passed, served
from byteps.staleness import Ledger
from byteps.summation import Push

RATE, NBYTES, T = 1e8, 1e6, 8
SERVED: list[Schedule] = [
    served.mesh(4),
    served.mesh(3, pieces=2),
    served.relayed_mesh(3, pieces=4),
    served.parameter_server(4, 2),
    served.whole_tensors(3, 2, [3, 1, 2]),
    served.byteps(uniform_cluster(4, 2, RATE)),
    served.phub(3, 2),
    served.mesh(1),
]
OTHERS: list[Schedule] = [
    passed.ring(4),
    passed.tree(4),
    passed.halving_doubling(4),
    levels.torus(2, 2),
    served.racks_of_boxes(2, 2),
]
POLICIES = [BSP, ssp(1), ssp(3), ASP]
each = pytest.mark.parametrize("schedule", SERVED, ids=lambda one: f"{one.name} {one.num_workers}")
under = pytest.mark.parametrize("policy", POLICIES, ids=lambda one: one.name)


def net(schedule: Schedule) -> Network:
    return star([RATE] * schedule.num_nodes)


def compute(schedule: Schedule, straggler: float = 1.0, *, unequal: float = 0.0) -> list[list[float]]:
    """0.1 s; the last worker takes so many times as long."""
    slow = schedule.num_workers - 1
    return [
        [0.1 * (straggler if worker == slow else 1.0) * (1 + unequal * (worker + 1) / (7 + step)) for step in range(T)]
        for worker in range(schedule.num_workers)
    ]


def run(schedule: Schedule, policy: Policy, times: list[list[float]]) -> Execution:
    return execute(schedule, NBYTES, net(schedule), times, policy)


@each
def test_ssp_of_0_is_bsp(schedule: Schedule) -> None:
    times = compute(schedule, 3.0, unequal=0.5)
    assert ssp(0) == BSP
    found = run(schedule, ssp(0), times)
    assert (found.ends == run(schedule, BSP, times).ends).all()
    assert (found.apart() == 0).all()
    pairs = schedule.num_workers * (schedule.num_workers - 1) / 2
    assert found.missed().sum() <= T * pairs + 1e-9  # one of two workers is the first to push a clock


@pytest.mark.parametrize("schedule", [served.mesh(4), served.parameter_server(4, 2)], ids=lambda one: one.name)
def test_alike_workers_take_computation_and_one_synchronisation_under_all_policies(schedule: Schedule) -> None:
    (seconds,) = simulate([(schedule, NBYTES)], net(schedule))
    for policy in POLICIES:
        found = run(schedule, policy, compute(schedule))
        assert found.ends[-1] == pytest.approx(T * (0.1 + seconds))
        assert (found.apart() == 0).all()


@each
@under
def test_nobody_goes_on_more_clocks_ahead_than_the_bound(schedule: Schedule, policy: Policy) -> None:
    found = run(schedule, policy, compute(schedule, 4.0, unequal=0.3))
    apart = found.apart()
    if policy.bound is not None:  # another one may push s + 1 clocks after the slowest, which may have pushed s before
        assert found.missed().max() <= (schedule.num_workers - 1) * (2 * policy.bound + 1)
    if schedule.num_workers == 1:
        assert apart.max() == 0
    elif policy == ASP:
        assert apart.max() > 3
    else:
        assert apart.max() == policy.bound


@each
@under
def test_every_contribution_is_counted_once_and_carried_once(schedule: Schedule, policy: Policy) -> None:
    found = run(schedule, policy, compute(schedule, 3.0, unequal=0.3))
    assert found.arrived.shape == (T, schedule.num_workers, schedule.shares.size)
    assert (np.diff(found.arrived, axis=0) > 0).all()
    assert (found.arrived <= found.answered).all()
    assert (found.answered.max(axis=2) <= found.ends).all()
    once = link_loads(schedule, net(schedule))
    carried = {name: nbytes for name, nbytes in found.carried.items() if nbytes}
    assert carried == pytest.approx({name: T * load * NBYTES for name, load in once.items()})


@each
@under
def test_the_rule_of_the_runtime_lets_the_same_answers_go_at_the_same_moments(
    schedule: Schedule, policy: Policy
) -> None:
    found = run(schedule, policy, compute(schedule, 2.5, unequal=0.4))
    workers, missed = schedule.num_workers, 0
    members = 0 if policy.bound is None else policy.bound + 1
    for chunk in range(schedule.shares.size):
        ledger = Ledger(workers)
        for worker in range(workers):  # worker 0 sets the weights
            ledger.handle(push(worker, 0, 4 if worker == 0 else 0, members))
        events = sorted(
            (found.arrived[step, worker, chunk], step, worker) for step in range(T) for worker in range(workers)
        )
        for moment, step, worker in events:
            for due in ledger.handle(push(worker, step + 1, 4, members)).due:
                assert found.answered[due.round - 1, due.worker, chunk] == moment
            if step == T - 1 and worker not in ledger.held:
                ledger.handle(push(worker, T + 1, 0, members))
        assert ledger.added == T * workers
        missed += ledger.missed
    counted = found.missed().sum() * schedule.shares.size
    assert counted <= missed + 1e-6
    if all(np.unique(found.arrived[:, :, chunk]).size == T * workers for chunk in range(schedule.shares.size)):
        assert counted == pytest.approx(missed)


def push(worker: int, number: int, nbytes: int, members: int) -> Push:
    return Push(worker=worker, round=number, nbytes=nbytes, dtype=0, op=0, members=members)


@pytest.mark.parametrize(
    "schedule", [s for s in SERVED if s.num_workers > 1], ids=lambda one: f"{one.name} {one.num_workers}"
)
def test_under_asp_the_fast_keep_their_rate_and_under_bsp_they_have_the_stragglers(schedule: Schedule) -> None:
    alone = run(schedule, ASP, compute(schedule)).rates[0]
    slow = compute(schedule, 5.0)
    free, bound = run(schedule, ASP, slow), run(schedule, BSP, slow)
    assert free.rates[0] >= alone * 0.98  # who pushes at another time takes some of the network then
    assert bound.rates[0] == pytest.approx(bound.rates[-1], rel=0.05)
    assert bound.rates[0] < 2.2  # 0.5 s of computation
    between = [run(schedule, policy, slow).rates[0] for policy in POLICIES]
    assert between == sorted(between)


@pytest.mark.parametrize("schedule", OTHERS, ids=lambda one: one.name)
def test_without_servers_only_bsp_is_allowed(schedule: Schedule) -> None:
    assert not has_servers(schedule)
    times = compute(schedule, 3.0)
    (seconds,) = simulate([(schedule, NBYTES)], net(schedule))
    found = run(schedule, BSP, times)
    assert found.ends[-1] == pytest.approx(T * (0.3 + seconds))
    assert (found.missed() == 0).all()
    with pytest.raises(ValueError, match=rf"SSP\(2\) over {schedule.name}: no server sums .*use BSP, or a scheme with"):
        run(schedule, ssp(2), times)
    with pytest.raises(ValueError, match=rf"ASP over {schedule.name}"):
        run(schedule, ASP, times)


@each
def test_schemes_with_servers_are_known_by_their_messages(schedule: Schedule) -> None:
    assert has_servers(schedule)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a staleness bound of -1; use 0 \(BSP\) or more"):
        ssp(-1)
    wrongs: list[list[list[float]]] = [[[0.1]] * 3, [[]] * 4, [[-0.1]] * 4]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="for 4 workers of mesh; give each of them one number"):
            run(served.mesh(4), BSP, wrong)
