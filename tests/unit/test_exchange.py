"""What ranks conclude from one table, without a network."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.errors import BytePSError, MismatchError

pytest.importorskip("torch", reason="torch is not installed")

from byteps.torch.exchange import Doing, Verdict, Word, conclude, fill, length

NAMES = ["body", "head", "embedding"]


def word(doing=Doing.STEP, steps=7, samples=None, submitted=(True, True, True), sparse=(False, False, False)) -> Word:
    return Word(doing=doing, steps=steps, samples=samples, submitted=submitted, sparse=sparse)


def exchange(*words: Word, average: bool = True) -> Verdict:
    """What the services do with the ranks' tables, and what each rank makes of the sum."""
    tables = [fill(one, rank, len(words)) for rank, one in enumerate(words)]
    assert {len(table) for table in tables} == {length(len(words), len(NAMES))}
    total = [sum(column) for column in zip(*tables, strict=True)]
    return conclude(total, len(words), who="optimizer 0", names=NAMES, average=average)


flags = st.tuples(*[st.booleans()] * len(NAMES))


@given(st.lists(flags, min_size=1, max_size=9))
def test_a_gradient_is_wanted_if_any_rank_has_it(submitted):
    verdict = exchange(*(word(submitted=one) for one in submitted))
    assert verdict.wanted == tuple(map(any, zip(*submitted, strict=True)))
    assert verdict.factor == 1.0
    assert not verdict.joined


@given(st.lists(st.tuples(st.integers(0, 1000), st.floats(-10, 10)), min_size=1, max_size=9))
def test_weighted_averages_are_those_over_all_samples(ranks):
    verdict = exchange(*(word(samples=samples) for samples, _ in ranks))
    services = sum(samples * mean for samples, mean in ranks) / len(ranks)
    total = sum(samples for samples, _ in ranks)
    expected = sum(samples * mean for samples, mean in ranks) / total if total else 0.0
    assert services * verdict.factor == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.booleans(), min_size=1, max_size=9).filter(lambda joined: not all(joined)), st.booleans())
def test_ranks_that_have_joined_do_not_count(joined, average):
    """Whatever their number of steps; they submit nothing."""
    words = [word(doing=Doing.JOINED, steps=3, submitted=(False,) * 3) if gone else word() for gone in joined]
    verdict = exchange(*words, average=average)
    assert verdict.joined == {rank for rank, gone in enumerate(joined) if gone}
    here = len(joined) - len(verdict.joined)
    services = here / len(joined) if average else here  # every rank that is here has the gradient 1
    assert services * verdict.factor == pytest.approx(1.0 if average else here)


def test_when_all_have_joined_nothing_is_wanted():
    verdict = exchange(*[word(doing=Doing.JOINED, submitted=(False,) * 3)] * 4)
    assert verdict.joined == {0, 1, 2, 3}
    assert verdict.wanted == (False,) * 3


@pytest.mark.parametrize("odd", [word(steps=8), word(doing=Doing.DISCARD)])
def test_ranks_at_different_points_are_told_who_is_where(odd):
    with pytest.raises(MismatchError, match="rank 0 after 7 steps is at step") as caught:
        exchange(word(), odd, word())
    assert f"rank 1 after {odd.steps} steps is at" in str(caught.value)


def test_a_sparse_gradient_on_any_rank_is_refused_by_name():
    with pytest.raises(BytePSError, match=r"gradient of 'embedding' is sparse.*sparse_as_dense=True"):
        exchange(word(), word(submitted=(True, True, False), sparse=(False, False, True)))


def test_sparse_gradients_that_are_dropped_do_not_matter():
    discard = word(doing=Doing.DISCARD, submitted=(True, True, False), sparse=(False, False, True))
    assert exchange(discard, discard).wanted == (True, True, True)


def test_samples_are_given_by_all_ranks_or_none():
    with pytest.raises(MismatchError, match="rank 1 has a batch_size, rank 0, 2 has none"):
        exchange(word(), word(samples=4), word())
    joined = word(doing=Doing.JOINED, submitted=(False,) * 3)
    assert exchange(word(samples=4), joined).factor == 2 / 4
