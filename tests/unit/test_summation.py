import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.summation import Action, Push, Slot
from byteps.wire import ROUNDS, Op, ProtocolError

ADOPT, ADD, REPLY = Action.ADOPT, Action.ADD, Action.REPLY


def push(worker: int, round_: int = 0, nbytes: int = 8, dtype: int = 0, op: int = 0, **fields: object) -> Push:
    return Push(worker=worker, round=round_, nbytes=nbytes, dtype=dtype, op=op, **fields)


def test_the_first_contribution_is_adopted_the_last_one_answered():
    slot = Slot(3)
    assert slot.handle(push(2)) == (ADOPT,)
    assert slot.handle(push(0)) == (ADD,)
    assert slot.handle(push(1)) == (ADD, REPLY)
    assert slot.handle(push(1, 1)) == (ADOPT,)


def test_one_worker_alone_is_answered_at_once():
    slot = Slot(1)
    assert slot.handle(push(0)) == (ADOPT, REPLY)
    assert slot.handle(push(0, 1)) == (ADOPT, REPLY)


@given(st.integers(1, 5), st.integers(1, 5), st.randoms(use_true_random=False))
def test_every_contribution_counts_once_and_every_round_is_answered_once(workers, rounds, chance: random.Random):
    """Workers push round r + 1 as soon as round r is answered, in any order."""
    slot = Slot(workers)
    total: list[int] = []
    for round_ in range(rounds):
        order = list(range(workers))
        chance.shuffle(order)
        for position, worker in enumerate(order):
            actions = slot.handle(push(worker, round_))
            total = [worker] if actions[0] is ADOPT else [*total, worker]
            assert (REPLY in actions) == (position == workers - 1)
        assert sorted(total) == list(range(workers))
        assert slot.answered is None


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=5),
    st.integers(0, 2),
    st.randoms(use_true_random=False),
)
def test_some_contribute_and_some_want_the_answer(roles, others, chance: random.Random):
    """Whoever pushes is answered; the sum has the contributions with bytes; nobody waits for workers outside."""
    roles[0] = (True, roles[0][1])  # somebody contributes
    slot = Slot(len(roles) + others)
    for round_ in range(3):
        order = list(range(len(roles)))
        chance.shuffle(order)
        total: list[int] = []
        for position, worker in enumerate(order):
            gives, wants = roles[worker]
            actions = slot.handle(push(worker, round_, 8 * gives, members=len(roles), wants=wants))
            assert (ADOPT in actions, ADD in actions) == (gives and not total, gives and bool(total))
            total += [worker] * gives
            assert (REPLY in actions) == (position == len(roles) - 1)
        assert sorted(total) == [worker for worker, (gives, _) in enumerate(roles) if gives]
        assert slot.answered == {worker: wants for worker, (_, wants) in enumerate(roles)}


def test_a_declined_answer_is_remembered_also_among_all_workers():
    slot = Slot(2)
    slot.handle(push(1, wants=False))
    assert slot.handle(push(0)) == (ADD, REPLY)
    assert slot.answered == {1: False, 0: True}


def test_rounds_are_counted_modulo_the_width_of_their_field():
    slot = Slot(1)
    slot.round = ROUNDS - 1
    slot.handle(push(0, ROUNDS - 1))
    assert slot.handle(push(0, 0)) == (ADOPT, REPLY)


@pytest.mark.parametrize(
    "op, pushes, text",
    [
        (Op.SUM, (0, 0), "no worker contributed to round 0"),
        (Op.COPY, (8, 8), "worker 1 contributed to a copy that has its contribution"),
    ],
)
def test_a_sum_needs_a_contribution_and_a_copy_just_one(op, pushes, text):
    slot = Slot(2)
    slot.handle(push(0, nbytes=pushes[0], op=op))
    with pytest.raises(ProtocolError) as caught:
        slot.handle(push(1, nbytes=pushes[1], op=op))
    assert str(caught.value) == text


def test_sizes_are_compared_among_those_who_contribute():
    slot = Slot(3)
    slot.handle(push(0, nbytes=0))
    slot.handle(push(1, nbytes=8))
    with pytest.raises(ProtocolError) as caught:
        slot.handle(push(2, nbytes=16))
    assert str(caught.value) == "worker 1 pushed 8 bytes float32 sum, worker 2 16 bytes float32 sum"


@pytest.mark.parametrize(
    "odd, text",
    [
        (push(0), "worker 0 pushed round 0 twice"),
        (push(1, 1), "worker 1 pushed round 1, round 0 is under way"),
        (push(1, nbytes=16), "worker 0 pushed 8 bytes float32 sum, worker 1 16 bytes float32 sum"),
        (push(1, dtype=4), "worker 0 pushed 8 bytes float32 sum, worker 1 8 bytes int32 sum"),
        (push(1, op=1), "worker 0 pushed 8 bytes float32 sum, worker 1 8 bytes float32 average"),
        (
            push(1, members=2),
            "worker 0 pushed 8 bytes float32 sum, worker 1 8 bytes float32 sum of 2 workers",
        ),
    ],
)
def test_what_does_not_fit_is_named(odd, text):
    slot = Slot(2)
    slot.handle(push(0))
    with pytest.raises(ProtocolError) as caught:
        slot.handle(odd)
    assert str(caught.value) == text
