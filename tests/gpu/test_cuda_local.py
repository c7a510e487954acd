"""Summing on real GPUs: streams, registered memory and events with one; NCCL with two or more.  In fresh processes."""

import json
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = pytest.mark.skipif(not GPUS, reason="no CUDA device on this machine")
two = pytest.mark.skipif(GPUS < 2, reason=f"{GPUS} CUDA device on this machine; NCCL adds up between two or more")

BEGIN = textwrap.dedent("""
    import mmap, threading, torch
    from torch.distributed import HashStore
    from byteps.device_plan import device_plan, scattered
    from byteps.torch import device_cuda
    from byteps.torch.device import DeviceError
    from byteps.torch.device_cuda import CudaDevice, Groups
    from byteps.torch.local_device import LocalDevice
    from experiments.device_program import Host, Rank
    where = torch.device("cuda", 0)
    torch.cuda.set_device(where)

    def device():
        return CudaDevice(where, Groups(HashStore(), 0, [(0,)]))
""")

REGISTERED = """
one, like = device(), torch.empty(1, device=where)
size = 3_000_001
shared = mmap.mmap(-1, size * 4)
pinned = one.pin(memoryview(shared), like)
source, target = torch.arange(size, device=where, dtype=torch.float32), torch.zeros(size, device=where)
compute, out, back = one.current(), one.stream("out"), one.stream("back")
for number in range(20):
    torch.cuda._sleep(200_000_000)                # the copy must wait for what comes after this
    source.add_(1)
    one.wait(out, one.record(compute))
    one.copy(out, source, pinned)
    one.wait(back, one.record(out))
    one.copy(back, pinned, target)
    ended = threading.Event()
    mark = one.record(back)
    assert not one.reached(mark), "copies are not asynchronous"
    one.watch(mark, lambda error, ended=ended: (print(error) if error else None, ended.set()))
    assert ended.wait(60)
    assert torch.equal(pinned, source.cpu()) and torch.equal(target, source), number
try:
    device_cuda._register(pinned.data_ptr(), size * 4)
    raise SystemExit("registered twice")
except DeviceError as error:
    assert "712" in str(error), error
address = pinned.data_ptr()
one.close()
device_cuda.register(address, size * 4)           # close() has unregistered it
device_cuda.unregister(address)
print("right")
"""

REUSED = """
plans = {f"tensor {number}": device_plan(scattered(1), 400_003 + number, 4, 1 << 19) for number in range(8)}
host, one = Host(plans, 4, 1), device()
local = LocalDevice(one, Rank(host, 0), stall_seconds=60.0)
host.devices = [local]
for number in range(30):
    sums = {}
    for name, plan in plans.items():
        torch.cuda._sleep(1_000_000)
        gradient = torch.full((plan.size,), float(number), device=where)
        sums[name] = local.submit(name, plan, gradient)
        del gradient
        torch.full((plan.size,), -1.0, device=where)   # whoever is next in the allocator's memory
    for name, plan in plans.items():
        local.wait(sums[name])
        result = sums.pop(name).memory
        assert (result == number).all(), (name, number, result[:4])
local.close()
print("right")
"""


JOB = """
import torch, byteps.torch as bps
bps.init()
torch.cuda.set_device(bps.local_rank())
rank, size = bps.rank(), bps.size()
for number in range(10):
    for length in (5, 1000, 3_000_001):
        tensor = torch.arange(length, device="cuda", dtype=torch.float32).remainder(1000) + rank + number
        expected = torch.arange(length, device="cuda").remainder(1000) * size + sum(range(size)) + number * size
        result = bps.push_pull(tensor, f"out {length}", op="sum")
        assert torch.equal(result, expected.float()), (number, length)
        bps.push_pull_inplace(tensor, name=f"in {length}", op="sum")
        assert torch.equal(tensor, expected.float()), (number, length)
weights = bps.broadcast(torch.full((3,), float(rank), device="cuda"), 0, name="weights")
assert weights.tolist() == [0.0] * 3
print("right", flush=True)
"""


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("program", [REGISTERED, REUSED], ids=["registered memory", "memory reused"])
def test_one_gpu(program: str) -> None:
    assert "right" in run("-c", BEGIN + program)


def program(ranks: int) -> dict:
    settings = {"ranks": ranks, "tensors": 16, "nbytes": 4_000_012, "warmups": 1, "iterations": 10}
    return json.loads(run("-m", "experiments.device_program", json.dumps(settings)).splitlines()[-1])


def test_the_benchmark_s_program_sums_right_on_one_gpu() -> None:
    assert program(1)["max_error"] == 0


@two
def test_gpus_add_up_by_nccl() -> None:
    for ranks in sorted({2, GPUS}):
        assert program(ranks)["max_error"] == 0


@two
@pytest.mark.parametrize("switch", ["", "1"], ids=["NCCL alone", "a slot for each GPU"])
def test_a_job_on_all_gpus_of_a_machine(monkeypatch, switch: str) -> None:
    monkeypatch.setenv("BYTEPS_PCIE_SWITCH_SIZE", switch)
    numbers = ("--workers", str(GPUS), "--servers", "0", "--local-size", str(GPUS))
    assert run("-m", "byteps", "launch", *numbers, "--", sys.executable, "-c", JOB).count("right") == GPUS
