"""Sessions without a network for tests of what is wrapped around them, and their workloads."""

import threading
from collections.abc import Sequence

import numpy as np

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
