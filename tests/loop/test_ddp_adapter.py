"""DDP, driven gradient by gradient: its buckets, its overlap, its results in place."""

import gc
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from baselines.session import Array, Tensor

ddp_adapter = pytest.importorskip("baselines.adapters.ddp_adapter", reason="torch is not installed")

COUNT, NUMEL = 8, 1000
TENSORS = [Tensor(name=f"t{i}", numel=NUMEL, dtype="float32", ready_seconds=i / 100) for i in range(COUNT)]


@pytest.fixture
def reduced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Elements of the buckets that were handed to the network, in order."""
    buckets: list[int] = []
    plain = ddp_adapter._sum

    def counted(group, bucket):
        buckets.append(bucket.buffer().numel())
        return plain(group, bucket)

    monkeypatch.setattr(ddp_adapter, "_sum", counted)
    return buckets


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """For the whole module: gloo keeps a few files of its first process group open for ever."""
    two_each = str(2 * 4 * NUMEL)
    store = tmp_path_factory.mktemp("ddp") / "store"
    settings = {"backend": "gloo", "rendezvous": f"file://{store}", "bucket": two_each, "first": two_each}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        session = ddp_adapter.start(rank=0, size=1, settings=settings)
    yield session
    session.close()


@pytest.fixture
def session(group) -> Iterator[object]:
    yield group
    group._end()
    gc.collect()  # a module and its hooks refer to each other


def gradients() -> list[Array]:
    return [np.full(NUMEL, index, np.float32) for index in range(COUNT)]


def iterate(session, arrays: list[Array]) -> None:
    for index in range(COUNT):
        session.submit(index)
    for index, array in enumerate(arrays):
        result = session.wait(index)
        assert np.shares_memory(result, array)
        assert (result == index).all()


def test_buckets_have_the_wanted_size_and_sums_land_in_the_gradients(reduced, session):
    arrays = gradients()
    session.declare(TENSORS, arrays)
    for _ in range(3):
        reduced.clear()
        iterate(session, arrays)
        assert reduced == [2 * NUMEL] * (COUNT // 2)


def test_a_bucket_is_under_way_while_later_gradients_are_not_ready(reduced, session):
    arrays = gradients()
    session.declare(TENSORS, arrays)
    iterate(session, arrays)
    reduced.clear()
    for index in range(5):
        session.submit(index)
    deadline = time.monotonic() + 20
    while len(reduced) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert reduced == [2 * NUMEL] * 2
    waiting = threading.Thread(target=session.wait, args=(0,), daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()  # DDP is through with nothing before it is through with everything
    for index in range(5, COUNT):
        session.submit(index)
    waiting.join(20)
    assert not waiting.is_alive()
    assert len(reduced) == 4


def test_another_workload_has_a_module_of_its_own(reduced, session):
    session.declare(TENSORS, gradients())
    half = [Tensor(name="half", numel=3, dtype="float16")]
    array = np.array([1, 2, 3], np.float16)
    session.declare(half, [array])
    for _ in range(2):
        session.submit(0)
        np.testing.assert_array_equal(session.wait(0), [1, 2, 3])
