"""The switch that sums: exact once whatever the network does, errors within the bound, and who is at fault."""

import math
import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps import aggregation
from byteps.aggregation import AggregationError, Packet, Send, Switch, Window

BLOCK = 4
NOTHING = np.zeros(0, dtype=np.int32)


@dataclass
class Worker:
    """A window and the tensors behind it, as a process has them."""

    rank: int
    workers: int
    window: Window
    tensors: list[np.ndarray] = field(default_factory=list)
    finished: list[bool] = field(default_factory=list)

    def submit(self, tensor: np.ndarray, now: float) -> list[Packet]:
        number, sends = self.window.submit(math.ceil(len(tensor) / BLOCK), now)
        assert number == len(self.tensors)
        self.tensors.append(tensor)
        self.finished.append(len(tensor) == 0)
        return [self.packet(one) for one in sends]

    def packet(self, send: Send) -> Packet:
        tensor = self.tensors[send.transfer]
        ahead, integers = aggregation.NO_EXPONENT, NOTHING
        if send.ahead >= 0:
            ahead = aggregation.exponent(self.part(tensor, send.ahead))
        if send.block >= 0:
            part = self.part(tensor, send.block)
            integers = np.zeros(len(part), dtype=np.int32)
            aggregation.encode(part, send.agreed, aggregation.bits(self.workers), integers)
        return Packet(step=send.step, what=send.transfer, ahead=ahead, integers=integers)

    def result(self, packet: Packet, now: float) -> list[Packet]:
        arrived = self.window.arrived(packet.step, packet.ahead, now)
        if arrived is None:
            return []
        if arrived.block >= 0:
            part = self.part(self.tensors[arrived.transfer], arrived.block)
            aggregation.decode(packet.integers, arrived.agreed, aggregation.bits(self.workers), part)
        assert not self.finished[arrived.transfer]
        self.finished[arrived.transfer] = arrived.finished
        return [self.packet(one) for one in arrived.sends]

    @staticmethod
    def part(tensor: np.ndarray, block: int) -> np.ndarray:
        return tensor[block * BLOCK : (block + 1) * BLOCK]


def copied(packet: Packet) -> Packet:
    return Packet(step=packet.step, what=packet.what, ahead=packet.ahead, integers=packet.integers.copy())


def run(tensors: list[list[np.ndarray]], pool: int, seed: int, loss: float, again: float) -> list[Worker]:
    """All tensors of all ranks over a network that reorders, loses and doubles; workers begin when they like."""
    chance, now = random.Random(seed), 0.0
    workers = len(tensors)
    switch = Switch(workers=workers, pool=pool, block=BLOCK)
    nodes = [Worker(rank, workers, Window(pool=pool, timeout_seconds=1.0)) for rank in range(workers)]
    to_come = [list(own) for own in tensors]
    flying: list[tuple[int, bool, Packet]] = []  # worker, whether it goes to the switch, and what

    def throw(worker: int, up: bool, packets: list[Packet]) -> None:
        for packet in packets:
            if chance.random() >= loss:
                flying.extend([(worker, up, copied(packet))] * (2 if chance.random() < again else 1))

    for _ in range(200_000):
        if all(not left for left in to_come) and all(all(node.finished) for node in nodes):
            return nodes
        late_starters = [rank for rank, left in enumerate(to_come) if left]
        if late_starters and (not flying or chance.random() < 0.2):
            rank = chance.choice(late_starters)
            throw(rank, True, nodes[rank].submit(to_come[rank].pop(0), now))
        elif flying:
            worker, up, packet = flying.pop(chance.randrange(len(flying)))
            if not up:
                throw(worker, True, nodes[worker].result(packet, now))
            elif answer := switch.receive(worker, packet):
                for receiver in answer.to:
                    throw(receiver, False, [answer.packet])
        else:
            now = min(node.window.next_late() for node in nodes)
            for node in nodes:
                throw(node.rank, True, [node.packet(one) for one in node.window.late(now)])
    raise AssertionError("no progress")


