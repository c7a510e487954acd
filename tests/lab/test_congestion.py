"""An emulated network with another congestion control and shallow queues, as its processes find it."""

import dataclasses
import json
import subprocess
import sys

import pytest

from experiments.emulated import Emulated
from scripts import lab as plan
from scripts.lab import star
from scripts.netns import Lab, why_no_lab

pytestmark = pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")

RATE = 25e6  # 200 Mbit/s
QUEUE_NBYTES = 96 << 10
LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1], 7000)) as listener:
    print("listening", flush=True)
    sock, _ = listener.accept()
    print(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode(), flush=True)
"""
SEND = """
import os, socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=10) as sock:
    print(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode())
    print(os.environ["BYTEPS_CONGESTION_CONTROL"])
"""


def test_programmes_get_the_network_s_congestion_control_and_ports_its_queue() -> None:
    spec = dataclasses.replace(star({"a": RATE, "b": RATE}), congestion_control="reno", queue_bytes=QUEUE_NBYTES)
    with Lab(spec) as lab:
        stage = Emulated(lab)
        python = (sys.executable, "-I", "-S", "-c")
        listener = stage.popen("b", [*python, LISTEN, stage.address("b")], env={}, stdout=subprocess.PIPE)
        assert listener.stdout is not None
        assert listener.stdout.readline() == b"listening\n"
        sender = stage.popen("a", [*python, SEND, stage.address("b")], env={}, stdout=subprocess.PIPE)
        assert sender.communicate(timeout=20)[0].split() == [b"reno", b"reno"]
        assert listener.communicate(timeout=20)[0].split() == [b"reno"]
        shown = subprocess.run(
            ["tc", "-n", plan.switch_namespace(lab.prefix), "-j", "qdisc", "show"],
            capture_output=True,
            check=True,
            timeout=20,
        ).stdout
    waits = [qdisc["options"]["lat"] for qdisc in json.loads(shown) if qdisc["kind"] == "tbf"]  # in microseconds
    beyond_the_burst = QUEUE_NBYTES - plan.shaping(RATE).burst_bytes
    assert waits == [pytest.approx(beyond_the_burst / RATE * 1e6, rel=0.02)] * 2
