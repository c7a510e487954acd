"""Sums over the GPUs of a machine are right in every order that streams and events allow, and only with all waits."""

import random
from collections import deque
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

from fake_device import FakeDevice, FakeHost, FakeRank, Gpus, Memory, Run  # noqa: E402

from byteps.device_plan import DevicePlan, Way, device_plan, first_gpus, scattered, ways_of  # noqa: E402
from byteps.errors import BytePSError, MismatchError, PeerLostError, StallError  # noqa: E402
from byteps.machine_file import preset  # noqa: E402
from byteps.torch.device import DeviceError  # noqa: E402
from byteps.torch.local_device import LocalDevice, Sum  # noqa: E402

NAMES = ("cpu-assisted", "brute-force", "reduce-scatter", "reduce-broadcast", "60% cpu-assisted + 40% brute-force")
SIZES = {"small": 7, "odd": 1000, "large": 2048}


@pytest.fixture(autouse=True)
def _soon(monkeypatch) -> None:
    monkeypatch.setattr("byteps.torch.local_device._WAIT_STEP_SECONDS", 0.02)
    monkeypatch.setattr("byteps.torch.local_device._VERDICT_SECONDS", 0.1)


def ways(name: str, ranks: int) -> tuple[Way, ...]:
    """On the first GPUs under the two switches of the paper's machine."""
    whole = preset("pcie-only")
    if ranks == 1:
        return scattered(1)
    kept = [*whole.gpus[: ranks // 2], *whole.gpus[4 : 4 + ranks // 2]]
    order = sorted(whole.nodes, key=lambda node: node.kind == "gpu" and node.name not in kept)
    topology = first_gpus(replace(whole, nodes=tuple(order)), ranks)
    return ways_of(topology, name, topology.gpus[-1:] if name == "reduce-broadcast" else ())


class Machine:
    """Local ranks whose programs sum the same tensors for some rounds, each in an order of its own."""

    def __init__(
        self,
        ranks: int,
        way: str,
        seed: int,
        *,
        rounds: int = 2,
        ahead: bool = False,
        device: type = FakeDevice,
        in_place: bool = False,
    ) -> None:
        self.gpus = Gpus(ranks, seed, device)
        self.plans = {name: device_plan(ways(way, ranks), size, 8, 4096) for name, size in SIZES.items()}
        self.host = FakeHost(self.gpus, self.plans, self.elsewhere, in_place=in_place)
        self.hosts = [FakeRank(self.host, rank) for rank in range(ranks)]
        self.locals = [
            LocalDevice(device, host, stall_seconds=60.0)
            for device, host in zip(self.gpus.devices, self.hosts, strict=True)
        ]
        self.hosts[0].peers = self.locals[1:]
        self.ranks, self.rounds, self.results = ranks, rounds, dict[tuple[int, str, int], np.ndarray]()
        self.programs = [self.program(rank, random.Random(seed + rank), ahead) for rank in range(ranks)]
        self.gpus.others += [partial(self.next, program) for program in self.programs]

    def elsewhere(self, name: str, number: int) -> np.ndarray:
        """What other machines contribute."""
        return np.arange(SIZES[name]) % 13 + 1000.0 * number

    def gradient(self, rank: int, name: str, number: int) -> np.ndarray:
        return np.arange(SIZES[name]) % 7 + 100.0 * rank + 10_000.0 * number

    def program(self, rank: int, random_: random.Random, ahead: bool) -> deque:
        """Submit all tensors, then wait for all, round by round; `ahead`: all rounds before the first wait."""
        rounds = []
        for number in range(self.rounds):
            names = random_.sample(list(SIZES), len(SIZES))
            under_way: dict[str, Sum] = {}
            rounds.append(
                (
                    [partial(self.submit, rank, name, number, under_way) for name in names],
                    [(name, number, under_way) for name in random_.sample(names, len(names))],
                )
            )
        if ahead:
            return deque([*(one for begin, _ in rounds for one in begin), *(one for _, end in rounds for one in end)])
        return deque([one for begin, end in rounds for one in (*begin, *end)])

    def next(self, program: deque) -> Run | None:
        if not program:
            return None
        if isinstance(head := program[0], tuple):
            name, number, under_way = head
            if not under_way[name].finished.done():
                return None
            rank = self.programs.index(program)
            return lambda: program.popleft() and self.synchronize(rank, name, number, under_way)
        return lambda: program.popleft()()

    def submit(self, rank: int, name: str, number: int, under_way: dict[str, Sum]) -> None:
        device = self.gpus.devices[rank]
        memory = device.empty(SIZES[name])
        device.compute(partial(np.copyto, memory.data, self.gradient(rank, name, number)))
        under_way[name] = self.locals[rank].submit(name, self.plans[name], memory)

    def synchronize(self, rank: int, name: str, number: int, under_way: dict[str, Sum]) -> None:
        one = under_way.pop(name)
        self.locals[rank].wait(one)
        result = self.results[rank, name, number] = np.full(SIZES[name], np.nan)
        self.gpus.devices[rank].compute(partial(np.copyto, result, one.memory.data))

    def oracle(self, name: str, number: int) -> np.ndarray:
        return sum(self.gradient(rank, name, number) for rank in range(self.ranks)) + self.elsewhere(name, number)

    def wrong(self) -> list[str]:
        """What is not as it should be when nothing can happen any more."""
        found = self.gpus.stuck()
        for rank in range(self.ranks):
            for name in SIZES:
                for number in range(self.rounds):
                    result = self.results.get((rank, name, number))
                    if result is None or not np.array_equal(result, self.oracle(name, number)):
                        found.append(f"{name} of round {number} on rank {rank}: {result}")
        return found


@given(ranks=st.sampled_from([1, 2, 4, 8]), way=st.sampled_from(NAMES), seed=st.integers(0, 2**32), ahead=st.booleans())
@settings(max_examples=60, deadline=None)
def test_sums_are_right_in_every_order(ranks: int, way: str, seed: int, ahead: bool) -> None:
    machine = Machine(ranks, way, seed, ahead=ahead)
    machine.gpus.run()
    assert machine.wrong() == []


@given(ranks=st.sampled_from([1, 2, 4]), seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_one_slot_can_be_the_result_itself(ranks: int, seed: int) -> None:
    machine = Machine(ranks, "reduce-scatter", seed, rounds=3, ahead=True, in_place=True)
    machine.gpus.run()
    assert machine.wrong() == []


class Careless(FakeDevice):
    """Leaves out the waits of one stream for events of another."""

    omitted = ("", "")

    def wait(self, stream, event) -> None:
        if (stream.name.split()[0], event.queue.name.split()[0]) != self.omitted:
            super().wait(stream, event)


WAITS = [("collect", "compute"), ("out", "collect"), ("collect", "back"), ("compute", "collect")]


@pytest.mark.parametrize("omitted", WAITS)
def test_without_any_one_of_its_waits_a_sum_is_wrong(omitted: tuple[str, str]) -> None:
    """So each is needed, and this device would show it if one were missing."""
    careless = type("Careless", (Careless,), {"omitted": omitted})
    wrong = 0
    for seed in range(40):
        machine = Machine(4, NAMES[seed % 2], seed, rounds=3, ahead=True, device=careless)
        machine.gpus.run()
        wrong += machine.wrong() != []
        if wrong:
            return
    raise AssertionError("40 orders, and no wrong sum")


def test_a_host_that_does_not_wait_for_the_copies_sends_what_is_not_there() -> None:
    class Hasty(FakeDevice):
        def watch(self, event, done) -> None:
            event.queue.notices.append(partial(done, None))

    machine = Machine(2, "cpu-assisted", 1, device=Hasty)
    machine.gpus.run()
    assert machine.wrong()


def test_memory_is_referred_to_until_nothing_queued_uses_it() -> None:
    """A user lets go of everything at once; the next kernels on its stream write over memory that is free."""

    class Forgetful(LocalDevice):
        def _reached(self, then):
            return super()._reached((lambda: None) if then.func.__name__ == "_ended" else then)

        def submit(self, name, plan, memory, *kept):
            return super().submit(name, plan, Memory(memory.data), *kept)

    machine = Machine(2, "cpu-assisted", 3)
    machine.locals = [
        Forgetful(device, host, stall_seconds=60.0)
        for device, host in zip(machine.gpus.devices, machine.hosts, strict=True)
    ]
    machine.hosts[0].peers = machine.locals[1:]
    machine.gpus.run()
    assert machine.wrong()


def test_collectives_in_different_orders_wait_for_each_other_for_ever() -> None:
    """Why local rank 0 gives turns: this device knows what NCCL does then."""
    stuck = 0
    for seed in range(10):
        machine = Machine(4, "reduce-scatter", seed)
        for local in machine.locals:
            _decide_for_themselves(local)
        machine.hosts[0].peers = []
        machine.gpus.run()
        stuck += bool(machine.gpus.stuck())
    assert stuck


def _decide_for_themselves(local: LocalDevice) -> None:
    def attempt(name, half) -> None:
        if local._possible(name, half):
            local._turns.append((name, half))

    local._try = attempt


def one_sum(machine: Machine, rank: int = 0) -> Sum:
    under_way: dict[str, Sum] = {}
    machine.submit(rank, "odd", 0, under_way)
    return under_way["odd"]


def idle(ranks: int = 2, device: type = FakeDevice) -> Machine:
    return Machine(ranks, "reduce-scatter", 0, rounds=0, device=device)


def test_a_failing_operation_is_the_error_of_every_sum_and_the_others_are_told() -> None:
    class Broken(FakeDevice):
        def collect(self, stream, step, memory) -> None:
            raise RuntimeError("NCCL error: unhandled system error")

    machine = idle(device=Broken)
    one = one_sum(machine)
    with pytest.raises(DeviceError, match="summing on this machine's GPUs failed: RuntimeError: NCCL error"):
        machine.locals[0].wait(one)
    with pytest.raises(DeviceError, match="NCCL error"):
        one_sum(machine)
    assert isinstance(machine.host.failed, DeviceError)
    assert machine.gpus.devices[0].aborted


def test_memory_that_cannot_be_pinned_is_the_error_of_the_sum() -> None:
    class Full(FakeDevice):
        def pin(self, memory, like):
            raise DeviceError("pinning 8,192 bytes of shared memory failed")

    machine = idle(device=Full)
    with pytest.raises(DeviceError, match="pinning 8,192 bytes"):
        machine.locals[0].wait(one_sum(machine))
    assert isinstance(machine.host.failed, DeviceError)


def test_the_job_s_verdict_on_a_failure_here_is_the_error_of_all() -> None:
    class Broken(FakeDevice):
        def collect(self, stream, step, memory) -> None:
            raise RuntimeError("NCCL error")

    machine = idle(device=Broken)
    one = one_sum(machine)
    later = one_sum(machine)
    machine.host.over = PeerLostError("worker 0: NCCL error")
    for waits in (one, later):
        with pytest.raises(PeerLostError, match="worker 0: NCCL error"):
            machine.locals[0].wait(waits)
    with pytest.raises(PeerLostError, match="worker 0: NCCL error"):
        one_sum(machine)


def test_an_event_that_fails_is_the_error_of_the_sum() -> None:
    class Faulty(FakeDevice):
        def watch(self, event, done) -> None:
            super().watch(event, lambda _: done(RuntimeError("an illegal memory access was encountered")))

    machine = idle(device=Faulty)
    sums = [one_sum(machine, rank) for rank in range(2)]
    machine.gpus.run()
    for local, one in zip(machine.locals, sums, strict=True):
        with pytest.raises(DeviceError, match="illegal memory access"):
            local.wait(one)


def test_a_sum_that_another_local_rank_does_not_take_part_in_is_an_error_in_time() -> None:
    for rank, said in ((0, "is being added up on the GPUs"), (1, "waits for its turn")):
        machine = idle()
        machine.locals[rank]._stall_seconds = 0.1
        one = one_sum(machine, rank)
        machine.gpus.run()
        with pytest.raises(StallError, match=f"tensor 'odd' on local rank {rank} {said}.*do all workers"):
            machine.locals[rank].wait(one)


def test_a_job_that_is_over_is_the_error_of_what_waits_for_its_turn() -> None:
    machine = idle()
    one = one_sum(machine, 1)
    machine.host.over = PeerLostError("lost worker 3")
    with pytest.raises(PeerLostError, match="lost worker 3"):
        machine.locals[1].wait(one)


def test_a_name_that_is_another_tensor_s_gets_the_job_s_verdict() -> None:
    machine, asked = idle(), []
    one = machine.locals[0].refused("odd", machine.gpus.devices[0].empty(3), asked.append)
    assert not one.finished.done()
    asked[0](MismatchError("worker 0 and worker 1 disagree"))
    with pytest.raises(MismatchError, match="disagree"):
        machine.locals[0].wait(one)


def test_closing_lets_go_of_registered_memory_and_ends_what_is_under_way() -> None:
    machine = idle()
    one = one_sum(machine)
    assert machine.gpus.devices[0].pinned == 2
    machine.locals[0].close()
    assert machine.gpus.devices[0].pinned == 0
    with pytest.raises(BytePSError, match="after shutdown"):
        machine.locals[0].wait(one)


def test_results_of_the_host_that_come_after_a_failure_change_nothing() -> None:
    machine = idle()
    sums = [one_sum(machine, rank) for rank in range(2)]
    machine.locals[1].fail(PeerLostError("the job is over"))
    machine.gpus.run()
    with pytest.raises(PeerLostError, match="the job is over"):
        machine.locals[1].wait(sums[1])


def test_plans_cover_the_programs_here() -> None:
    for name in NAMES:
        for plan in (device_plan(ways(name, 4), size, 8, 4096) for size in SIZES.values()):
            assert isinstance(plan, DevicePlan)
            assert plan.ranks == 4