@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([0.0, 0.3]),
)
def test_every_contribution_is_in_the_sum_once_whatever_is_lost_doubled_or_late(
    workers: int, pool: int, sizes: list[int], seed: int, loss: float, again: float
) -> None:
    data = np.random.default_rng(seed)
    tensors = [[data.integers(-1000, 1001, size).astype(np.float32) for size in sizes] for _ in range(workers)]
    sums = [sum(own[index].astype(np.float64) for own in tensors) for index in range(len(sizes))]
    for node in run(tensors, pool, seed, loss, again):
        for tensor, total in zip(node.tensors, sums, strict=True):
            assert (tensor == total).all()


@given(st.integers(1, 40), st.integers(0, 2**32), st.integers(-140, 120))
def test_floats_are_off_by_no_more_than_the_bound(workers: int, seed: int, size: int) -> None:
    """Magnitudes differ by orders within a block; the largest exponent is everyone's."""
    data = np.random.default_rng(seed)
    with np.errstate(under="ignore"):
        blocks = np.ldexp(data.uniform(-1, 1, (workers, 64)), size - data.integers(0, 30, (workers, 64)))
        blocks = blocks.astype(np.float32)
    agreed = max(aggregation.exponent(one) for one in blocks)
    total = np.zeros(64, dtype=np.int32)
    for one in blocks:
        own = np.empty(64, dtype=np.int32)
        aggregation.encode(one, agreed, aggregation.bits(workers), own)
        total += own
    result = np.empty(64, dtype=np.float64)
    aggregation.decode(total, agreed, aggregation.bits(workers), result)
    exact = blocks.astype(np.float64).sum(axis=0)
    assert (np.abs(result - exact) <= aggregation.error_bound(agreed, workers)).all()


@pytest.mark.parametrize("workers", [1, 2, 3, 16, 17, 1024])
@pytest.mark.parametrize("value", [-1.0, 1 - 2**-24, 3e38, 1e-40])
def test_equal_extremes_of_all_workers_do_not_overflow(workers: int, value: float) -> None:
    block = np.full(3, value, dtype=np.float32)
    agreed, num_bits = aggregation.exponent(block), aggregation.bits(workers)
    own = np.empty(3, dtype=np.int32)
    aggregation.encode(block, agreed, num_bits, own)
    total = own.astype(np.int64) * workers
    assert (total == total.astype(np.int32)).all()
    result = np.empty(3)
    aggregation.decode(total.astype(np.int32), agreed, num_bits, result)
    assert abs(result[0] - float(block[0]) * workers) <= aggregation.error_bound(agreed, workers)


def test_an_exponent_is_the_least_power_of_two_above_all() -> None:
    assert [aggregation.exponent(np.float32([value])) for value in (1.0, -0.5, 0.75, 1000, 2**-149)] == [
        *(1, 0, 0, 10),
        -148,
    ]
    assert aggregation.exponent(np.zeros(3, dtype=np.float32)) == aggregation.ZERO < -149
    assert aggregation.exponent(np.float32([1.0, math.nan])) == aggregation.NOT_FINITE
    assert aggregation.exponent(np.float16([-math.inf])) == aggregation.NOT_FINITE


def test_what_is_not_finite_for_one_is_not_a_number_for_all_and_zeros_are_zero() -> None:
    tensors = [[np.float32([1, 2, 3, 4, 0, 0])], [np.float32([1, math.inf, 3, 4, 0, 0])]]
    for node in run(tensors, pool=2, seed=0, loss=0.0, again=0.0):
        assert np.isnan(node.tensors[0][:4]).all()
        assert (node.tensors[0][4:] == 0).all()


def test_half_precision_is_summed_exactly_and_too_large_sums_are_infinite() -> None:
    tensors = [[np.float16([100, -3, 65504])] for _ in range(3)]
    for node in run(tensors, pool=2, seed=0, loss=0.0, again=0.0):
        assert node.tensors[0].tolist() == [300, -9, math.inf]


def packet(step: int, value: int = 1, what: int = 0, size: int = BLOCK) -> Packet:
    return Packet(step=step, what=what, ahead=value, integers=np.full(size, value, dtype=np.int32))


