"""A worker's order of transfers, without a job: what it declares, starts and holds back."""

import threading

from byteps.communication import Transfer
from byteps.wire import Declare, Op, TensorEntry, TensorSpec
from byteps.worker import Worker, _Tensor


class Recorder:
    """Stands for the scheduler's link and for the communication service."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.started: list[Transfer] = []

    def send(self, message: object) -> None:
        self.sent.append(message)

    def submit(self, transfer: Transfer) -> None:
        self.started.append(transfer)

    def pump(self) -> None:
        pass


def worker_with(spec: TensorSpec) -> tuple[Worker, Recorder]:
    """A worker in a job that has registered this tensor."""
    worker, recorder = object.__new__(Worker), Recorder()
    worker._lock = threading.Lock()
    worker._error, worker._leaving, worker._registering, worker._outstanding = None, False, False, 0
    worker._unregistered, worker._contradictions, worker._callbacks = [], [], {}
    worker._link = worker._communication = recorder
    worker._tensors = {spec.name: _Tensor(spec, TensorEntry(spec=spec, number=0, cut_nbytes=64, owners=(0,)))}
    return worker, recorder


def test_a_second_use_with_another_operation_is_never_sent():
    """Otherwise it could return the first operation's kind of result before the scheduler's verdict arrives."""
    total = TensorSpec(name="a", shape=(1,), dtype="float32", op=Op.SUM)
    mean = TensorSpec(name="a", shape=(1,), dtype="float32", op=Op.AVERAGE)
    worker, recorder = worker_with(total)
    data = memoryview(bytearray(4))
    worker.submit(total, data, data, 0)
    pending = worker.submit(mean, data, data, 0)
    worker._completed(recorder.started[0])
    assert [transfer.entry.spec for transfer in recorder.started] == [total]
    assert recorder.sent == [Declare(specs=(mean,), barrier=False)]
    assert pending.locked()


def test_transfers_of_one_tensor_follow_one_another():
    total = TensorSpec(name="a", shape=(1,), dtype="float32", op=Op.SUM)
    worker, recorder = worker_with(total)
    data = memoryview(bytearray(4))
    waits = [worker.submit(total, data, data, 0) for _ in range(3)]
    for number in range(3):
        assert [transfer.round for transfer in recorder.started] == list(range(number + 1))
        worker._completed(recorder.started[-1])
        assert [wait.locked() for wait in waits] == [False] * (number + 1) + [True] * (2 - number)
