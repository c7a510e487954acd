"""The switch that sums over loopback: sums with losses, and every way to lose somebody."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from baselines import contenders, switch, switch_worker
from baselines.switch import Service, Shape, SwitchError
from baselines.switch_wire import HEADER, Talk, job_tag
from baselines.switch_worker import Endpoint
from byteps.handshake import connect
from experiments import here
from experiments.record import Case

SECRET = bytes(16)
SIZES = (100_003, 7, 1, 0, 256)
LOCAL = "127.0.0.1"


@contextmanager
def service(shape: Shape, *, loss: float = 0.0, join_seconds: float = 20.0) -> Iterator[tuple[int, list[str]]]:
    """A switch in this process: its port, and how it ended, "" if well, once it has."""
    port, ended = here.free_port(), list[str]()
    running = Service(shape, LOCAL, port, SECRET, loss=loss, seed=1)

    def run() -> None:
        try:
            running.run(join_seconds=join_seconds)
            ended.append("")
        except SwitchError as error:
            ended.append(str(error))

    thread = threading.Thread(target=run, name="the switch")
    thread.start()
    try:
        yield port, ended
    finally:
        thread.join(30)
        assert not thread.is_alive()


def join(shape: Shape, port: int, ranks: range, *, loss: float = 0.0) -> list[Endpoint]:
    def start(rank: int) -> Endpoint:
        return Endpoint(shape, rank, (LOCAL, port), SECRET, timeout_seconds=0.02, loss=loss, seed=1, join_seconds=20.0)

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(start, ranks))


def together(*calls: Callable[[], object]) -> list[str]:
    """What each raises, "" for nothing."""

    def told(call: Callable[[], object]) -> str:
        try:
            call()
        except SwitchError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(told, calls))


def stranger(shape: Shape, port: int, rank: int) -> tuple[Talk, socket.socket]:
    """One that joins as a worker and does nothing more."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((LOCAL, 0))
    talk = Talk(connect(LOCAL, port, SECRET, time.monotonic() + 10, what="the switch"))
    said = {"rank": rank, "port": udp.getsockname()[1], "n": shape.workers, "pool": shape.pool, "block": shape.block}
    talk.say(b"J", json.dumps(said))
    return talk, udp


@pytest.mark.parametrize(("workers", "pool", "loss"), [(2, 1, 0.0), (4, 8, 0.0), (4, 8, 0.05), (3, 64, 0.2)])
def test_sums_are_exact_on_all_workers_whatever_is_lost(workers: int, pool: int, loss: float) -> None:
    shape = Shape(workers=workers, pool=pool, block=2048)
    with service(shape, loss=loss) as (port, ended):
        endpoints = join(shape, port, range(workers), loss=loss)
        for iteration in range(2):
            arrays = {
                (rank, size): np.arange(size, dtype=np.float32) % 97 + rank * 1000 + iteration
                for rank in range(workers)
                for size in SIZES
            }
            expected = {size: sum(arrays[rank, size].astype(np.float64) for rank in range(workers)) for size in SIZES}
            numbers = [[one.submit(size, arrays[rank, size]) for size in SIZES] for rank, one in enumerate(endpoints)]
            for own, endpoint in zip(numbers, endpoints, strict=True):
                for number in own:
                    endpoint.wait(number, seconds=30)
            for (rank, size), array in arrays.items():
                assert (array == expected[size]).all(), (rank, size)
        for endpoint in endpoints:
            endpoint.close()
    assert ended == [""]
    assert (sum(one.again for one in endpoints) > 0) or not loss


def test_a_lost_worker_is_named_on_all_others_within_seconds() -> None:
    shape = Shape(workers=3, pool=4, block=64)
    with service(shape) as (port, ended):
        talk, udp = stranger(shape, port, 2)
        first, second = join(shape, port, range(2))
        number = first.submit(0, np.ones(1000, dtype=np.float32))
        began = time.monotonic()
        talk.close()
        errors = together(
            lambda: first.wait(number, seconds=30),
            lambda: second.wait(second.submit(0, np.ones(1000, dtype=np.float32)), seconds=30),
        )
        assert time.monotonic() - began < 5
        with pytest.raises(SwitchError, match="lost worker 2"):
            first.submit(1, np.ones(1, dtype=np.float32))
        for endpoint in (first, second):
            endpoint.close()
        udp.close()
    assert errors == ended * 2
    assert ended[0].startswith("lost worker 2: ")