def test_the_last_that_is_missing_brings_the_sum_to_all_and_repetitions_ask_for_it_again() -> None:
    switch = Switch(workers=2, pool=1, block=BLOCK)
    assert switch.receive(0, packet(0, 1)) is None
    assert switch.receive(0, packet(0, 1)) is None  # counted once, no answer yet
    assert switch.waiting_for() == (1,)
    answer = switch.receive(1, packet(0, 2))
    assert answer is not None
    assert (answer.to, answer.packet.ahead, answer.packet.integers.tolist()) == ((0, 1), 2, [3] * BLOCK)
    asked = switch.receive(0, packet(0, 1))
    assert asked is not None
    assert (asked.to, asked.packet.integers.tolist()) == ((0,), [3] * BLOCK)


def test_a_slot_keeps_its_last_sum_while_the_next_is_made_and_ignores_what_is_older() -> None:
    switch = Switch(workers=2, pool=1, block=BLOCK)
    for step in (0, 1):
        assert switch.receive(0, packet(step, 1)) is None
        if step == 0:
            assert switch.receive(1, packet(step, 2)) is not None
    again = switch.receive(1, packet(0, 2))  # worker 1 lost the result of step 0; worker 0 is in step 1
    assert again is not None
    assert (again.packet.step, again.packet.integers.tolist()) == (0, [3] * BLOCK)
    assert switch.receive(1, packet(1, 5)) is not None
    assert switch.receive(0, packet(2, 7)) is None  # the version of step 0 is used again
    assert switch.receive(1, packet(0, 100)) is None
    answer = switch.receive(1, packet(2, 8))
    assert answer is not None
    assert answer.packet.integers.tolist() == [15] * BLOCK


@pytest.mark.parametrize("other", [packet(0, what=1), packet(0, size=2)])
def test_another_tensor_is_refused_with_the_names_of_both(other: Packet) -> None:
    switch = Switch(workers=3, pool=4, block=BLOCK)
    switch.receive(2, packet(0))
    with pytest.raises(AggregationError, match=r"worker 1 sends another tensor, .* than worker 2 in step 0"):
        switch.receive(1, other)


def test_a_worker_that_runs_ahead_of_its_slot_is_refused() -> None:
    switch = Switch(workers=2, pool=1, block=BLOCK)
    switch.receive(0, packet(0))
    with pytest.raises(AggregationError, match="worker 0 is in step 2, while step 0"):
        switch.receive(0, packet(2))


def test_no_more_than_the_pool_is_under_way_and_a_result_lets_the_next_step_go() -> None:
    window = Window(pool=4, timeout_seconds=1.0)
    _, sends = window.submit(10, now=0.0)
    assert [(one.step, one.block, one.ahead) for one in sends] == [(step, -1, step) for step in range(4)]
    arrived = window.arrived(2, 7, now=0.0)
    assert arrived is not None
    assert [(one.step, one.block, one.agreed, one.ahead) for one in arrived.sends] == [(6, 2, 7, 6)]
    assert window.arrived(2, 7, now=0.0) is None  # again


def test_a_small_tensor_does_not_hold_up_the_next() -> None:
    """Its integers wait for their exponent; the exponents of the others need not."""
    window = Window(pool=8, timeout_seconds=1.0)
    sends = [one for _ in range(3) for one in window.submit(1, now=0.0)[1]]
    assert [one.step for one in sends] == [0, 2, 4]
    arrived = window.arrived(2, 0, now=0.0)
    assert arrived is not None
    assert [one.step for one in arrived.sends] == [3]


def test_time_outs_double_up_to_a_limit() -> None:
    window = Window(pool=1, timeout_seconds=1.0)
    assert window.next_late() == math.inf
    window.submit(1, now=0.0)
    dues = []
    for _ in range(8):
        due = window.next_late()
        assert window.late(due - 0.01) == []
        assert len(window.late(due)) == 1
        dues.append(due)
    assert np.diff(dues).tolist() == [2, 4, 8, 16, 16, 16, 16]


@pytest.mark.parametrize("workers", [0, aggregation.MOST_WORKERS + 1])
def test_the_number_of_workers_is_limited(workers: int) -> None:
    with pytest.raises(ValueError, match=f"{workers} workers; a switch sums for 1 to 1024"):
        Switch(workers=workers, pool=1, block=1)
