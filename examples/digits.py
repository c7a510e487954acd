"""Classify handwritten digits: a Horovod script, with `byteps.torch` for `horovod.torch`.

byteps launch --workers 2 --servers 1 -- python examples/digits.py

Every worker trains on its share of scikit-learn's 1,797 digits of 8 x 8 pixels, or, if that is not installed, of as
many that are made up.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import byteps.torch as bps


def digits() -> tuple[TensorDataset, TensorDataset]:
    """To train on, and to test with."""
    try:
        from sklearn.datasets import load_digits

        images, labels = map(torch.tensor, load_digits(return_X_y=True))
    except ImportError:
        random = torch.Generator().manual_seed(0)
        labels = torch.randint(10, (1797,), generator=random)
        prototypes = 16 * torch.rand(10, 64, generator=random)
        images = prototypes[labels] + 4 * torch.randn(1797, 64, generator=random)
    images = images.float().reshape(-1, 1, 8, 8) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))  # the same on every worker
    train, test = order[:1437], order[1437:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def network() -> nn.Sequential:
    """Two convolutions and two layers above them."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Classify handwritten digits on all workers.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="per worker")
    parser.add_argument("--lr", type=float, default=0.05, help="for one worker; scaled by their number")
    parser.add_argument("--fp16-allreduce", action="store_true", help="sum gradients in half precision")
    args = parser.parse_args()

    bps.init()
    torch.manual_seed(bps.rank())  # workers begin with different parameters, to be made equal below
    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * bps.size(), momentum=0.9)
    optimizer = bps.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=bps.Compression.fp16 if args.fp16_allreduce else bps.Compression.none,
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)

    training, test = digits()
    sampler: DistributedSampler[object] = DistributedSampler(training, num_replicas=bps.size(), rank=bps.rank())
    batches = DataLoader(training, batch_size=args.batch_size, sampler=sampler)
    images, labels = test[bps.rank() :: bps.size()]
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for batch, wanted in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), wanted)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = (model(images).argmax(1) == labels).sum()
        counts = bps.push_pull(torch.stack([right, torch.tensor(len(labels))]), "right", op="sum")
        if bps.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, test accuracy {counts[0] / counts[1]:.3f}", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
