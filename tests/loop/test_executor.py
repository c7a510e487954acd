"""The executor of schedules over loopback: sums, lost nodes, waits that end."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from baselines import contenders
from baselines.executor import Endpoint, ExecutorError
from baselines.wiring import shape
from byteps.net import Flusher
from byteps.schedules.catalogue import build
from experiments import here
from experiments.record import Case

SECRET = bytes(16)
FLUSHER = Flusher()  # one thread of this process, before any test begins
SIZES = (100_003, 7, 1, 0)


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


@contextmanager
def nodes(scheme: str, n: int, k: int = 0, network: str = "star") -> Iterator[list[Endpoint]]:
    """All nodes of a schedule, in this process."""
    schedule = build(scheme, n, k)
    nics = shape(network)[1]
    ports = free_ports(schedule.num_nodes * nics)
    addresses = [[("127.0.0.1", port) for port in ports[node * nics :][:nics]] for node in range(schedule.num_nodes)]
    found: dict[int, Endpoint] = {}

    def start(node: int) -> None:
        found[node] = Endpoint(schedule, node, addresses, SECRET, FLUSHER, network=network)

    threads = [threading.Thread(target=start, args=(node,)) for node in range(schedule.num_nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    try:
        yield [found[node] for node in range(schedule.num_nodes)]
    finally:
        for one in found.values():
            one.close()


@pytest.mark.parametrize(
    ("scheme", "n", "k"),
    [
        ("ring", 4, 0),
        ("ring", 1, 0),
        ("mesh", 3, 0),
        ("tree:4", 5, 0),
        ("halving-doubling", 5, 0),
        ("torus", 6, 0),
        ("hierarchical", 6, 0),
        ("byteps", 4, 2),
        ("servers", 3, 2),
    ],
)
def test_every_worker_has_the_sum_of_data_that_depends_on_rank_and_index(scheme: str, n: int, k: int) -> None:
    with nodes(scheme, n, k) as endpoints:
        for iteration in range(2):
            arrays = {
                (rank, size): np.arange(size, dtype=np.float32) % 97 + rank * 1000 + iteration
                for rank in range(n)
                for size in SIZES
            }
            expected = {size: sum(arrays[rank, size].astype(np.float64) for rank in range(n)) for size in SIZES}
            for rank in range(n):
                for index, size in enumerate(SIZES):  # all under way at once
                    endpoints[rank].submit(iteration * len(SIZES) + index, arrays[rank, size])
            for rank in range(n):
                for index in range(len(SIZES)):
                    endpoints[rank].wait(iteration * len(SIZES) + index, seconds=30)
            for (rank, size), array in arrays.items():
                assert (array == expected[size]).all(), (rank, size)


@pytest.mark.parametrize("scheme", ["mesh", "relayed-mesh:5", "bml:2x2"])
def test_hosts_of_bcube_relay_for_each_other(scheme: str) -> None:
    with nodes(scheme, 4, network="bcube:2x2") as endpoints:
        arrays = [np.arange(1003, dtype=np.float32) + 1000 * rank for rank in range(4)]
        expected = sum(array.astype(np.float64) for array in arrays)
        for endpoint, array in zip(endpoints, arrays, strict=True):
            endpoint.submit(0, array)
        for endpoint, array in zip(endpoints, arrays, strict=True):
            endpoint.wait(0, seconds=30)
            assert (array == expected).all()


def test_a_lost_node_is_named_by_those_that_wait_for_it() -> None:
    with nodes("mesh", 3) as endpoints:
        arrays = [np.ones(10, dtype=np.float32) for _ in range(2)]
        for endpoint, array in zip(endpoints, arrays, strict=False):
            endpoint.submit(0, array)
        endpoints[2].close()
        for endpoint in endpoints[:2]:
            with pytest.raises(ExecutorError, match=r"lost node 2: .*waits for chunk \d from node 2"):
                endpoint.wait(0, seconds=30)


def test_a_wait_ends_and_says_what_is_missing() -> None:
    with nodes("ring", 2) as endpoints:
        endpoints[0].submit(0, np.ones(10, dtype=np.float32))
        began = time.monotonic()
        with pytest.raises(ExecutorError, match=r"node 0: waited 0 s for chunk \d from node 1"):
            endpoints[0].wait(0, seconds=0.2)
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(("contender", "scheme", "k"), [("schedule", "ring", 0), ("schedule-servers", "byteps", 1)])
def test_processes_of_a_launch_sum_right_and_end(contender: str, scheme: str, k: int, tmp_path: Path) -> None:
    case = Case(
        experiment="executor",
        tier="smoke",
        contender=contender,
        settings={"scheme": scheme},
        n=3,
        k=k,
        nic_bytes_per_s=0.0,
        nbytes=1 << 20,
        workload="tensors:5",
        warmups=1,
        iterations=2,
        block=0,
        position=0,
    )
    record = here.run(case, contenders.get(contender), logs=tmp_path)
    assert record.error == ""
    assert record.oracle is not None
    assert record.oracle.passed


def test_a_scheme_of_the_other_contender_is_refused(tmp_path: Path) -> None:
    case = Case(
        experiment="executor",
        tier="smoke",
        contender="schedule",
        settings={"scheme": "servers"},
        n=2,
        k=1,
        nic_bytes_per_s=0.0,
        nbytes=1024,
        warmups=0,
        iterations=1,
        block=0,
        position=0,
    )
    record = here.run(case, contenders.get("schedule"), logs=tmp_path)
    assert record.error == "scheme 'servers' belongs to the contender 'schedule-servers'"
