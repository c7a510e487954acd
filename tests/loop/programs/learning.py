"""What the training programs share: a small model with the awkward parts of large ones, its data, and the oracle."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

VOCABULARY, WIDTH, LENGTH = 11, 8, 5
OPTIMIZERS: dict[str, Callable[[Iterable], torch.optim.Optimizer]] = {
    "momentum": lambda params: torch.optim.SGD(params, lr=0.2, momentum=0.9, weight_decay=1e-3),
    # The gradient of an attention's key bias is 0 but for rounding, which Adam's usual eps would blow up.
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, eps=1e-4),
}


class Net(nn.Module):
    """A character model: weights shared by embedding and head, and an attention that peeks into its submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH) / 4)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.Tanh(), nn.Linear(3 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x) + self.place
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.head(h + self.wide(self.norm(h)))


def net(dtype: torch.dtype = torch.float64, seed: int = 1) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net().to(dtype)


def batch(step: int, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all workers together; depends on the step."""
    generator = torch.Generator().manual_seed(step)
    return tuple(torch.randint(VOCABULARY, (samples, LENGTH), generator=generator) for _ in range(2))


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def alone(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Sequence[tuple[torch.Tensor, torch.Tensor]]):
    """The oracle: one process with all samples."""
    for x, y in batches:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return model


def distance(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of a parameter."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max((a.double() - b.double()).abs().max().item() for a, b in pairs)
