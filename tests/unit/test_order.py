"""The one order in which ranks hand pieces over: rank 0 decides, the others follow."""

import socket
import threading
import time
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from sessions import DEADLINE, Fake, arrays, submit_and_wait, tensor

from baselines import strategies
from baselines.session import Array


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

    done = threading.Barrier(size)  # a job's ranks leave together; who follows rank 0 fails if it leaves first

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
        done.wait(DEADLINE)
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
