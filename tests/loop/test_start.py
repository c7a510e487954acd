"""Jobs that do not come together, and strangers at the door of one that runs."""

import os
import re
import socket
import struct
import sys
import time

import pytest
from jobs import Roles, errors, free_port, wait_until

from byteps.handshake import connect
from byteps.interfaces import interface_addresses
from byteps.wire import LENGTH, Declare, encode_message


def own_address() -> str:
    """An address of this machine that is not loopback."""
    for name, address in interface_addresses().items():
        if name != "lo" and not address.startswith("127."):
            return address
    pytest.skip("this machine has no address but loopback")


def test_a_missing_role_is_named_while_waiting_and_in_the_error(tmp_path):
    with Roles(tmp_path, workers=2, servers=2, BYTEPS_START_TIMEOUT="7") as job:
        job.scheduler()
        job.server(1)
        job.worker(0, "steady.py", str(tmp_path / "stop"))
        assert set(job.wait(seconds=20).values()) == {1}
        missing = "1 of 2 workers and 1 of 2 servers registered, missing rank 1, missing 1 server(s)"
        for name in ("scheduler", "server 1", "worker 0"):
            assert re.search(rf"{re.escape(missing)}, waiting \d s of 7 s", job.output(name)), job.report(name)
            assert f"the job did not start within 7 s: {missing}" in job.output(name)
        assert errors(job.output("worker 0"))[0].startswith("StartError: the job did not start within 7 s")
        assert "the scheduler's address 127.0.0.1 is reached from this machine only" in job.output("scheduler")


def test_a_missing_scheduler_is_named_with_its_address(tmp_path):
    with Roles(tmp_path, workers=2, servers=1, BYTEPS_START_TIMEOUT="7") as job:
        job.server(0)
        job.worker(0, "steady.py", str(tmp_path / "stop"))
        assert set(job.wait(seconds=25).values()) == {1}
        for name in job.processes:
            assert f"cannot reach the scheduler at 127.0.0.1:{job.port} yet, waiting" in job.output(name)
            assert (
                f"cannot reach the scheduler at 127.0.0.1:{job.port}: Connection refused; is it running"
                in job.output(name)
            )


def test_a_wrong_world_size_ends_the_start_everywhere(tmp_path):
    with Roles(tmp_path, workers=2, servers=1) as job:
        job.scheduler()
        job.worker(0, "steady.py", str(tmp_path / "stop"))
        job.server(0)
        job.worker(1, "steady.py", str(tmp_path / "stop"), DMLC_NUM_WORKER="3")
        assert set(job.wait(seconds=30).values()) == {1}
        text = "a worker at 127.0.0.1 is configured for 3 workers and 1 servers, the scheduler for 2 and 1"
        for name in job.processes:
            assert text in job.output(name), job.report(name)


def test_a_wrong_version_ends_the_start_everywhere(tmp_path):
    old = tmp_path / "old.py"
    old.write_text(
        "import byteps.version\nbyteps.version.VERSION = '0.0.1'\n"
        "import byteps\n"
        "try:\n    byteps.init()\nexcept RuntimeError as error:\n    print('error', error)\n    raise\n"
    )
    with Roles(tmp_path, workers=2, servers=0) as job:
        job.scheduler()
        job.worker(0, "steady.py", str(tmp_path / "stop"))
        job.start("worker 1", "worker", sys.executable, str(old), DMLC_WORKER_ID="1")
        assert set(job.wait(seconds=30).values()) == {1}
        for name in job.processes:
            assert "a worker at 127.0.0.1 runs version 0.0.1, the scheduler" in job.output(name), job.report(name)


def test_a_rank_claimed_twice_ends_the_start_everywhere(tmp_path):
    with Roles(tmp_path, workers=2, servers=0) as job:
        job.scheduler()
        for name in ("worker 0", "another worker 0"):
            job.worker(0, "steady.py", str(tmp_path / "stop"), name=name)
        assert set(job.wait(seconds=30).values()) == {1}
        for name in job.processes:
            assert "two workers claim rank 0, one at 127.0.0.1 and one at 127.0.0.1" in job.output(name), job.report(
                name
            )


