"""A worker's order of transfers, without a job: what it declares, starts and holds back."""

import pytest

from byteps.communication import Transfer
from byteps.errors import BytePSError, PeerLostError
from byteps.registry import Registry
from byteps.wire import Op, TensorEntry, TensorSpec


class Recorder:
    """Stands for the scheduler and for the communication service."""

    def __init__(self) -> None:
        self.declared: list[tuple[TensorSpec, ...]] = []
        self.started: list[Transfer] = []

    def tune(self, cut_nbytes: int) -> None:
        pass

    def submit(self, transfer: Transfer) -> None:
        self.started.append(transfer)

    def pump(self) -> None:
        pass

    def stop(self) -> list[Transfer]:
        return self.started


def registry_with(spec: TensorSpec) -> tuple[Registry, Recorder]:
    """A worker's in a job that has registered this tensor."""
    recorder = Recorder()
    registry = Registry(recorder, recorder.declared.append)
    registry.register((TensorEntry(spec=spec, number=0, cut_nbytes=64, owners=(0,)),))
    return registry, recorder


def test_a_second_use_with_another_operation_is_never_sent():
    """Otherwise it could return the first operation's kind of result before the scheduler's verdict arrives."""
    total = TensorSpec(name="a", shape=(1,), dtype="float32", op=Op.SUM)
    mean = TensorSpec(name="a", shape=(1,), dtype="float32", op=Op.AVERAGE)
    registry, recorder = registry_with(total)
    data = memoryview(bytearray(4))
    registry.submit(total, data, data, 0)
    pending = registry.submit(mean, data, data, 0)
    registry.completed(recorder.started[0])
    assert [transfer.entry.spec for transfer in recorder.started] == [total]
    assert recorder.declared == [(mean,)]
    assert pending.locked()


def test_transfers_of_one_tensor_follow_one_another():
    total = TensorSpec(name="a", shape=(1,), dtype="float32", op=Op.SUM)
    registry, recorder = registry_with(total)
    data = memoryview(bytearray(4))
    waits = [registry.submit(total, data, data, 0) for _ in range(3)]
    for number in range(3):
        assert [transfer.round for transfer in recorder.started] == list(range(number + 1))
        registry.completed(recorder.started[-1])
        assert [wait.locked() for wait in waits] == [False] * (number + 1) + [True] * (2 - number)


def test_the_end_of_the_job_releases_all_that_wait_and_refuses_what_comes():
    total = TensorSpec(name="a", shape=(1,), dtype="float32", op=Op.SUM)
    other = TensorSpec(name="b", shape=(1,), dtype="float32", op=Op.SUM)
    registry, _ = registry_with(total)
    data = memoryview(bytearray(4))
    waits = [registry.submit(spec, data, data, 0) for spec in (total, total, other)]
    waits.append(registry.submit(TensorSpec(name="a", shape=(1,), dtype="float32", op=Op.AVERAGE), data, data, 0))
    assert registry.leave() == 4
    error = PeerLostError("lost worker 1")
    assert registry.fail(error)
    assert not registry.fail(BytePSError("later"))
    assert not any(wait.locked() for wait in waits)
    with pytest.raises(PeerLostError, match="lost worker 1"):
        registry.submit(total, data, data, 0)


def test_names_go_out_together_while_a_batch_is_under_way():
    first = TensorSpec(name="a", shape=(1,), dtype="float32", op=Op.SUM)
    registry, recorder = registry_with(first)
    specs = [TensorSpec(name=name, shape=(1,), dtype="float32", op=Op.SUM) for name in "bcd"]
    data = memoryview(bytearray(4))
    for spec in specs:
        registry.submit(spec, data, data, 0)
    assert recorder.declared == [(specs[0],)]
    registry.register((TensorEntry(spec=specs[0], number=1, cut_nbytes=64, owners=(0,)),))
    assert recorder.declared == [(specs[0],), (specs[1], specs[2])]
    assert [transfer.entry.spec for transfer in recorder.started] == [specs[0]]
