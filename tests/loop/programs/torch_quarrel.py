"""Ranks of torch.distributed that do not do the same; run as a worker.

Arguments: "hook" or "backend" (as in torch_ddp.py), and what about.  Prints every error, and raises the first one.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import byteps.torch as bps
from byteps.errors import BytePSError

WAY, WHAT = sys.argv[1:]
torch.set_num_threads(1)
if WAY == "hook":
    bps.init()
limit = timedelta(seconds=1 if WHAT == "late" else 600)
dist.init_process_group("gloo" if WAY == "hook" else "byteps", timeout=limit)
rank, last = dist.get_rank(), dist.get_world_size() - 1
odd = rank == last


def layers() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(*(nn.Linear(30, 30) for _ in range(6)))


def die(*_: object) -> None:
    if odd and step == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def train(model: nn.Module) -> None:
    global step
    for step in range(4):
        loss = model(torch.ones(3, 30)).sum()
        print(f"step {step}", flush=True)
        loss.backward()


def ddp() -> DistributedDataParallel:
    model = layers()
    model[3].weight.register_hook(die)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1e-3)
    if WAY == "hook":
        wrapped.register_comm_hook(None, bps.ddp_hook)
    return wrapped


def fsdp() -> nn.Module:
    from torch.distributed.fsdp import fully_shard  # slow to import

    model = layers()
    model[3].register_full_backward_pre_hook(die)
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def another_layer() -> None:
    model = nn.Sequential(layers(), *([nn.Linear(30, 30)] if odd else []))
    DistributedDataParallel(model)(torch.ones(3, 30)).sum().backward()


def late() -> None:
    if odd:
        time.sleep(8)
    dist.barrier()


QUARRELS: dict[str, Callable[[], object]] = {
    "shape": lambda: dist.all_reduce(torch.ones(3, 5) if odd else torch.ones(5, 3)),
    "gathered shape": lambda: dist.all_gather([torch.ones(2 + odd)] * (last + 1), torch.ones(2 + odd)),
    "bytes": lambda: dist.broadcast(torch.ones(6 + odd, dtype=torch.uint8), 0),
    "kind": lambda: dist.broadcast(torch.ones(5), 0) if odd else dist.all_reduce(torch.ones(5)),
    "absent": lambda: None if odd else dist.all_reduce(torch.ones(5)),
    "late": late,
    "another layer": another_layer,
    "killed in DDP": lambda: train(ddp()),
    "killed in FSDP": lambda: train(fsdp()),
}
started = time.monotonic()
try:
    if WAY == "backend" and WHAT != "late":
        dist.all_reduce(torch.ones(7))  # a quick rank may be in the quarrel while a slow one still waits here
    QUARRELS[WHAT]()
except (BytePSError, RuntimeError) as error:
    print(f"error {type(error).__name__}: {error}", flush=True)
    print(f"after {time.monotonic() - started:.2f} s", flush=True)
    if WHAT not in ("late", "bytes", "another layer"):  # errors of one rank first, and of the job when that rank ends
        try:
            bps.push_pull(torch.ones(4), name="later")
        except BytePSError as again:
            print(f"error {type(again).__name__}: {again}", flush=True)
    raise
