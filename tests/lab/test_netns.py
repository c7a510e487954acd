"""The emulated cluster as it really comes up, and that nothing of it stays."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts import lab as plan
from scripts import netns
from scripts.lab import star
from scripts.leftovers import existing, processes_in, start_ticks
from scripts.netns import Lab, LabError, sweep

ROOT = Path(__file__).resolve().parents[2]
RATE = 25e6  # 200 Mbit/s

LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1], 7000)) as listener:
    print("listening", flush=True)
    sock, peer = listener.accept()
    chosen = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode()
    received = 0
    while nbytes := len(sock.recv(1 << 20)):
        received += nbytes
    print(peer[0], chosen, received, flush=True)
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=10) as sock:
    sock.sendall(bytes(int(sys.argv[2])))
    print(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode())
"""
# A lab with a child, a grandchild in its own session and one that ignores SIGTERM; then waits to be killed.
CREATE = """
import subprocess, sys, time
from scripts.lab import star
from scripts.netns import Lab
lab = Lab(star({"a": 25e6, "b": 25e6}))
lab.up()
lab.popen("a", ["sleep", "300"])
lab.popen("b", ["sh", "-c", "trap '' TERM; setsid sleep 300 & while :; do sleep 300; done"])
while len(lab.pids()) < 4:
    time.sleep(0.01)
print(lab.prefix, lab._guardian.pid, *lab.pids(), flush=True)
time.sleep(300)
"""


def python(code: str, *args: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code, *args]


def output(lab: Lab, host: str, argv: list[str], **options: object) -> str:
    process = lab.popen(host, argv, stdout=subprocess.PIPE, **options)  # type: ignore[arg-type]
    text, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    return text.decode().strip()


def transfer(lab: Lab, src: str, dst: str, nbytes: int) -> tuple[str, str]:
    """What receiver and sender print."""
    listener = lab.popen(dst, python(LISTEN, lab.spec.address(dst)), stdout=subprocess.PIPE)
    assert listener.stdout is not None
    assert listener.stdout.readline() == b"listening\n"
    sent = output(lab, src, python(SEND, lab.spec.address(dst), str(nbytes)))
    return listener.communicate(timeout=20)[0].decode().strip(), sent


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return met


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(star({"a": RATE, "b": RATE, "slow": RATE / 2})) as lab:
        yield lab


