"""Ways to sum inside machines over loopback: right sums, and memories that sum for each other end with the workers."""

import socket
import threading
import time

import numpy as np
import pytest

from baselines.executor import Endpoint
from byteps.net import Flusher
from byteps.schedules.catalogue import build

SECRET = bytes(16)
FLUSHER = Flusher()
N, K = 8, 4


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


@pytest.mark.parametrize(
    "way",
    [
        "pcie-only/cpu-assisted",
        "pcie-only/brute-force",
        "pcie-only/strawman",
        "nvlink/root=all",
        "nvlink/root=2",
        "nvlink/ring",
    ],
)
def test_every_gpu_of_every_machine_has_the_sum(way: str) -> None:
    schedule = build(f"inside:{way}", N, K)
    busy = sorted({node for one in schedule.rounds for node in [*one.src.tolist(), *one.dst.tolist()]})
    addresses = [[("127.0.0.1", port)] for port in free_ports(schedule.num_nodes)]
    found: dict[int, Endpoint] = {}

    def start(node: int) -> None:
        found[node] = Endpoint(schedule, node, addresses, SECRET, FLUSHER)

    threads = [threading.Thread(target=start, args=(node,)) for node in busy]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == busy
    serving = [threading.Thread(target=found[node].serve, daemon=True) for node in busy if node >= N]
    for thread in serving:
        thread.start()
    try:
        for number in range(2):
            arrays = [np.arange(10_007, dtype=np.float32) % 97 + rank * 1000 + number for rank in range(N)]
            expected = sum(array.astype(np.float64) for array in arrays)
            for rank in range(N):
                found[rank].submit(number, arrays[rank])
            for rank in range(N):
                found[rank].wait(number, seconds=30)
            assert all((array == expected).all() for array in arrays)
    finally:
        for rank in range(N):
            found[rank].close()
        for thread in serving:
            thread.join(10)
        left = [thread for thread in serving if thread.is_alive()]
        for node in busy:
            found[node].close()
    assert not left, "memories that wait for each other have not ended with the workers"


def test_what_arrives_before_the_last_peer_has_connected_waits_for_it() -> None:
    schedule, late = build("inside:nvlink/root=2", N, K), 10  # the memory that the other machine's is connected with
    busy = sorted({node for one in schedule.rounds for node in [*one.src.tolist(), *one.dst.tolist()]})
    addresses = [[("127.0.0.1", port)] for port in free_ports(schedule.num_nodes)]
    found: dict[int, Endpoint] = {}

    def start(node: int) -> None:
        found[node] = Endpoint(schedule, node, addresses, SECRET, FLUSHER)

    arrays = [np.arange(10_007, dtype=np.float32) % 97 + rank for rank in range(N)]
    expected = sum(array.astype(np.float64) for array in arrays)
    threads = {node: threading.Thread(target=start, args=(node,)) for node in busy}
    for node in [node for node in busy if node != late]:
        threads[node].start()
    early = range(N // 2)
    for rank in early:
        threads[rank].join(30)
        found[rank].submit(0, arrays[rank])
    time.sleep(0.3)  # for the sums of the first machine to arrive in its memory
    threads[late].start()
    for node in busy:
        threads[node].join(30)
    try:
        for rank in range(N // 2, N):
            found[rank].submit(0, arrays[rank])
        for rank in range(N):
            found[rank].wait(0, seconds=30)
        assert all((array == expected).all() for array in arrays)
    finally:
        for one in found.values():
            one.close()
