"""A job whose last rank does something else than the others; run as every worker.  Argument: what."""

import sys
import time

import torch
from torch import nn

import byteps.torch as bps
from byteps.errors import BytePSError

WHAT = sys.argv[1]
bps.init()
RANK, ODD = bps.rank(), bps.rank() == bps.size() - 1


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()


def main() -> None:
    widths = (3, 4, 2) if WHAT != "shape" or not ODD else (3, 5, 2)
    layers = [nn.Linear(widths[0], widths[1]), nn.Linear(widths[1], widths[2])]
    if WHAT == "another layer" and ODD:
        layers.append(nn.Linear(2, 2))
    model = nn.Sequential(*layers)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if WHAT == "not distributed" and ODD:
        train(model, optimizer, 2)
        while True:
            time.sleep(0.1)  # evaluates, forever
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
    train(model, optimizer, 2)
    if WHAT == "fewer batches" and ODD:
        return
    model(torch.ones(1, 3)).sum().backward()
    if WHAT == "dropped gradients" and ODD:
        optimizer.zero_grad()
    else:
        optimizer.step()
    train(model, optimizer, 2)


try:
    main()
except BytePSError as error:
    print(f"error {type(error).__name__}: {error}", flush=True)
    sys.exit(1)
bps.shutdown()
