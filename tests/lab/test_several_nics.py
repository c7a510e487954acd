"""Machines with two NICs: every NIC carries half, and a job is almost twice as fast as over one of them."""

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.lab import star
from scripts.netns import Lab

ROOT = Path(__file__).resolve().parents[2]
RATE = 12.5e6  # bytes per second of one NIC
NBYTES = 16 << 20
PROGRAM = textwrap.dedent(
    """
    import sys
    import time
    import numpy as np
    import byteps

    byteps.init()
    rank, size = byteps.rank(), byteps.size()
    mine = np.arange(int(sys.argv[1]) // 4, dtype=np.float32) % 1000 + rank
    wanted = mine * size - rank * size + size * (size - 1) / 2
    best = float("inf")
    for _ in range(4):
        byteps.push_pull(np.ones(1), "together", op="sum")
        started = time.monotonic()
        total = byteps.push_pull(mine, "gradient", op="sum")
        best = min(best, time.monotonic() - started)
        assert np.array_equal(total, wanted)
    print("seconds", best, flush=True)
    byteps.shutdown()
    """
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    hosts = ["gpu0", "gpu1", "cpu0", "cpu1", "scheduler"]
    with Lab(star(dict.fromkeys(hosts, RATE), nics=2)) as lab:
        yield lab


def run(lab: Lab, k: int, interfaces: str, folder: Path) -> float:
    """A job of 2 workers and k servers; the seconds of its fastest transfer on the slower worker."""
    common = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS_", "DMLC_"))},
        "DMLC_PS_ROOT_URI": lab.spec.address("scheduler"),
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": str(k),
        "DMLC_INTERFACE": interfaces,
        "BYTEPS_JOB_SECRET": "several",
        "BYTEPS_PARTITION_BYTES": "128KiB",
        "PYTHONPATH": str(ROOT),
        "OPENBLAS_NUM_THREADS": "1",
    }
    launch = [sys.executable, "-m", "byteps", "launch"]
    workers = {f"gpu{rank}": {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank)} for rank in range(2)}
    others = {f"cpu{number}": {"DMLC_ROLE": "server", "DMLC_SERVER_ID": str(number)} for number in range(k)}
    processes = []
    for host, role in {"scheduler": {"DMLC_ROLE": "scheduler"}, **others, **workers}.items():
        command = [*launch, "--", sys.executable, "-c", PROGRAM, str(NBYTES)] if host in workers else launch
        with (folder / f"{host}.log").open("wb") as log:
            processes.append(lab.popen(host, command, env=common | role, stdout=log, stderr=log))
    deadline = time.monotonic() + 100
    try:
        codes = [process.wait(deadline - time.monotonic()) for process in processes]
    except subprocess.TimeoutExpired:
        codes = [1]
    logs = {host: (folder / f"{host}.log").read_text() for host in ("scheduler", *others, *workers)}
    assert codes == [0] * len(processes), logs
    assert lab.pids() == []
    return max(float(re.findall(r"seconds (\S+)", logs[host])[0]) for host in workers)


@pytest.mark.parametrize("k", [0, 2])
def test_two_nics_share_the_load_and_halve_the_time(lab: Lab, tmp_path: Path, k: int) -> None:
    hosts = ["gpu0", "gpu1", *(f"cpu{number}" for number in range(k))]
    one = run(lab, k, "eth0", tmp_path)
    before = {(host, nic): lab.counters(host, nic) for host in hosts for nic in (0, 1)}
    two = run(lab, k, "eth0, eth1", tmp_path)
    spent = {key: lab.counters(*key) - seen for key, seen in before.items()}
    for host in hosts:
        for way in ("tx_bytes", "rx_bytes"):
            first, second = (getattr(spent[host, nic], way) for nic in (0, 1))
            assert first / (first + second) == pytest.approx(0.5, abs=0.05), (host, way)
    print(f"k = {k}: {one:.3f} s over one NIC, {two:.3f} s over two, {one / two:.2f} times")
    assert one == pytest.approx(NBYTES / (RATE * 1448 / 1514), rel=0.15)  # M/B for n = 2, whatever k
    assert one / two > 1.7


def test_a_network_chooses_the_nic_too(lab: Lab, tmp_path: Path) -> None:
    before = {nic: lab.counters("gpu0", nic) for nic in (0, 1)}
    run(lab, 0, "10.78.0.0/16", tmp_path)
    spent = [(lab.counters("gpu0", nic) - before[nic]).tx_bytes for nic in (0, 1)]
    assert spent[1] > 100 * spent[0] > 0  # the other one has the scheduler's few messages
