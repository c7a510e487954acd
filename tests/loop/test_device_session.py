"""BytePS's adapter for tensors on a device; the device is the CPU here."""

import subprocess
import sys
import textwrap

import pytest
from jobs import plain_environment

torch = pytest.importorskip("torch")

PROGRAM = textwrap.dedent("""
    import numpy, torch, byteps
    from baselines.adapters.byteps_device import Session
    from baselines.session import Tensor
    byteps.init()
    class Copies(Session):
        def declare(self, tensors, gradients):
            super().declare(tensors, gradients)
            if byteps.rank() == 0:  # as on a device: memory of its own
                self._there = [tensor.clone() for tensor in self._host]
    session = Copies(torch.device("cpu"))
    gradients = [numpy.full(count, byteps.rank() + 1, numpy.float32) for count in (1, 1000)]
    fields = {"dtype": "float32", "ready_seconds": 0.0, "forward_seconds": 0.0}
    tensors = [Tensor(name=str(i), numel=g.size, priority=i, **fields) for i, g in enumerate(gradients)]
    session.declare(tensors, gradients)
    for round in range(3):
        for gradient in gradients:
            gradient[:] = byteps.rank() + 1 + round
        for index in range(2):
            session.submit(index)
        for index in (1, 0):
            assert session.wait(index) is gradients[index]
            assert (gradients[index] == 3 + 2 * round).all(), gradients[index]
    print("right", session.facts()["device"], flush=True)
    session.close()
""")


def test_gradients_are_summed_in_place_whether_the_device_has_memory_of_its_own_or_not() -> None:
    command = [sys.executable, "-m", "byteps", "launch", "--workers", "2", "--servers", "1", "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM],
        env=plain_environment({}),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right cpu") == 2


def test_an_unknown_device_is_refused_with_those_there_are() -> None:
    from baselines.launch import Launch, Machine
    from baselines.peers import byteps

    machine = Machine(host="a", address="127.0.0.1", interface="lo")
    launch = Launch(
        gpu_machines=(machine,),
        cpu_machines=(),
        scheduler=machine,
        nic_bytes_per_s=1e9,
        nbytes=4,
        settings={"device": "abacus"},
        secret="s",
    )
    with pytest.raises(ValueError, match="byteps: device = 'abacus'; it takes one of cpu, cuda"):
        byteps.plan(launch)
