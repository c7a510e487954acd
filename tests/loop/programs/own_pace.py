"""DistributedOptimizer without a common step, run as a worker.  Arguments: the case, and a folder that all workers see.

Gradients are chosen here, as whole numbers, so that weights are exact in any order.  Prints "right".
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import byteps.torch as bps
from byteps.errors import BytePSError


def net(value: float) -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 300), nn.Linear(300, 500, bias=False))
    model.to(memory_format=torch.channels_last)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer, gradient: float) -> None:
    optimizer.zero_grad()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()


def holds(model: nn.Module, value: float) -> bool:
    return all(bool((parameter == value).all()) for parameter in model.parameters())


def conservation(folder: Path) -> None:
    """Initial weights of rank 0, and every rank's differences, its own momentum included; then the same everywhere."""
    rank, size = bps.rank(), bps.size()
    model = net(100 if rank == 0 else -1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), mode="async", backward_passes_per_step=2)
    assert holds(model, 100) or rank != 0
    want = 100.0
    for other in range(size):
        momentum = 0.0
        for number in range(other + 3):
            momentum = 0.5 * momentum + 8 * (number + 1)
            want -= momentum
    for number in range(rank + 3):
        step(model, optimizer, 8 * (number + 1))
        scheduler.step()
        optimizer.synchronize()
    assert bps.join() == size - 1
    assert holds(model, want), (next(model.parameters()).flatten()[0], want)
    assert isinstance(optimizer, torch.optim.SGD)
    step(model, optimizer, 0.0)  # and on it goes
    bps.join()


def straggler(folder: Path) -> None:
    """The fastest rank is never more than 1 step ahead."""
    rank, size, bound = bps.rank(), bps.size(), 1
    clocks = np.memmap(folder / "clocks", np.int64, "r+", shape=(size,))
    model = net(0)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1), model.named_parameters(), mode="ssp", staleness=bound
    )
    for number in range(1, 9):
        time.sleep(0.08 if rank == 0 else 0.0)
        clocks[rank] = number
        step(model, optimizer, -1.0)
        ahead = number - int(clocks.min())
        assert ahead <= bound, f"{ahead} ahead at step {number}"
    bps.join()
    assert holds(model, 8 * size)


def bulk(folder: Path) -> None:
    """With a bound of 0 it is a synchronous sum: after every step all ranks have the same weights."""
    rank, size = bps.rank(), bps.size()
    model = net(5)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), mode="ssp", staleness=0)
    for number in range(1, 5):
        step(model, optimizer, -float(rank + 1))
        assert holds(model, 5 + number * size * (size + 1) // 2)


def training(folder: Path) -> None:
    conservation(folder)
    straggler(folder)
    bulk(folder)


def alone(folder: Path) -> None:
    conservation(folder)
    misuse(folder)


def variable(folder: Path) -> None:
    """BYTEPS_ENABLE_ASYNC chooses the mode where the script does not: one rank steps alone."""
    model = net(0)
    optimizer = bps.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters())
    if bps.rank() == 0:
        for _ in range(3):
            model(torch.ones(2, 3, 4, 4)).sum().backward()
            optimizer.step()
    layer = nn.Linear(3, 4)
    shy = torch.optim.LBFGS(layer.parameters(), lr=0.1)  # closures may be called differently often
    shy = bps.DistributedOptimizer(shy, layer.named_parameters())

    def closure() -> torch.Tensor:
        shy.zero_grad()
        loss = (layer(torch.ones(2, 3)) - 1).square().mean()
        loss.backward()
        return loss

    if bps.rank() == 1:
        assert float(shy.step(closure)) > 0
    bps.join()
    weights = layer.weight.tolist()
    assert weights == bps.broadcast_object(weights, 0)
    synchronous = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), mode="bsp")
    step(model, synchronous, 1.0)


def quarrel(folder: Path) -> None:
    """Modes differ between ranks."""
    model = net(0)
    bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), mode=["bsp", "async"][bps.rank() % 2])


def misuse(folder: Path) -> None:
    model = net(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    for options, text in [
        ({"mode": "fast"}, "mode='fast' is none; use 'bsp', 'async', or 'ssp'"),
        ({"mode": "ssp"}, "mode='ssp' needs a staleness"),
        ({"mode": "async", "staleness": 3}, "staleness=3 goes with mode='ssp'"),
        ({"staleness": 3}, "staleness=3 goes with mode='ssp'"),
        ({"mode": "ssp", "staleness": -1}, "staleness=-1; use the number of steps"),
        ({"mode": "async", "op": "sum"}, "op means nothing with mode='async'"),
        ({"mode": "async", "compression": bps.Compression.fp16}, "compression means nothing"),
        ({"mode": "async", "cross_barrier": model}, "cross_barrier means nothing"),
    ]:
        said = ""
        try:
            bps.DistributedOptimizer(optimizer, **options)
        except BytePSError as error:
            said = str(error)
        assert text in said, f"not {text!r} but {said!r}"
    bps.DistributedOptimizer(optimizer, mode="async")
    for attempt in (lambda: bps.DistributedOptimizer(optimizer), lambda: optimizer.add_param_group({"params": []})):
        said = ""
        try:
            attempt()
        except BytePSError as error:
            said = str(error)
        assert "distributed" in said


CASES = [training, alone, variable, quarrel]
try:
    bps.init()
    torch.set_num_threads(1)
    {case.__name__: case for case in CASES}[sys.argv[1]](Path(sys.argv[2]))
    print("right", flush=True)
    bps.shutdown()
except BytePSError as error:
    print(f"error {type(error).__name__}: {error}", flush=True)
    sys.exit(1)
