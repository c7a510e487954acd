"""Cases of training that one job runs one after the other; run as every worker.

Prints "CASE right" per case; an error that every rank must raise is printed as "CASE said TEXT".
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from learning import batch, distance, loss_of
from torch import nn

import byteps.torch as bps
from byteps.errors import BytePSError
from byteps.session import current

bps.init()
RANK, SIZE = bps.rank(), bps.size()
EACH = 4
_cases: list[Callable[[], None]] = []


def case(function: Callable[[], None]) -> Callable[[], None]:
    _cases.append(function)
    return function


def run() -> None:
    for function in _cases:
        torch.manual_seed(0)
        function()
        print(f"{function.__name__} right", flush=True)


def said(call: Callable[[], object], *words: str) -> None:
    """The error that a call must raise; the test compares the ranks' texts."""
    try:
        call()
    except (BytePSError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
    else:
        text = "nothing"
    assert all(word in text for word in words), text
    print(f"case said {text}", flush=True)


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def batches(steps: int, each: int = EACH) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [batch(step, SIZE * each) for step in range(steps)]


def backward(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of this rank's part of the batch."""
    loss = loss_of(model, x[RANK::SIZE], y[RANK::SIZE])
    loss.backward()
    return loss


def close(model: nn.Module, oracle: nn.Module, tolerance: float = 1e-12) -> None:
    far = distance(model, oracle)
    assert far <= tolerance, far


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """How often each tensor is submitted."""
    session, counts = current(), {}
    plain = session.submit

    def submit(spec, source, target, priority):
        counts[spec.name] = counts.get(spec.name, 0) + 1
        return plain(spec, source, target, priority)

    session.submit = submit
    try:
        yield counts
    finally:
        del session.submit