def test_a_silent_worker_and_a_silent_switch_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(switch, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(switch_worker, "BEAT_SECONDS", 0.1)
    shape = Shape(workers=2, pool=4, block=64)
    with service(shape) as (port, ended):
        talk, udp = stranger(shape, port, 1)
        (endpoint,) = join(shape, port, range(1))
        errors = together(lambda: endpoint.wait(endpoint.submit(0, np.ones(1, dtype=np.float32)), seconds=30))
        endpoint.close()
        talk.close()
        udp.close()
    assert errors == ended
    assert "lost worker 1: it has been silent" in ended[0]


def test_the_loss_of_the_switch_is_named_within_seconds() -> None:
    shape, port = Shape(workers=2, pool=4, block=64), here.free_port()
    settings = {"n": 2, "pool": 4, "block": 64, "switch": LOCAL, "port": port, "secret": SECRET.hex()}
    argv = [sys.executable, "-m", "baselines.switch", "--settings", json.dumps({**settings, "loss": 0, "seed": 0})]
    with subprocess.Popen(argv, cwd=Path(__file__).parents[2]) as process:
        endpoints = join(shape, port, range(2))
        number = endpoints[0].submit(0, np.ones(1000, dtype=np.float32))
        process.kill()
        process.wait(10)
        began = time.monotonic()
        (error,) = together(lambda: endpoints[0].wait(number, seconds=30))
        assert error.startswith("lost the switch: ")
        assert time.monotonic() - began < 5
        for endpoint in endpoints:
            endpoint.close()


def test_a_worker_that_leaves_while_others_wait_for_it_is_named() -> None:
    shape = Shape(workers=2, pool=4, block=64)
    with service(shape) as (port, ended):
        first, second = join(shape, port, range(2))
        number = first.submit(0, np.ones(1000, dtype=np.float32))
        second.close()
        (error,) = together(lambda: first.wait(number, seconds=30))
        first.close()
    assert [error] == ended == ["worker 1 has left while others wait for it"]


@pytest.mark.parametrize(("what", "size"), [(2, 1000), (1, 1040)])
def test_different_tensors_are_one_error_on_all(what: int, size: int) -> None:
    shape = Shape(workers=2, pool=64, block=64)
    with service(shape) as (port, ended):
        first, second = join(shape, port, range(2))
        errors = together(
            lambda: first.wait(first.submit(1, np.ones(1000, dtype=np.float32)), seconds=30),
            lambda: second.wait(second.submit(what, np.ones(size, dtype=np.float32)), seconds=30),
        )
        first.close()
        second.close()
    assert errors == ended * 2
    assert "sends another tensor, or one of another size or type, than worker" in ended[0]


def test_who_does_not_join_is_named() -> None:
    shape = Shape(workers=3, pool=4, block=64)
    with service(shape, join_seconds=1.0) as (port, ended):
        errors = together(lambda: join(shape, port, range(1, 2)))
    assert errors == ended == ["the switch waited 1 s for workers 0, 2 to join"]


def test_a_worker_of_another_job_s_shape_is_refused() -> None:
    shape, other = Shape(workers=2, pool=4, block=64), Shape(workers=2, pool=8, block=64)
    with service(shape) as (port, ended):
        (error,) = together(lambda: join(other, port, range(1)))
    assert "the switch expects" in error
    assert "worker 0 joins with" in ended[0]


def test_a_wait_ends_and_says_what_is_missing() -> None:
    shape = Shape(workers=2, pool=4, block=64)
    with service(shape) as (port, ended):
        first, second = join(shape, port, range(2))
        number = first.submit(0, np.ones(10, dtype=np.float32))
        with pytest.raises(SwitchError, match="worker 0: waited 0 s for the sum of 10 elements"):
            first.wait(number, seconds=0.2)
        number = second.submit(0, np.ones(10, dtype=np.float32))
        second.wait(number, seconds=30)
        for endpoint in (first, second):
            endpoint.close()
    assert ended == [""]


def test_datagrams_of_strangers_change_nothing() -> None:
    shape = Shape(workers=2, pool=4, block=64)
    with service(shape) as (port, ended), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as noise:
        endpoints = join(shape, port, range(2))
        for tag in (0, job_tag(SECRET)):
            noise.sendto(HEADER.pack(tag, 0, 0, 0, 0) + bytes(256), (LOCAL, port))
        for junk in (b"", b"x", bytes(60_000)):
            noise.sendto(junk, (LOCAL, port))
        arrays = [np.full(1000, rank + 1, dtype=np.float32) for rank in range(2)]
        numbers = [one.submit(0, array) for one, array in zip(endpoints, arrays, strict=True)]
        for endpoint, number, array in zip(endpoints, numbers, arrays, strict=True):
            endpoint.wait(number, seconds=30)
            assert (array == 3).all()
            endpoint.close()
    assert ended == [""]


def case(**changes: object) -> Case:
    usual = {"n": 3, "nbytes": 1 << 20, "workload": "tensors:5", "settings": {"loss": "0.01"}, **changes}
    fixed = {"k": 0, "nic_bytes_per_s": 0.0, "warmups": 1, "iterations": 2, "block": 0}
    return Case(experiment="switch", tier="smoke", contender="switch-sum", **fixed, **usual)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 3])
def test_processes_of_a_launch_sum_right_and_end(n: int, tmp_path: Path) -> None:
    record = here.run(case(n=n), contenders.get("switch-sum"), logs=tmp_path)
    assert record.error == ""
    assert record.oracle is not None
    assert record.oracle.passed
    assert record.facts["loss"] == "0.01"


@pytest.mark.parametrize(
    "settings, words",
    [({"block": "7"}, "block = 7 bytes"), ({"loss": "1"}, "loss = 1.0"), ({"pool": "0"}, "pool = 0")],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, str], words: str, tmp_path: Path) -> None:
    assert words in here.run(case(settings=settings), contenders.get("switch-sum"), logs=tmp_path).error
