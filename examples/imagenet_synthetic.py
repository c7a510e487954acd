"""How many images per second: Horovod's synthetic benchmark, with the lines that it prints.

byteps launch --workers 2 --servers 1 -- python examples/imagenet_synthetic.py

Without a GPU, or with --no-cuda, it runs on the CPU.  The default model is in this file and small; `--model resnet50`
and all others of torchvision need that package.
"""

import argparse
import timeit

import numpy as np
import torch
from torch import nn

import byteps.torch as bps


def small(classes: int = 1000) -> nn.Module:
    """Four convolutions: 0.7 million parameters, most of them in the classifier, as in the first ImageNet models."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (16, 32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, classes))


def build(name: str) -> nn.Module:
    if name == "small":
        return small()
    try:
        from torchvision import models
    except ImportError:
        raise SystemExit(f"--model {name} needs torchvision: pip install torchvision, or use --model small") from None
    return models.get_model(name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Horovod's synthetic benchmark.")
    parser.add_argument("--model", default="small", help="small, or a name of torchvision.models")
    parser.add_argument("--batch-size", type=int, default=32, help="per worker")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument("--fp16-allreduce", action="store_true", help="sum gradients in half precision")
    parser.add_argument("--no-cuda", action="store_true")
    args = parser.parse_args()

    bps.init()
    cuda = torch.cuda.is_available() and not args.no_cuda
    kind = "GPU" if cuda else "CPU"
    if cuda:
        torch.cuda.set_device(bps.local_rank())
    else:
        torch.set_num_threads(1)
    device = torch.device("cuda" if cuda else "cpu")

    model = build(args.model).to(device)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        compression=bps.Compression.fp16 if args.fp16_allreduce else bps.Compression.none,
    )
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    data = torch.randn(args.batch_size, 3, args.image_size, args.image_size, device=device)
    target = torch.randint(1000, (args.batch_size,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), target).backward()
        optimizer.step()
        if cuda:
            torch.cuda.synchronize()

    def log(text: str) -> None:
        if bps.rank() == 0:
            print(text, flush=True)

    log(f"Model: {args.model}")
    log(f"Batch size: {args.batch_size}")
    log(f"Number of {kind}s: {bps.size()}")
    log("Running warmup...")
    timeit.timeit(step, number=args.num_warmup_batches)
    log("Running benchmark...")
    rates = []
    for iteration in range(args.num_iters):
        seconds = timeit.timeit(step, number=args.num_batches_per_iter)
        rates.append(args.batch_size * args.num_batches_per_iter / seconds)
        log(f"Iter #{iteration}: {rates[-1]:.1f} img/sec per {kind}")
    mean, spread = np.mean(rates), 1.96 * np.std(rates)
    log(f"Img/sec per {kind}: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {bps.size()} {kind}(s): {bps.size() * mean:.1f} +-{bps.size() * spread:.1f}")
    bps.shutdown()


if __name__ == "__main__":
    main()
