import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.staleness import Ledger, Outcome
from byteps.summation import Action, Push
from byteps.wire import ROUNDS, Op, ProtocolError

ADD, ADOPT = Action.ADD, Action.ADOPT


def push(worker: int, round_: int, *, staleness: int | None = None, nbytes: int = 8, **fields: object) -> Push:
    members = 0 if staleness is None else staleness + 1
    return Push(worker=worker, round=round_, nbytes=nbytes, dtype=0, op=Op.ADD, members=members, **fields)


class Workers:
    """Workers that know their rounds, and a ledger whose bytes are a list of what was added."""

    def __init__(self, count: int, staleness: int | None) -> None:
        self.ledger = Ledger(count)
        self.staleness = staleness
        self.rounds = [0] * count
        self.clocks = [0] * count  # differences pushed
        self.entered = [-1] * count  # the clock of each worker's last answer
        self.weights: list[tuple[int, int]] = []
        self.seen: list[list[tuple[int, int]]] = [[] for _ in range(count)]

    def push(self, worker: int, nbytes: int = 8) -> set[int]:
        """The workers that are answered."""
        outcome = self.ledger.handle(push(worker, self.rounds[worker], staleness=self.staleness, nbytes=nbytes))
        if outcome.action is ADD:
            self.weights.append((worker, self.clocks[worker]))
            self.clocks[worker] += 1
        self.rounds[worker] += 1
        return self.answered(outcome.due)

    def leave(self, worker: int) -> set[int]:
        return self.answered(self.ledger.leave(worker))

    def answered(self, due: tuple[Push, ...]) -> set[int]:
        for one in due:
            self.entered[one.worker] = self.clocks[one.worker]
            self.seen[one.worker] = list(self.weights)
        return {one.worker for one in due}

    def seed(self) -> None:
        self.push(0)
        for worker in range(1, len(self.rounds)):
            self.push(worker, nbytes=0)

    @property
    def free(self) -> list[int]:
        return [worker for worker in range(len(self.rounds)) if worker not in self.ledger.held]


def test_a_pull_before_the_first_push_waits_for_it():
    ledger = Ledger(3)
    early, weights = push(1, 0, nbytes=0), push(0, 0)
    assert ledger.handle(early) == Outcome(None, ())
    assert ledger.behind() == {0, 2}
    assert ledger.handle(weights) == Outcome(ADOPT, (early, weights))
    late = push(2, 0, nbytes=0)
    assert ledger.handle(late) == Outcome(None, (late,))
    assert ledger.behind() == set()


def test_without_a_bound_every_difference_is_answered_at_once():
    workers = Workers(3, None)
    workers.seed()
    for worker in (1, 1, 1, 0, 1, 2):
        assert workers.push(worker) == {worker}
    assert workers.clocks == [1, 4, 1]
    assert len(workers.weights) == 6


def test_with_a_bound_of_0_all_answers_of_a_clock_are_the_same():
    workers = Workers(3, 0)
    workers.seed()
    for clock in range(3):
        assert workers.push(2) == workers.push(0) == set()
        assert workers.push(1) == {0, 1, 2}
        assert workers.seen[0] == workers.seen[1] == workers.seen[2]
        assert len(workers.seen[0]) == 3 * (clock + 1)


def test_the_fastest_worker_waits_when_it_is_s_ahead():
    workers = Workers(2, 2)
    workers.seed()
    assert workers.push(0) == {0}
    assert workers.push(0) == {0}
    assert workers.push(0) == set()
    assert workers.ledger.behind() == {1}
    assert workers.push(1) == {0, 1}


@given(st.integers(1, 5), st.integers(0, 3), st.integers(1, 60), st.randoms(use_true_random=False))
def test_nobody_goes_on_more_than_s_ahead_or_without_what_it_must_see(count, staleness, steps, chance: random.Random):
    """Whatever the order, somebody can always push; who leaves is waited for no more."""
    workers = Workers(count, staleness)
    workers.seed()
    left: set[int] = set()
    for _ in range(steps):
        able = [worker for worker in workers.free if worker not in left]
        assert able
        worker = chance.choice(able)
        if chance.random() < 0.05 and len(left) + 1 < count:
            left.add(worker)
            answered = workers.leave(worker)
        else:
            answered = workers.push(worker)
        present = [one for one in range(count) if one not in left]
        for one in answered:
            mine = workers.clocks[one]
            assert mine - min(workers.clocks[other] for other in present) <= staleness
            must_see = {(other, clock) for other in present for clock in range(max(mine - staleness, 0))}
            assert must_see <= set(workers.seen[one])
            assert {(one, clock) for clock in range(mine)} <= set(workers.seen[one])
    assert len(workers.weights) == len(set(workers.weights)) == sum(workers.clocks)