def test_workers_and_servers_without_numbers_get_them(tmp_path):
    with Roles(tmp_path, workers=3, servers=2) as job:
        job.scheduler()
        for number in range(2):
            job.server(number, DMLC_SERVER_ID="")
        job.worker(1, "steady.py", str(tmp_path / "stop"))
        for name in ("some worker", "other worker"):
            job.worker(0, "steady.py", str(tmp_path / "stop"), name=name, DMLC_WORKER_ID="")
        job.wait_for("some worker", "pushing")
        (tmp_path / "stop").touch()
        assert set(job.wait(seconds=30).values()) == {0}


def greeted(host: str, port: int) -> socket.socket:
    """A connection that has received the greeting, like anybody's."""
    sock = socket.create_connection((host, port), timeout=10)
    assert sock.recv(64)
    return sock


def is_closed(sock: socket.socket) -> bool:
    with sock:
        sock.settimeout(15)
        try:
            while sock.recv(4096):
                pass
        except ConnectionError:
            pass
        return True


def server_port(job: Roles) -> int:
    """Where the server listens, as the kernel knows it."""
    pid = job.processes["server 0"].pid
    with open(f"/proc/{pid}/net/tcp") as table:
        rows = [line.split() for line in table][1:]
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    (port,) = (int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes)
    return port


def test_strangers_and_latecomers_are_refused_and_the_job_is_unhurt(tmp_path):
    stop = tmp_path / "stop"
    with Roles(tmp_path, workers=2, servers=1) as job:
        job.everybody("steady.py", str(stop))
        for rank in range(2):
            job.wait_for(f"worker {rank}", "pushing")
        members = tuple(job.processes)
        secret = job.common["BYTEPS_JOB_SECRET"].encode()

        # Members that nobody waits for.
        job.worker(0, "steady.py", str(stop), name="late worker")
        job.worker(0, "steady.py", str(stop), name="anonymous worker", DMLC_WORKER_ID="")
        job.worker(0, "steady.py", str(stop), name="wrong size", DMLC_NUM_WORKER="5")
        job.worker(0, "steady.py", str(stop), name="wrong secret", BYTEPS_JOB_SECRET="another")
        job.server(0, name="late server")

        # Strangers on the scheduler's and on the server's port.
        for port in (job.port, server_port(job)):
            garbage = greeted("127.0.0.1", port)
            garbage.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 9)
            assert is_closed(garbage)
            truncated = greeted("127.0.0.1", port)
            truncated.sendall(b"BPS")
            truncated.shutdown(socket.SHUT_WR)
            assert is_closed(truncated)
            silent = greeted("127.0.0.1", port)

            # Somebody who knows the secret, and then talks nonsense.
            for nonsense in (
                struct.pack("<I", 1 << 31),  # a frame of 2 GiB
                LENGTH.pack(5) + b"\xff\xff\xff\xff\xff",
                encode_message(Declare(specs=(), barrier=True)),  # not the first message
            ):
                member = connect("127.0.0.1", port, secret, time.monotonic() + 10, what="it")
                member.sendall(nonsense)
                assert is_closed(member)
            half = connect("127.0.0.1", port, secret, time.monotonic() + 10, what="it")
            half.sendall(LENGTH.pack(100) + b"half")
            half.shutdown(socket.SHUT_WR)
            assert is_closed(half)
            assert is_closed(silent)

        codes = job.wait("late worker", "anonymous worker", "wrong size", "wrong secret", "late server", seconds=30)
        assert all(codes.values()), codes
        for name in ("late worker", "anonymous worker"):
            assert errors(job.output(name))[0].startswith("StartError: a worker at 127.0.0.1 is one too many: all 2")
        assert "StartError: a worker at 127.0.0.1 is configured for 5 workers" in job.output("wrong size")
        assert "StartError: " in job.output("wrong secret")
        assert "BYTEPS_JOB_SECRET" in job.output("wrong secret")
        assert "a server at 127.0.0.1 is one too many" in job.output("late server")
        for name in ("scheduler", "server 0"):
            log = job.output(name)
            assert log.count("closed the connection from 127.0.0.1:") >= 4, log
            assert "it does not speak this protocol" in log
        assert "another job secret" in job.output("scheduler")

        stop.touch()
        assert set(job.wait(*members, seconds=30).values()) == {0}, job.report("not all left in order")
        assert "left after" in job.output("worker 1")


