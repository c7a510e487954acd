"""Strategies around a session: what they hand over, in which order, how much at a time, and what comes back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import Fake, arrays, iterate, submit_and_wait, tensor, wrap

from baselines import strategies
from baselines.session import Tensor


@st.composite
def workloads(draw: st.DrawFn) -> list[Tensor]:
    dtypes = st.sampled_from(["float32", "float16"])
    shapes = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(-5, 5), dtypes), min_size=1, max_size=12))
    return [tensor(index, *shape) for index, shape in enumerate(shapes)]


KNOBS = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["one-by-one", "fused", "scheduled"]),
        "bucket": st.integers(1, 400).map(str),
        "piece": st.integers(1, 300).map(str),
        "credit": st.integers(1, 400).map(str),
    }
)


@settings(max_examples=150, deadline=None)
@given(st.lists(workloads(), min_size=1, max_size=2), KNOBS, st.booleans(), st.integers(1, 3), st.randoms())
def test_every_element_is_handed_over_once_per_iteration_and_comes_back_summed(jobs, knobs, in_place, rounds, random):
    fake = Fake(in_place=in_place)
    session = wrap(fake, knobs)
    for tensors in jobs:
        gradients = arrays(tensors)
        session.declare(tensors, gradients)
        assert sum(one.numel for one in fake.tensors) == sum(one.numel for one in tensors)
        for _ in range(rounds):
            fake.order.clear()
            order = list(range(len(tensors)))
            random.shuffle(order)
            iterate(session, tensors, gradients, order)
            assert sorted(fake.order) == sorted(one.name for one in fake.tensors)
    session.close()
    assert fake.closed
    assert fake.workloads == len(jobs)
    largest = max(gradient.nbytes for gradient in fake.gradients)
    if knobs["strategy"] == "one-by-one":
        assert fake.most_count == 1
    if knobs["strategy"] == "scheduled" and len(jobs) == 1:
        assert fake.most_nbytes <= max(int(knobs["credit"]), largest)
        assert largest <= max(int(knobs["piece"]), 4)


def test_one_by_one_takes_whole_tensors_in_ready_order_whatever_their_priority():
    fake = Fake()
    session = wrap(fake, {"strategy": "one-by-one"})
    tensors = [tensor(index, 3, priority=index) for index in range(5)]
    gradients = arrays(tensors)
    session.declare(tensors, gradients)
    assert all(np.shares_memory(mine, theirs) for mine, theirs in zip(gradients, fake.gradients, strict=True))
    iterate(session, tensors, gradients, [4, 3, 2, 1, 0])
    assert fake.order == ["t0", "t1", "t2", "t3", "t4"]
    session.close()


def test_submitting_does_not_wait_for_what_is_outstanding():
    fake = Fake(gated=True)
    session = wrap(fake, {"strategy": "one-by-one"})
    tensors = [tensor(index, 3) for index in range(3)]
    session.declare(tensors, arrays(tensors))
    for index in range(3):
        session.submit(index)
    assert fake.order == ["t0"]
    fake.let_through(3)
    for index in range(3):
        session.wait(index)
    session.close()


def test_an_urgent_tensor_overtakes_the_pieces_that_are_not_handed_over_yet():
    fake = Fake(gated=True)
    session = wrap(fake, {"strategy": "scheduled", "piece": "8", "credit": "16"})
    tensors = [tensor(0, 8, priority=0), tensor(1, 4, priority=1)]
    session.declare(tensors, arrays(tensors))
    session.submit(0)
    session.submit(1)
    assert fake.order == ["t0 piece 0", "t0 piece 1"]  # two pieces of 8 bytes are the credit
    fake.let_through(1)
    assert fake.await_order(3)[2:] == ["t1 piece 0"]
    fake.let_through(5)
    session.wait(0)
    session.wait(1)
    assert fake.order[2:] == ["t1 piece 0", "t1 piece 1", "t0 piece 2", "t0 piece 3"]
    session.close()


def test_a_piece_larger_than_the_credit_goes_alone():
    fake = Fake()
    session = wrap(fake, {"strategy": "scheduled", "piece": "400", "credit": "4"})
    tensors = [tensor(index, 100) for index in range(3)]
    gradients = arrays(tensors)
    session.declare(tensors, gradients)
    iterate(session, tensors, gradients, range(3))
    assert fake.most_count == 1
    session.close()


def test_neighbours_share_a_bucket_that_leaves_when_its_last_tensor_is_ready():
    fake = Fake()
    session = wrap(fake, {"strategy": "fused", "bucket": "32"})
    tensors = [tensor(0, 2), tensor(1, 6, priority=7), tensor(2, 1), tensor(3, 9), tensor(4, 1)]
    gradients = arrays(tensors)
    session.declare(tensors, gradients)
    assert [one.numel for one in fake.tensors] == [8, 1, 9, 1]
    assert fake.tensors[0].priority == 0  # as Horovod, fused tensors know no priority
    session.submit(0)
    assert fake.order == []
    session.submit(1)
    assert fake.order == ["t0 and 1 more"]
    for index in (2, 3, 4):
        session.submit(index)
    assert fake.order == ["t0 and 1 more", "t2", "t3", "t4"]
    assert np.shares_memory(fake.gradients[2], gradients[3])  # a tensor that fills its bucket is not copied
    for index in range(5):
        session.wait(index)


def test_element_types_do_not_mix_in_a_bucket_and_buckets_are_in_the_order_of_completion():
    tensors = [tensor(0, 1), tensor(1, 1, dtype="float16"), tensor(2, 1, dtype="float16"), tensor(3, 1)]
    assert strategies.buckets(tensors, arrays(tensors), 100) == [[1, 2], [0, 3]]


@pytest.mark.parametrize("strategy", ["one-by-one", "fused", "scheduled"])
@pytest.mark.parametrize("where, text", [("submit", "no route"), ("wait", "peer is gone")])
def test_an_error_of_the_session_surfaces_instead_of_hanging(strategy, where, text):
    session = wrap(Fake(fails_at=where), {"strategy": strategy})
    tensors = [tensor(index, 3) for index in range(3)]
    session.declare(tensors, arrays(tensors))

    with pytest.raises((RuntimeError, OSError), match=text):
        submit_and_wait(session, 3)
    session.close()


def test_an_error_of_a_later_hand_over_surfaces_where_the_tensor_is_waited_for():
    fake = Fake(gated=True)
    session = wrap(fake, {"strategy": "one-by-one"})
    tensors = [tensor(index, 3) for index in range(2)]
    session.declare(tensors, arrays(tensors))
    session.submit(0)
    session.submit(1)
    fake._fails_at = "submit"
    fake.let_through(1)
    with pytest.raises(RuntimeError, match="OSError: no route"):
        session.wait(1)
    session.close()


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"strategy": "magic"}, "'magic' is not one of plain, one-by-one, fused, scheduled"),
        ({"strategy": "fused", "bucket": "0"}, "bucket = '0'"),
        ({"strategy": "fused", "bucket": "many"}, "'many' is not a size"),
        ({"strategy": "scheduled", "piece": "0"}, "piece = '0'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrap(Fake(), wrong)


def test_plain_is_the_session_itself_and_facts_name_the_strategy():
    fake = Fake()
    assert wrap(fake, {}) is fake
    facts = wrap(fake, {"strategy": "scheduled", "piece": "64KiB", "credit": "1MiB"}).facts()
    assert facts == {"fake": "1", "strategy": "scheduled", "piece bytes": "65536", "credit bytes": "1048576"}
