"""Tensors on a GPU: the result is right, on the same device, and the source is untouched."""

import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")

PROGRAM = textwrap.dedent("""
    import torch, byteps.torch as bps
    bps.init()
    rank, size = bps.rank(), bps.size()
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):
        source = (torch.arange(1001, device="cuda") % 100 + rank).to(dtype)
        before = source.clone()
        expected = ((torch.arange(1001, device="cuda") % 100) * size + sum(range(size))).to(dtype)
        result = bps.push_pull(source, f"out/{dtype}", op="sum")
        assert result.device == source.device and torch.equal(result, expected), dtype
        assert torch.equal(source, before), dtype
        bps.push_pull_inplace(source, f"in/{dtype}", op="sum")
        assert torch.equal(source, expected), dtype
    print("right", flush=True)
""")


def test_cuda_tensors_are_summed_on_their_device() -> None:
    command = [sys.executable, "-m", "byteps", "launch", "--workers", "2", "--servers", "1", "--"]
    done = subprocess.run([*command, sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == 2