@pytest.fixture
def creator() -> Iterator[tuple[subprocess.Popen[bytes], str, int, list[int]]]:
    """A process with a lab: itself, the lab's prefix, the guardian, the processes in the lab."""
    process = subprocess.Popen([sys.executable, "-c", CREATE], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        prefix, guardian, *pids = process.stdout.readline().decode().split()
        yield process, prefix, int(guardian), [int(pid) for pid in pids]
    finally:
        process.kill()
        process.communicate()
        sweep()


def test_hosts_reach_each_other_with_cubic_on_both_sides(lab: Lab) -> None:
    received, sent = transfer(lab, "a", "b", 1000)
    assert received == f"{lab.spec.address('a')} cubic 1000"
    assert sent == "cubic"


def test_a_host_reaches_itself_with_cubic(lab: Lab) -> None:
    assert transfer(lab, "a", "a", 1000) == (f"{lab.spec.address('a')} cubic 1000", "cubic")


def test_a_process_in_the_switch_is_reached_by_hosts_and_counted_with_them(lab: Lab) -> None:
    received, _ = transfer(lab, "a", plan.SWITCH, 1000)
    assert received.startswith(f"{lab.spec.address('a')} ")
    before = lab.all_counters()
    received, _ = transfer(lab, plan.SWITCH, "b", 1_000_000)
    assert received.startswith(f"{lab.spec.address(plan.SWITCH)} ")
    after = lab.all_counters()
    assert (after["b"] - before["b"]).rx_wire_bytes >= 1_000_000  # through the port of its NIC
    assert (after["a"] - before["a"]).rx_wire_bytes < 10_000
    process = lab.popen(plan.SWITCH, ["sleep", "300"])
    assert wait_until(lambda: process.pid in lab.pids())
    assert lab.host_of(process.pid) == plan.SWITCH
    process.kill()
    process.wait(5)


def test_the_machines_own_congestion_control_stays() -> None:
    setting = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    before = setting.read_text()
    with Lab(star({"a": RATE})):
        assert setting.read_text() == before
    with socket.socket() as sock:
        own = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
    assert own == before.strip()


def test_counters_count_the_payload(lab: Lab) -> None:
    nbytes = 8_000_000
    before = lab.all_counters()
    transfer(lab, "a", "b", nbytes)
    after = lab.all_counters()
    sent, received, other = (after[name] - before[name] for name in ("a", "b", "slow"))
    assert sent.tx_bytes == pytest.approx(nbytes, rel=0.01)
    assert received.rx_bytes == pytest.approx(nbytes, rel=0.01)
    assert sent.tx_wire_bytes == pytest.approx(nbytes * 1514 / 1448, rel=0.01)
    assert received.rx_wire_bytes == pytest.approx(nbytes * 1514 / 1448, rel=0.01)
    assert other.tx_bytes + other.rx_bytes < 1000
    assert lab.counters("a") == after["a"]


def test_a_process_is_named_after_its_host_and_is_the_child_itself(lab: Lab) -> None:
    code = "import os, socket; print(socket.gethostname(), socket.gethostbyname(socket.gethostname()), os.getpid())"
    process = lab.popen("b", python(code), stdout=subprocess.PIPE)
    address = lab.spec.address("b")
    assert process.communicate(timeout=20)[0].decode().split() == [address, address, str(process.pid)]
    assert socket.gethostname() != address


def test_environment_and_directory_are_the_given_ones(lab: Lab, tmp_path: Path) -> None:
    code = "import os; print(os.environ.get('HOME'), os.environ['COLOUR'], os.getcwd())"
    assert output(lab, "a", python(code), env={"COLOUR": "red"}, cwd=tmp_path) == f"None red {tmp_path}"


def test_a_process_outlives_the_thread_that_started_it(lab: Lab) -> None:
    started: list[subprocess.Popen[bytes]] = []
    thread = threading.Thread(target=lambda: started.append(lab.popen("a", ["cat"], stdin=subprocess.PIPE)))
    thread.start()
    thread.join()
    assert wait_until(lambda: started[0].pid in lab.pids())
    assert started[0].poll() is None
    started[0].communicate(timeout=5)
    assert started[0].returncode == 0


def test_16_hosts_and_a_switch_are_up_in_seconds() -> None:
    start = time.monotonic()
    with Lab(star({f"h{i}": RATE for i in range(16)})):
        assert time.monotonic() - start < 4.0  # 0.2 on an idle machine


def test_down_ends_what_ignores_sigterm_and_what_left_its_session() -> None:
    with Lab(star({"a": RATE})) as lab:
        stubborn = lab.popen("a", ["sh", "-c", "trap '' TERM; setsid sleep 300 & while :; do sleep 300; done"])
        assert wait_until(lambda: len(lab.pids()) == 3)
        pids = lab.pids()
        prefix = lab.prefix
    assert existing(prefix) == []
    assert stubborn.returncode == -signal.SIGKILL
    assert wait_until(lambda: all(start_ticks(pid) is None for pid in pids))
    with pytest.raises(LabError, match="not up"):
        lab.popen("a", ["true"])
    lab.down()


def test_what_ends_at_sigterm_is_not_killed() -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print(1, flush=True); time.sleep(300)"
    with Lab(star({"a": RATE})) as lab:
        process = lab.popen("a", python(code), stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
    assert process.returncode == 7
    process.stdout.close()


def test_a_bring_up_that_fails_half_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(star({"a": RATE, "b": RATE}))
    good = plan.bring_up(lab.spec, lab.prefix)
    bad = plan.Batch(tool="tc", namespace=lab.namespace("b"), lines=("qdisc add dev eth7 root tbf",))
    monkeypatch.setattr(plan, "bring_up", lambda *_: (*good, (bad,)))
    with pytest.raises(LabError, match=r"tc -n .*-b -batch"):
        lab.up()
    assert existing(lab.prefix) == []


def test_nothing_outlives_a_killed_creator(creator: tuple[subprocess.Popen[bytes], str, int, list[int]]) -> None:
    process, prefix, guardian, pids = creator
    assert len(existing(prefix)) == 3
    process.kill()
    assert wait_until(lambda: all(start_ticks(pid) is None for pid in pids) and not existing(prefix))
    assert wait_until(lambda: start_ticks(guardian) is None)


def test_sweep_removes_what_a_killed_creator_and_guardian_left(
    creator: tuple[subprocess.Popen[bytes], str, int, list[int]],
) -> None:
    process, prefix, guardian, pids = creator
    sweep()
    assert len(existing(prefix)) == 3  # the creator lives
    os.kill(guardian, signal.SIGKILL)
    process.kill()
    process.wait()
    sweep()
    assert existing(prefix) == []
    assert wait_until(lambda: all(start_ticks(pid) is None for pid in pids))


def test_sweep_leaves_foreign_namespaces_and_labs_in_use_alone(lab: Lab) -> None:
    foreign = f"foreign-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        process = subprocess.Popen(["ip", "netns", "exec", foreign, "sleep", "300"])
        assert wait_until(lambda: processes_in([foreign]) == [process.pid])
        assert not {foreign, *existing(lab.prefix)} & set(sweep())
        assert process.poll() is None
        assert len(existing(lab.prefix)) == len(lab.spec.hosts) + 1
        process.kill()
        process.wait()
    finally:
        subprocess.run(["ip", "netns", "del", foreign], check=True)


def test_missing_tools_and_rights_are_one_sentence_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda name: None if name in ("ip", "tc") else f"/bin/{name}")
        assert netns.why_no_lab() == "the emulated cluster needs ip, tc: apt-get install iproute2"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in netns.why_no_lab()
    with pytest.raises(LabError, match="sudo"):
        Lab(star({"a": RATE})).up()


def test_list_names_labs_in_use(lab: Lab) -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "scripts.netns", "list"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert f"{lab.namespace('a')}  creator {os.getpid()}, in use" in listed
