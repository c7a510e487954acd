"""The backend "byteps" in one process: alone, and where it cannot begin."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402

import byteps.torch as bps  # noqa: E402
from byteps.errors import BytePSError  # noqa: E402
from byteps.session import init  # noqa: E402
from byteps.settings import Settings  # noqa: E402


@pytest.fixture(autouse=True)
def _left() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
    bps.shutdown()


def begin(rank: int, size: int) -> None:
    dist.init_process_group("byteps", store=dist.HashStore(), rank=rank, world_size=size)


def test_one_process_alone_needs_nobody():
    begin(0, 1)
    tensor = torch.arange(6.0).reshape(2, 3)
    work = dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=True)
    assert work.wait(timedelta(seconds=1))
    assert work.get_future().wait()[0] is tensor
    assert torch.equal(tensor, torch.arange(6.0).reshape(2, 3))
    rows = [torch.zeros(2, 3)]
    dist.all_gather(rows, tensor)
    assert torch.equal(rows[0], tensor)
    everything: list[object] = [None]
    dist.all_gather_object(everything, "mine")
    assert everything == ["mine"]
    dist.barrier()


def test_more_ranks_than_workers_are_told_how_to_start():
    with pytest.raises(BytePSError, match=r"has 3 ranks, the BytePS job 1 workers.*'byteps launch --workers 3'"):
        begin(0, 3)
    assert not bps.is_initialized()


def test_a_rank_that_is_another_worker_is_told_so():
    init(Settings(num_workers=1))
    with pytest.raises(BytePSError, match=r"is rank 1 of torch\.distributed and rank 0 of the BytePS job"):
        bps.backend._join(1, 1)


def test_the_hook_needs_a_job():
    with pytest.raises(BytePSError, match=r"not initialised in this process; call byteps\.init\(\) first"):
        bps.ddp_hook(None, None)


def test_torch_without_its_distributed_package_has_all_but_the_hook():
    code = """
import torch
torch.distributed.is_available = lambda: False
import byteps.torch as bps
bps.init()
assert bps.push_pull(torch.ones(2)).tolist() == [1, 1]
bps.ddp_hook
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "has no 'ddp_hook': this torch was built without torch.distributed" in result.stderr
