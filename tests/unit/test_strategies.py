"""Strategies around a session: what they hand over, in which order, how much at a time, and what comes back."""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import strategies
from baselines.session import Array, Session, Tensor

RANKS = 2  # a fake sum is that many times the gradient
DEADLINE = 20.0


def wrap(session: Session, knobs: dict[str, str]) -> Session:
    """As the only rank."""
    return strategies.wrap(session, {"leader": "127.0.0.1:0", **knobs}, rank=0, size=1)


class Fake:
    """A session whose network is instantaneous, or waits for `open`; it keeps what it was told."""

    def __init__(self, *, in_place: bool = True, gated: bool = False, fails_at: str = "") -> None:
        self._in_place = in_place
        self._open = threading.Semaphore(0) if gated else None
        self._fails_at = fails_at
        self.tensors: Sequence[Tensor] = ()
        self.gradients: Sequence[Array] = ()
        self.workloads = 0
        self.order: list[str] = []
        self.outstanding: list[int] = []
        self.most_nbytes = self.most_count = 0
        self.closed = False
        self._changed = threading.Condition()

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        assert not self.outstanding
        assert [tensor.numel for tensor in tensors] == [gradient.size for gradient in gradients]
        assert [tensor.dtype for tensor in tensors] == [str(gradient.dtype) for gradient in gradients]
        assert len({tensor.name for tensor in tensors}) == len(tensors)
        self.tensors, self.gradients = tensors, gradients
        self.workloads += 1

    def submit(self, index: int) -> None:
        if self._fails_at == "submit":
            raise OSError("no route")
        with self._changed:
            self.order.append(self.tensors[index].name)
            self.outstanding.append(index)
            self.most_count = max(self.most_count, len(self.outstanding))
            self.most_nbytes = max(self.most_nbytes, sum(self.gradients[one].nbytes for one in self.outstanding))
            self._changed.notify_all()

    def wait(self, index: int) -> Array:
        if self._fails_at == "wait":
            raise OSError("peer is gone")
        assert index in self.outstanding
        if self._open is not None:
            assert self._open.acquire(timeout=DEADLINE)
        total = self.gradients[index] if self._in_place else self.gradients[index].copy()
        total *= RANKS
        with self._changed:
            self.outstanding.remove(index)
        return total

    def let_through(self, count: int) -> None:
        assert self._open is not None
        self._open.release(count)

    def await_order(self, count: int) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.order) >= count, timeout=DEADLINE)
        return self.order

    def facts(self) -> dict[str, str]:
        return {"fake": "1"}

    def close(self) -> None:
        self.closed = True


def tensor(index: int, numel: int, priority: int = 0, dtype: str = "float32") -> Tensor:
    return Tensor(name=f"t{index}", numel=numel, dtype=dtype, priority=priority, ready_seconds=index / 1000)


def arrays(tensors: Sequence[Tensor]) -> list[Array]:
    return [np.zeros(one.numel, one.dtype) for one in tensors]


def iterate(session: Session, tensors: Sequence[Tensor], gradients: list[Array], order: Sequence[int]) -> None:
    """One iteration of numbers that differ from element to element, results taken in the given order."""
    wanted = []
    for index, gradient in enumerate(gradients):
        gradient[:] = np.arange(gradient.size) % 50 + index
        wanted.append(RANKS * gradient)
        session.submit(index)
    for index in order:
        np.testing.assert_array_equal(session.wait(index), wanted[index])
    assert all(session.wait(index).size == one.numel for index, one in enumerate(tensors))


def submit_and_wait(session: Session, count: int) -> None:
    for index in range(count):
        session.submit(index)
    for index in range(count):
        session.wait(index)


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


class Meeting:
    """Ranks that match calls by their order: the n-th call of one is added to the n-th calls of the others."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.calls: list[list[Array]] = []


class Rank(Fake):
    def __init__(self, meeting: Meeting) -> None:
        super().__init__()
        self._meeting = meeting
        self._call: dict[int, int] = {}

    def submit(self, index: int) -> None:
        with self._meeting.changed:
            self._call[index] = len(self.order)
            self.order.append(self.tensors[index].name)
            if len(self._meeting.calls) < len(self.order):
                self._meeting.calls.append([])
            self._meeting.calls[self._call[index]].append(self.gradients[index].copy())
            self._meeting.changed.notify_all()

    def wait(self, index: int) -> Array:
        meeting = self._meeting
        with meeting.changed:
            mine = meeting.calls[self._call[index]]
            assert meeting.changed.wait_for(lambda: len(mine) == meeting.size, timeout=DEADLINE)
        self.gradients[index][:] = sum(mine)
        return self.gradients[index]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def in_threads(size: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            work(rank)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert failures == []


@pytest.mark.parametrize("credit", ["8", "64"])
def test_ranks_hand_over_in_one_order_however_they_are_delayed(credit):
    size, count = 3, 12
    meeting = Meeting(size)
    ranks = [Rank(meeting) for _ in range(size)]
    knobs = {"strategy": "scheduled", "piece": "8", "credit": credit, "leader": f"127.0.0.1:{free_port()}"}

    def work(rank: int) -> None:
        session = strategies.wrap(ranks[rank], knobs, rank=rank, size=size)
        tensors = [tensor(index, 1 + index % 5, priority=index * 7 % 5) for index in range(count)]
        gradients = arrays(tensors)
        session.declare(tensors, gradients)
        random = Random(rank)
        for iteration in range(3):
            for index in range(count):
                gradients[index][:] = 100 * iteration + 10 * index + rank
                time.sleep(random.random() * 2e-3)
                session.submit(index)
            for index in range(count):
                np.testing.assert_array_equal(session.wait(index), size * (100 * iteration + 10 * index) + 3)
        session.close()

    in_threads(size, work)
    assert ranks[0].order == ranks[1].order == ranks[2].order


def test_without_rank_0_the_others_fail_instead_of_waiting():
    knobs = {"strategy": "scheduled", "leader": f"127.0.0.1:{free_port()}"}

    def work(rank: int) -> None:
        session = strategies.wrap(Fake(), knobs, rank=rank, size=2)
        tensors = [tensor(0, 3)]
        session.declare(tensors, arrays(tensors))
        if rank:
            with pytest.raises(RuntimeError, match="rank 0, which decides the order, has left"):
                submit_and_wait(session, 1)
        session.close()

    in_threads(2, work)


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
