"""An emulated Fat-Tree as it really comes up: everybody is reached, all of the core is used, each link has its rate."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import experiments.fat_tree
from experiments import record, run
from experiments.progress import display
from experiments.record import Case
from scripts import calibrate
from scripts.fat_tree import fat_tree
from scripts.fat_tree_lab import FatTreeLab, why_no_fat_tree
from scripts.leftovers import NETNS_DIR, sweep

ROOT = Path(__file__).resolve().parents[2]
RATE = 50e6 / 8
pytestmark = pytest.mark.skipif(bool(why_no_fat_tree()), reason=why_no_fat_tree() or "there is one")
# Both ends are this programme: many short connections, one message each way.
SERVE = """
import socket, sys
with socket.create_server((sys.argv[1], 5000), backlog=512) as listener:
    print("ready", flush=True)
    listener.settimeout(20)
    for _ in range(int(sys.argv[2])):
        peer = listener.accept()[0]
        with peer:
            while peer.recv(4096):
                pass
            peer.sendall(bytes(3000))
"""
CALL = """
import socket, sys
for address in sys.argv[2:]:
    for _ in range(int(sys.argv[1])):
        with socket.create_connection((address, 5000), timeout=20) as peer:
            peer.sendall(bytes(3000))
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(4096):
                pass
"""
COUNT = 4


@pytest.fixture(scope="module")
def lab() -> Iterator[FatTreeLab]:
    with FatTreeLab(fat_tree(4, RATE, beside=("scheduler",))) as lab:
        yield lab


def test_everybody_is_reached_and_every_core_switch_is_used(lab: FatTreeLab) -> None:
    """A caller in every pod, everybody else answers; and each path carries something up and down."""
    callers = ["gpu0", "gpu5", "gpu10", "gpu15"]
    servers = [name for name in lab.spec.names if name not in callers]
    python = [sys.executable, "-I", "-S", "-c"]
    before = lab.link_counters()
    running = [
        lab.popen(name, [*python, SERVE, lab.spec.address(name), str(COUNT * len(callers))], stdout=subprocess.PIPE)
        for name in servers
    ]
    for one in running:
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
        one.stdout.close()
    addresses = [lab.spec.address(name) for name in servers]
    calling = [lab.popen(name, [*python, CALL, str(COUNT), *addresses]) for name in callers]
    assert [one.wait(timeout=30) for one in [*calling, *running]] == [0] * len(lab.spec.names)
    spent = {name: seen - before[name] for name, seen in lab.link_counters().items()}
    by_core = {
        core: sum(seen.tx_bytes + seen.rx_bytes for name, seen in spent.items() if name.endswith(f"-{core}"))
        for core in lab.tree.cores
    }
    assert all(seen > 0.1 * sum(by_core.values()) for seen in by_core.values()), by_core
    assert lab.pids() == []


def test_all_links_of_a_ring_in_order_carry_their_rate_at_once(lab: FatTreeLab) -> None:
    found = calibrate.calibrate(lab, seconds=0.7)
    assert min(flow.ratio for flow in found.flows) > 0.9, found.describe()
    assert max(flow.ratio for flow in found.flows) < 1.01, found.describe()


def test_the_links_of_a_launch_carry_whole_flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the hash was: every flow of a ring is 1.875 tensors, and a link has a whole number of them."""
    passed = record.Calibration(least_fraction=1.0, greatest_fraction=1.0, seconds=0.0, passed=True)
    monkeypatch.setattr(run, "_calibrate", lambda *_: passed)
    case = Case(
        experiment="fat_tree",
        tier="smoke",
        contender="schedule",
        settings={"network": "fat-tree:4", "scheme": "shuffled-ring:1"},
        n=16,
        k=0,
        nic_bytes_per_s=2 * RATE,
        nbytes=1 << 20,
        warmups=0,
        iterations=1,
        block=0,
    )
    kept: list[record.Record] = []
    with display([case], 0.0) as show, experiments.fat_tree.open_stage([case], 64) as stage:
        run.run_on(stage, [[case]], tmp_path, kept.append, show)
    assert kept[0].error == ""
    assert kept[0].correct
    flows = experiments.fat_tree.busiest_link(kept[0]) / 1.875
    assert flows == pytest.approx(round(flows), rel=0.02)
    assert round(flows) >= 1


def test_a_creator_that_is_killed_leaves_no_router_behind() -> None:
    program = (
        "import sys, time\n"
        "from scripts.fat_tree import fat_tree\n"
        "from scripts.fat_tree_lab import FatTreeLab\n"
        "lab = FatTreeLab(fat_tree(4, 6e6))\n"
        "lab.up()\n"
        "print(lab.prefix, flush=True)\n"
        "time.sleep(60)\n"
    )
    creator = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert creator.stdout is not None
    try:
        prefix = creator.stdout.readline().strip()
        assert sum(name.startswith(f"{prefix}-") for name in os.listdir(NETNS_DIR)) == 16 + 1 + 20
    finally:
        os.kill(creator.pid, signal.SIGKILL)
        creator.wait(10)
        creator.stdout.close()
    deadline = time.monotonic() + 10
    while (left := [name for name in os.listdir(NETNS_DIR) if name.startswith(f"{prefix}-")]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)  # its guardian notices
    assert left == []
    assert not [name for name in sweep() if name.startswith(prefix)]
