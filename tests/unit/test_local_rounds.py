"""Rounds of a machine as its root sees them: any order of events gives one course; what may not happen is an error."""

import itertools

import pytest

from byteps.local_rounds import ALONE_NBYTES, Next, Rounds
from byteps.wire import Op, ProtocolError

LARGE = ALONE_NBYTES + 1


def rounds(workers: int = 3, op: Op = Op.SUM, nbytes: int = LARGE, networked: bool = True, slots: int = 0) -> Rounds:
    return Rounds(workers=workers, op=op, nbytes=nbytes, networked=networked, slots=slots)


def contribute(one: Rounds, worker: int, *, gives: bool = True, wants: bool = True, priority: int = 0) -> Next:
    return one.contribute(worker, gives=gives, wants=wants, priority=priority)


@pytest.mark.parametrize("networked", [False, True])
@pytest.mark.parametrize("nbytes", [ALONE_NBYTES, LARGE])
def test_every_order_of_contributions_and_of_additions_gives_one_course(networked: bool, nbytes: int) -> None:
    one = rounds(networked=networked, nbytes=nbytes)
    summed = Next.SEND if networked else Next.RESULT
    for arrivals, additions in itertools.product(itertools.permutations(range(3)), repeat=2):
        steps = [contribute(one, worker, priority=worker) for worker in arrivals]
        assert steps[:-1] == [Next.WAIT] * 2
        assert (list(one.sources), one.priority, one.declines) == ([0, 1, 2], 2, False)
        if nbytes <= ALONE_NBYTES:
            assert steps[-1] is Next.ADD_ALONE
            assert one.added_alone() is summed
        else:
            assert steps[-1] is Next.ADD
            assert [one.added(worker) for worker in additions] == [Next.WAIT, Next.WAIT, summed]
        one.begin()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("givers", [set(), {0}, {1, 2}])
@pytest.mark.parametrize("wanting", [set(), {2}])
def test_who_gives_is_added_and_who_wants_decides_about_the_answer(order, givers, wanting) -> None:
    one = rounds()
    last = [contribute(one, worker, gives=worker in givers, wants=worker in wanting) for worker in order][-1]
    assert list(one.sources) == sorted(givers)
    assert last is (Next.ADD if givers else Next.SEND)  # a machine without bytes still takes part
    assert one.declines == (not wanting)


def test_a_round_knows_nothing_of_the_one_before() -> None:
    one = rounds(workers=2, nbytes=1)
    contribute(one, 0, priority=7)
    contribute(one, 1)
    one.added_alone()
    one.begin()
    contribute(one, 1, gives=False, wants=False, priority=-3)
    contribute(one, 0, gives=False, wants=False, priority=-5)
    assert (list(one.sources), one.priority, one.declines) == ([], -3, True)


def test_the_machine_that_has_the_copy_does_not_fetch_it() -> None:
    here, elsewhere = rounds(op=Op.COPY), rounds(op=Op.COPY)
    for worker in range(3):
        contribute(here, worker, gives=worker == 1)
        contribute(elsewhere, worker, gives=False)
    assert here.declines
    assert not elsewhere.declines


def test_with_own_slots_all_of_them_are_added_whoever_filled_them() -> None:
    one = rounds(slots=5)
    assert [contribute(one, worker) for worker in range(3)][-1] is Next.ADD
    assert list(one.sources) == [0, 1, 2, 3, 4]


def test_what_may_not_happen_is_an_error_of_the_protocol() -> None:
    one = rounds(op=Op.COPY)
    contribute(one, 0)
    with pytest.raises(ProtocolError, match="contributed twice"):
        contribute(one, 0)
    with pytest.raises(ProtocolError, match="copy that has its contribution"):
        contribute(one, 1)
    with pytest.raises(ProtocolError, match="not under way"):
        one.added(0)
    contribute(one, 1, gives=False)
    contribute(one, 2, gives=False)
    one.added(0)
    with pytest.raises(ProtocolError, match="not under way"):
        one.added(0)


def test_a_machine_alone_needs_bytes_from_somebody() -> None:
    one = rounds(workers=2, networked=False)
    contribute(one, 0, gives=False)
    with pytest.raises(ProtocolError, match="no worker contributed"):
        contribute(one, 1, gives=False)
