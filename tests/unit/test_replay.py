"""Iterations against a clock that only sleeping and waiting move: what computation and communication add up to."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselines import replay
from baselines.session import Array, Tensor

SMALL = 1e-9


class Clock:
    """A stand-in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


class Network:
    """A session: tensors pass one after the other, in the order of submission or the most urgent first."""

    def __init__(self, clock: Clock, seconds: list[float], *, by_priority: bool = False, submit_seconds: float = 0.0):
        self._clock = clock
        self._seconds = seconds
        self._by_priority = by_priority
        self._submit_seconds = submit_seconds
        self.submitted: dict[int, float] = {}
        self.waited: list[int] = []

    def declare(self, tensors: list[Tensor], gradients: list[Array]) -> None:
        self._tensors = tensors

    def submit(self, index: int) -> None:
        self._clock.now += self._submit_seconds
        self.submitted[index] = self._clock.now

    def wait(self, index: int) -> Array:
        self._clock.now = max(self._clock.now, self._through()[index])
        self.waited.append(index)
        return np.array([index])

    def _through(self) -> dict[int, float]:
        """When each tensor is through, whatever is asked for first."""
        left, ends, now = dict(self.submitted), {}, 0.0
        while left:
            now = max(now, min(left.values()))
            there = [index for index, moment in left.items() if moment <= now]
            chosen = max(there, key=lambda index: self._tensors[index].priority) if self._by_priority else min(there)
            now += self._seconds[chosen]
            ends[chosen] = now
            del left[chosen]
        return ends


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(replay, "time", clock)
    return clock


def tensors(*shapes: tuple[float, float]) -> list[Tensor]:
    """(ready, forward) seconds of each, in gradient-ready order; the last one is needed first."""
    return [
        Tensor(name=str(i), numel=1, dtype="float32", ready_seconds=ready, priority=i, forward_seconds=forward)
        for i, (ready, forward) in enumerate(shapes)
    ]


def iterate(clock: Clock, work: list[Tensor], seconds: list[float], *, compute: bool = True, **kind: object) -> float:
    network = Network(clock, seconds, **kind)  # type: ignore[arg-type]
    network.declare(work, [])
    began = clock.now
    took, results = replay.iterate(network, work, compute=compute)
    assert [int(result[0]) for result in results] == list(range(len(work)))
    assert network.waited == [index for index, _ in sorted(enumerate(work), key=lambda pair: -pair[1].priority)]
    assert clock.now - began >= took - SMALL
    return took


SHAPES = st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2)), min_size=1, max_size=8)


@given(SHAPES)
def test_with_a_free_network_an_iteration_takes_what_it_computes(shapes):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(replay, "time", clock)
        ready = sorted(shape[0] for shape in shapes)
        work = tensors(*((moment, shape[1]) for moment, shape in zip(ready, shapes, strict=True)))
        computed = ready[-1] + sum(tensor.forward_seconds for tensor in work)
        assert iterate(clock, work, [0.0] * len(work)) == pytest.approx(computed, abs=SMALL)


@given(SHAPES, st.lists(st.floats(0, 2), min_size=8, max_size=8), st.booleans())
def test_an_iteration_is_never_shorter_than_its_computation_or_its_communication(shapes, seconds, by_priority):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(replay, "time", clock)
        ready = sorted(shape[0] for shape in shapes)
        work = tensors(*((moment, shape[1]) for moment, shape in zip(ready, shapes, strict=True)))
        took = iterate(clock, work, seconds, by_priority=by_priority)
        computed = ready[-1] + sum(tensor.forward_seconds for tensor in work)
        sent = sum(seconds[: len(work)])
        assert took >= max(computed, sent) - 1e-3  # the replay ignores what is shorter than its grain
        assert took <= computed + sent + 1e-3


def test_communication_hides_behind_the_backward_pass(clock):
    assert iterate(clock, tensors((1.0, 0.0), (2.0, 0.0)), [0.5, 0.5]) == pytest.approx(2.5)


def test_urgent_tensors_first_let_the_forward_pass_begin_early(clock):
    work = tensors((1.0, 1.0), (1.0, 1.0))
    assert iterate(clock, work, [2.0, 0.5], by_priority=False) == pytest.approx(1 + 2.5 + 2)
    assert iterate(clock, work, [2.0, 0.5], by_priority=True) == pytest.approx(1 + max(0.5 + 1, 2.5) + 1)


def test_a_submission_that_blocks_delays_the_gradients_after_it(clock):
    work = tensors((1.0, 0.0), (2.0, 0.0))
    assert iterate(clock, work, [0.0, 0.0], submit_seconds=0.5) == pytest.approx(1 + 0.5 + 1 + 0.5)


def test_a_warm_up_computes_nothing(clock):
    work = tensors((1.0, 5.0), (2.0, 5.0))
    assert iterate(clock, work, [0.25, 0.25], compute=False) == pytest.approx(0.5)


def test_a_host_that_sleeps_too_long_does_not_make_the_computation_longer(clock, monkeypatch):
    exact = clock.sleep
    monkeypatch.setattr(clock, "sleep", lambda seconds: exact(seconds + 1e-3))
    work = tensors(*((0.01 * step, 0.01) for step in range(100)))
    assert iterate(clock, work, [0.0] * 100) == pytest.approx(0.99 + 1.0, abs=2e-3)


def test_one_by_one_waits_for_each_before_the_next(clock):
    network = Network(clock, [0.5, 0.25])
    work = tensors((0.0, 0.0), (0.0, 0.0))
    network.declare(work, [])
    took, results = replay.iterate_one_by_one(network, work)
    assert took == pytest.approx(0.75)
    assert network.submitted[1] == pytest.approx(1000.5)
    assert [int(result[0]) for result in results] == [0, 1]
