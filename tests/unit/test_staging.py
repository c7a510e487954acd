"""The order of things between a GPU's copies and the network, with streams and events that only record."""

import threading
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from byteps.session import LOCAL_GROUP  # noqa: E402
from byteps.torch import tensors  # noqa: E402
from byteps.torch.staging import Stager  # noqa: E402
from byteps.wire import Op, TensorSpec  # noqa: E402

PATIENCE = 20.0


class OnDevice(torch.Tensor):
    """A tensor that remembers the stream which its memory is kept for."""

    def record_stream(self, stream: object) -> None:
        self.kept_for = stream


class Device:
    """A device whose copies end when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.copied = threading.Semaphore(0)
        device = self

        class Stream:
            def __init__(self, _: object) -> None:
                device.log.append("a side stream is made")

            def wait_stream(self, other: object) -> None:
                device.log.append(f"side waits for {other}")

        class Event:
            def record(self, _: object) -> None:
                device.log.append("the end of the copy is marked")

            def synchronize(self) -> None:
                assert device.copied.acquire(timeout=PATIENCE)
                device.log.append("copied")

        @contextmanager
        def stream(_: object):
            device.log.append("on the side stream")
            yield
            device.log.append("off the side stream")

        for name, value in {"Stream": Stream, "Event": Event, "stream": stream}.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "compute")
        monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)


@pytest.fixture
def device(monkeypatch) -> Device:
    return Device(monkeypatch)


def test_what_is_copied_is_submitted_when_the_copy_has_ended_and_not_before(device):
    source, host = torch.arange(4.0).as_subclass(OnDevice), torch.zeros(4)
    future = Stager().stage(source, host, lambda: device.log.append("submitted"))
    assert not future.done()
    device.copied.release()
    future.result(timeout=PATIENCE)
    assert device.log == [
        "a side stream is made",
        "side waits for compute",
        "on the side stream",
        "the end of the copy is marked",
        "off the side stream",
        "copied",
        "submitted",
    ]
    assert torch.equal(host, torch.arange(4.0))
    assert source.kept_for is not None


def test_copies_are_submitted_in_their_order_and_a_failure_is_whose_it_is(device):
    stager, submitted = Stager(), []

    def submit(number: int):
        if number == 1:
            raise RuntimeError("the job is over")
        submitted.append(number)

    futures = [
        stager.stage(torch.zeros(1).as_subclass(OnDevice), torch.zeros(1), lambda number=number: submit(number))
        for number in range(4)
    ]
    device.copied.release(4)
    for number in (0, 2, 3):
        futures[number].result(timeout=PATIENCE)
    with pytest.raises(RuntimeError, match="the job is over"):
        futures[1].result(timeout=PATIENCE)
    assert submitted == [0, 2, 3]
    assert device.log.count("a side stream is made") == 1


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    @property
    def device(self):
        return torch.device("cuda", 0)


def test_with_several_gpus_on_a_machine_sums_go_their_way_and_copies_do_not(monkeypatch):
    log, over = [], Future()

    class Gpu:
        def begin(self, spec, source, result, priority):
            log.append((spec.name, priority))
            return SimpleNamespace(over=over, wait=lambda: log.append("waited"))

    class Staged(Exception):
        pass

    def stager():
        raise Staged

    session = SimpleNamespace(plugins={LOCAL_GROUP: object(), "gpu": Gpu()}, poll=lambda handle: handle.pending is None)
    session.finish = lambda handle: log.append("finished")
    monkeypatch.setattr(tensors, "current", lambda: session)
    monkeypatch.setattr(tensors, "_stager", stager)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: torch.zeros(3))
    source = torch.ones(3).as_subclass(OnGpu)
    spec = TensorSpec(name="gradient", shape=(3,), dtype="float32", op=Op.AVERAGE)
    handle = tensors.begin(session, spec, source, source, 7)
    assert not tensors.poll(handle)
    over.set_result(None)
    assert tensors.poll(handle)
    assert tensors.synchronize(handle) is source
    assert log == [("gradient", 7), "waited", "finished"]
    copy = TensorSpec(name="weights", shape=(3,), dtype="float32", op=Op.COPY)
    with pytest.raises(Staged):
        tensors.begin(session, copy, source, source)
    session.plugins = {}
    with pytest.raises(Staged):
        tensors.begin(session, spec, source, source)