@given(st.integers(1, 4), st.sampled_from([None, 0, 2]), st.randoms(use_true_random=False))
def test_all_get_the_same_final_weights_when_all_are_out_of_steps(count, staleness, chance: random.Random):
    workers = Workers(count, staleness)
    workers.seed()
    for _ in range(2):  # they may go on afterwards
        steps = [chance.randrange(6) for _ in range(count)]
        while any(step >= 0 for step in steps):
            worker = chance.choice(workers.free)
            workers.push(worker, nbytes=8 if steps[worker] else 0)
            steps[worker] -= 1
        assert not workers.ledger.held
        assert all(seen == workers.weights for seen in workers.seen)


def test_a_worker_out_of_steps_or_of_the_job_holds_nobody_back():
    workers = Workers(3, 0)
    workers.seed()
    assert workers.push(0) == set()
    assert workers.push(2, nbytes=0) == set()
    assert workers.leave(1) == {0}
    assert workers.push(0) == {0}
    assert workers.ledger.behind() == {0}
    assert workers.leave(0) == {2}


def test_who_left_before_a_partition_was_first_pushed_holds_nobody_back():
    ledger = Ledger(2, {1})
    assert ledger.handle(push(0, 0, staleness=0)).due
    assert ledger.handle(push(0, 1, staleness=0)).due


def test_what_a_difference_had_missed_is_counted():
    workers = Workers(2, None)
    workers.seed()
    for worker in (0, 0, 0, 1, 0):  # worker 1's misses 3, worker 0's last one that one
        workers.push(worker)
    assert (workers.ledger.added, workers.ledger.missed, workers.ledger.most_missed) == (5, 4, 3)


@given(st.integers(1, 4), st.integers(0, 3), st.randoms(use_true_random=False))
def test_a_bound_bounds_what_is_missed(count, staleness, chance: random.Random):
    workers = Workers(count, staleness)
    workers.seed()
    for _ in range(60):
        workers.push(chance.choice(workers.free))
    assert workers.ledger.most_missed <= (2 * staleness + 1) * (count - 1)


def test_rounds_wrap():
    workers = Workers(1, 1)
    workers.seed()
    workers.ledger._rounds[0] = workers.rounds[0] = ROUNDS - 1
    assert workers.push(0) == {0}
    workers.rounds[0] = 0
    assert workers.push(0) == {0}


@pytest.mark.parametrize(
    "pushes, text",
    [
        ([push(0, 0), push(1, 0)], "worker 1 set weights that are set"),
        ([push(0, 1)], "worker 0 pushed round 1, its next one is 0"),
        ([push(0, 0, nbytes=0), push(0, 1)], "before the answer to the one before"),
        ([push(0, 0), push(0, 1, nbytes=4)], "worker 0 pushed 8 bytes float32 add, worker 0 4 bytes float32 add"),
        ([push(0, 0), push(1, 0, nbytes=0, staleness=2)], "worker 1 0 bytes float32 add within 2 clocks"),
    ],
)
def test_what_does_not_fit_is_named(pushes, text):
    ledger = Ledger(2)
    *before, last = pushes
    for one in before:
        ledger.handle(one)
    with pytest.raises(ProtocolError, match=text):
        ledger.handle(last)


@given(
    st.lists(st.lists(st.integers(-9, 9), max_size=6), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_theorem_2_weights_are_those_of_an_asynchronous_parameter_server(gradients, chance: random.Random):
    """The same order of pushes; the optimiser, momentum here, is the worker's in one and at the server in the other."""
    w0, ours, theirs = 100, 100, 100
    workers = Workers(len(gradients), None)
    workers.seed()
    local, here, there = [w0] * len(gradients), [0] * len(gradients), [0] * len(gradients)
    order = [worker for worker, mine in enumerate(gradients) for _ in mine]
    chance.shuffle(order)
    for worker in order:
        gradient = gradients[worker][workers.clocks[worker]]
        here[worker] = 2 * here[worker] - gradient
        updated = local[worker] + here[worker]
        assert workers.push(worker) == {worker}
        ours += updated - local[worker]
        local[worker] = ours
        there[worker] = 2 * there[worker] - gradient
        theirs += there[worker]
        assert ours == theirs