def test_without_a_secret_only_loopback_is_allowed(tmp_path):
    address = own_address()
    with Roles(tmp_path, workers=2, servers=1, BYTEPS_JOB_SECRET="", BYTEPS_START_TIMEOUT="20") as job:
        job.scheduler(DMLC_PS_ROOT_URI=address)
        assert job.wait("scheduler")["scheduler"] == 1
        assert f"{address} is not a loopback address and there is no job secret" in job.output("scheduler")
        job.start("local scheduler", "scheduler")
        job.server(0, DMLC_NODE_HOST=address)
        assert job.wait("server 0")["server 0"] == 1
        assert f"{address} is not a loopback address and there is no job secret" in job.output("server 0")


def test_with_a_secret_a_job_runs_on_the_given_addresses_only(tmp_path):
    address = own_address()
    with Roles(tmp_path, workers=2, servers=1, DMLC_PS_ROOT_URI=address) as job:
        job.everybody("steady.py", str(tmp_path / "stop"))
        job.wait_for("worker 0", "pushing")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", job.port), timeout=5)
        (tmp_path / "stop").touch()
        assert set(job.wait(seconds=30).values()) == {0}


def test_a_port_in_use_is_named_with_its_address(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, Roles(tmp_path, workers=2, servers=0) as job:
        port = taken.getsockname()[1]
        job.scheduler(DMLC_PS_ROOT_PORT=str(port))
        assert job.wait()["scheduler"] == 1
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use; " in job.output("scheduler")


def test_an_unknown_interface_or_host_is_named_with_what_there_is(tmp_path):
    with Roles(tmp_path, workers=2, servers=3) as job:
        job.scheduler()
        job.server(0, DMLC_INTERFACE="nope0")
        job.server(1, DMLC_NODE_HOST="no-such-host.invalid")
        job.server(2, DMLC_NODE_HOST="203.0.113.7")
        codes = job.wait("server 0", "server 1", "server 2", seconds=40)
        assert set(codes.values()) == {1}
        assert "DMLC_INTERFACE='nope0' is no interface or network here; this machine has lo (127.0.0.1)" in job.output(
            "server 0"
        )
        assert "host 'no-such-host.invalid' does not resolve" in job.output("server 1")
        assert "cannot listen on 203.0.113.7:0: Cannot assign requested address; " in job.output("server 2")


def test_invalid_variables_are_refused_and_unknown_ones_warned_about(tmp_path):
    with Roles(tmp_path, workers=2, servers=0) as job:
        job.scheduler(BYTEPS_PARTITION_BYTES="abc", BYTEPS_PARTITON_BYTES="4MB")
        assert job.wait()["scheduler"] in (1, 2)
        assert "BYTEPS_PARTITION_BYTES='abc' is not valid" in job.output("scheduler")
        assert "Traceback" not in job.output("scheduler")
        job.start("second scheduler", "scheduler", BYTEPS_PARTITON_BYTES="4MB", DMLC_PS_ROOT_PORT=str(free_port()))
        warning = "BYTEPS_PARTITON_BYTES is not a variable of BytePS; did you mean BYTEPS_PARTITION_BYTES?"
        wait_until(lambda: warning in job.output("second scheduler"), "the warning")
