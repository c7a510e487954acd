import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.summation import Action, Push, Slot
from byteps.wire import ProtocolError

ADOPT, ADD, REPLY = Action.ADOPT, Action.ADD, Action.REPLY


def push(worker: int, round_: int = 0, nbytes: int = 8, dtype: int = 0, op: int = 0) -> Push:
    return Push(worker=worker, round=round_, nbytes=nbytes, dtype=dtype, op=op)


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


@pytest.mark.parametrize(
    "odd, text",
    [
        (push(0), "worker 0 pushed round 0 twice"),
        (push(1, 1), "worker 1 pushed round 1, round 0 is under way"),
        (push(1, nbytes=16), "worker 0 pushed 8 bytes float32 sum, worker 1 16 bytes float32 sum"),
        (push(1, dtype=4), "worker 0 pushed 8 bytes float32 sum, worker 1 8 bytes int32 sum"),
        (push(1, op=1), "worker 0 pushed 8 bytes float32 sum, worker 1 8 bytes float32 average"),
    ],
)
def test_what_does_not_fit_is_named(odd, text):
    slot = Slot(2)
    slot.handle(push(0))
    with pytest.raises(ProtocolError) as caught:
        slot.handle(odd)
    assert str(caught.value) == text
