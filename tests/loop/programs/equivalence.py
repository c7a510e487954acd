"""Workers with batch b train as one process with all their samples does; run as every worker."""

import torch
from learning import OPTIMIZERS, alone, batch, distance, loss_of, net

import byteps.torch as bps

bps.init()
RANK, SIZE = bps.rank(), bps.size()
STEPS, EACH = 6, 4
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def train(kind: str, dtype: torch.dtype, *, accumulate: int = 1, crossing: bool = False, unnamed: bool = False) -> None:
    """SIZE workers, each with its part of the batch, in `accumulate` backward passes."""
    model, oracle = net(dtype), net(dtype)
    if RANK:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(RANK)  # broadcast_parameters makes up for it
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = bps.DistributedOptimizer(
        OPTIMIZERS[kind](model.parameters()),
        None if unnamed else model.named_parameters(),
        backward_passes_per_step=accumulate,
        cross_barrier=model if crossing else None,
    )
    batches = [batch(step, SIZE * EACH * accumulate) for step in range(STEPS)]
    for x, y in batches:
        for part in range(accumulate):
            chosen = slice(RANK * accumulate + part, None, SIZE * accumulate)
            (loss_of(model, x[chosen], y[chosen]) / accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.synchronize()
    alone(oracle, OPTIMIZERS[kind](oracle.parameters()), batches)
    far = distance(model, oracle)
    assert far <= TOLERANCE[dtype], f"{kind} {dtype} accumulate={accumulate} crossing={crossing}: {far}"
    assert distance(oracle, net(dtype)) > 0.01  # it moved


def weighted(kind: str) -> None:
    """Ranks have different batch sizes, which change from step to step; one rank has no samples at times."""
    model, oracle = net(), net()
    optimizer = bps.DistributedOptimizer(OPTIMIZERS[kind](model.parameters()), model.named_parameters())
    batches = []
    for step in range(STEPS):
        sizes = [(rank * 3 + step) % 5 + (rank == 0) for rank in range(SIZE)]
        x, y = batch(step, sum(sizes))
        batches.append((x, y))
        start = sum(sizes[:RANK])
        mine = slice(start, start + sizes[RANK])
        optimizer.zero_grad()
        optimizer.batch_size = sizes[RANK]
        if sizes[RANK]:
            loss_of(model, x[mine], y[mine]).backward()
        optimizer.step()
    alone(oracle, OPTIMIZERS[kind](oracle.parameters()), batches)
    far = distance(model, oracle)
    assert far <= 1e-12, f"weighted {kind}: {far}"


def compressed() -> None:
    """In 16 bits close to the oracle, and the same on all ranks."""
    for compression, tolerance in ((bps.Compression.fp16, 2e-3), (bps.Compression.bf16, 2e-2)):
        model, oracle = net(torch.float32), net(torch.float32)
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression=compression
        )
        batches = [batch(step, SIZE * EACH) for step in range(STEPS)]
        for x, y in batches:
            optimizer.zero_grad()
            loss_of(model, x[RANK::SIZE], y[RANK::SIZE]).backward()
            optimizer.step()
        alone(oracle, torch.optim.SGD(oracle.parameters(), lr=0.1), batches)
        assert 0 < distance(model, oracle) < tolerance
        ours = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        assert torch.equal(bps.broadcast(ours, 0), ours)


def summed() -> None:
    model, oracle = net(), net()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1 / SIZE), model.named_parameters(), op=bps.Sum
    )
    batches = [batch(step, SIZE * EACH) for step in range(STEPS)]
    for x, y in batches:
        optimizer.zero_grad()
        loss_of(model, x[RANK::SIZE], y[RANK::SIZE]).backward()
        optimizer.step()
    alone(oracle, torch.optim.SGD(oracle.parameters(), lr=0.1), batches)
    assert distance(model, oracle) <= 1e-12


for kind in OPTIMIZERS:
    train(kind, torch.float64)
    train(kind, torch.float64, crossing=True)
    train(kind, torch.float64, accumulate=3)
    train(kind, torch.float64, accumulate=2, crossing=True, unnamed=True)
    train(kind, torch.float32, unnamed=True)
    weighted(kind)
compressed()
summed()
print("right", flush=True)
