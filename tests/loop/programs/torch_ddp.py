"""DistributedDataParallel against one process with all samples; run as every worker.

Argument: "hook" (byteps.torch.ddp_hook in a process group of gloo) or "backend" (a process group of byteps).
"""

import sys
import warnings
from collections import Counter

import torch
import torch.distributed as dist
from learning import OPTIMIZERS, alone, batch, distance, loss_of, net
from torch import nn
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel

import byteps.torch as bps
from byteps.session import Session

WAY = sys.argv[1]
STEPS, EACH = 6, 4
TOLERANCE = 1e-12
ROUNDS: Counter[str] = Counter()


def counting(submit):
    def counted(self, spec, *arguments):
        ROUNDS[spec.name.rpartition(" #")[0] or spec.name.partition("/bucket")[0]] += 1
        return submit(self, spec, *arguments)

    return counted


def parallel(model: nn.Module, name: str | None = None, **options: object) -> DistributedDataParallel:
    wrapped = DistributedDataParallel(model, **options)
    if WAY == "hook":
        wrapped.register_comm_hook(name, bps.ddp_hook)
    return wrapped


def train(kind: str, accumulate: int = 1, **options: object) -> None:
    """Each worker has its part of the batch, in `accumulate` backward passes of which the last one reduces."""
    model, oracle = net(), net()
    if RANK:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(RANK)  # DDP spreads rank 0's
    wrapped = parallel(model, **options)
    optimizer = OPTIMIZERS[kind](wrapped.parameters())
    batches = [batch(step, SIZE * EACH * accumulate) for step in range(STEPS)]
    for x, y in batches:
        optimizer.zero_grad()
        for part in range(accumulate):
            chosen = slice(RANK * accumulate + part, None, SIZE * accumulate)
            wrapped.require_backward_grad_sync = part == accumulate - 1  # as no_sync() does
            (loss_of(wrapped, x[chosen], y[chosen]) / accumulate).backward()
        optimizer.step()
    alone(oracle, OPTIMIZERS[kind](oracle.parameters()), batches)
    far = distance(model, oracle)
    assert far <= TOLERANCE, f"{kind} {accumulate} {options}: {far}"
    assert distance(oracle, net()) > 0.01  # it moved


def equivalence() -> None:
    for kind in OPTIMIZERS:
        train(kind)
        train(kind, bucket_cap_mb=1e-4, gradient_as_bucket_view=True)
    train("momentum", accumulate=3, bucket_cap_mb=1e-4)
    train("momentum", static_graph=True, bucket_cap_mb=1e-4)
    train("momentum", find_unused_parameters=True)


def no_sync_is_one_reduction() -> None:
    model = net()
    wrapped = parallel(model)
    x, y = batch(0, SIZE * EACH)
    for _ in range(2):  # the second pass has the buckets that stay
        loss_of(wrapped, x, y).backward()
    kind = "DDP" if WAY == "hook" else "world: all_reduce SUM"
    model.zero_grad()
    before = ROUNDS[kind]
    with wrapped.no_sync():
        for _ in range(3):
            loss_of(wrapped, x[RANK::SIZE], y[RANK::SIZE]).backward()
    assert ROUNDS[kind] == before
    loss_of(wrapped, x[RANK::SIZE], y[RANK::SIZE]).backward()
    assert ROUNDS[kind] == before + (SIZE > 1 or WAY == "hook"), ROUNDS
    oracle = net()
    (4 * loss_of(oracle, x, y)).backward()
    for ours, theirs in zip(model.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=TOLERANCE)


class Heads(nn.Module):
    """Rank 0 uses another head than the others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body, self.heads = nn.Linear(5, 6), nn.ModuleList(nn.Linear(6, 2) for _ in range(3))

    def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
        return self.heads[head](torch.tanh(self.body(x)))


def unused_parameters_count_as_zero_and_those_of_nobody_are_left_alone() -> None:
    model, oracle = Heads().double(), Heads().double()
    wrapped = parallel(model, find_unused_parameters=True, bucket_cap_mb=1e-4)
    for step in range(3):
        x = [
            torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step * 9 + rank))
            for rank in range(SIZE)
        ]
        model.zero_grad()
        oracle.zero_grad()
        wrapped(x[RANK], int(RANK > 0)).square().mean().backward()
        (sum(oracle(x[r], int(r > 0)).square().mean() for r in range(SIZE)) / SIZE).backward()
        for (name, ours), theirs in zip(model.named_parameters(), oracle.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None), name
            if ours.grad is not None:
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=TOLERANCE)


def mixed_precision() -> None:
    """bf16 computation on fp32 parameters; and gradients in 16 bits, averaged in fp32."""
    model, oracle = net(torch.float32), net(torch.float32)
    wrapped = parallel(model)
    optimizer, other = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, oracle))
    for step in range(STEPS):
        x, y = batch(step, SIZE * EACH)
        for each, opt, chosen in ((wrapped, optimizer, slice(RANK, None, SIZE)), (oracle, other, slice(None))):
            opt.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(each, x[chosen], y[chosen])
            loss.backward()
            opt.step()
    assert distance(model, oracle) < 2e-2
    everywhere_the_same(model)
    half = net(torch.bfloat16)
    wrapped = parallel(half)
    loss_of(wrapped, *(each[RANK::SIZE] for each in batch(0, SIZE * EACH))).backward()
    assert half.head.bias.grad.dtype == torch.bfloat16
    oracle = net(torch.bfloat16)
    loss_of(oracle, *batch(0, SIZE * EACH)).backward()
    torch.testing.assert_close(half.head.bias.grad, oracle.head.bias.grad, rtol=0.05, atol=0.01)


def everywhere_the_same(model: nn.Module) -> None:
    ours = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(bps.broadcast(ours, 0), ours)


def infinite_on_one_rank() -> None:
    """The scaler skips the step on all ranks, since the average is infinite everywhere."""
    model = net(torch.float32)
    wrapped = parallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for step in range(3):
        x, y = batch(step, SIZE * EACH)
        optimizer.zero_grad()
        loss = loss_of(wrapped, x[RANK::SIZE], y[RANK::SIZE])
        scaler.scale(loss * (float("inf") if step == 1 and RANK == SIZE - 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 512.0
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    everywhere_the_same(model)


def two_models() -> None:
    """Of one shape, with backward passes of both at once."""
    models, oracles = [net(seed=1), net(seed=2)], [net(seed=1), net(seed=2)]
    wrapped = [parallel(model, f"model {index}", bucket_cap_mb=1e-4) for index, model in enumerate(models)]
    for step in range(3):
        x, y = batch(step, SIZE * EACH)
        mine = slice(RANK, None, SIZE)
        sum(loss_of(model, x[mine], y[mine]) * (index + 1) for index, model in enumerate(wrapped)).backward()
        sum(loss_of(model, x, y) * (index + 1) for index, model in enumerate(oracles)).backward()
    for model, oracle in zip(models, oracles, strict=True):
        for ours, theirs in zip(model.parameters(), oracle.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=TOLERANCE)


def unequal_numbers_of_batches() -> None:
    """DDP's own join: ranks that are through shadow the others' collectives."""
    model = net()
    wrapped = parallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    with Join([wrapped]):
        for step in range(3 + RANK):
            x, y = batch(step, SIZE * EACH)
            optimizer.zero_grad()
            loss_of(wrapped, x[RANK::SIZE], y[RANK::SIZE]).backward()
            optimizer.step()
    everywhere_the_same(model)


def torch_hooks_around_it() -> None:
    """A hook of torch's own, around ours or over the process group."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model, oracle = net(torch.float32), net(torch.float32)
    wrapped = DistributedDataParallel(model)
    hook = bps.ddp_hook if WAY == "hook" else default_hooks.allreduce_hook
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_wrapper(hook))
    x, y = batch(0, SIZE * EACH)
    loss_of(wrapped, x[RANK::SIZE], y[RANK::SIZE]).backward()
    loss_of(oracle, x, y).backward()
    for ours, theirs in zip(model.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0.05, atol=0.01)


def compiled() -> None:
    """The model in DDP, or DDP itself with its calls of the process group."""
    for whole in (False, True):
        model, oracle = net(), net()
        wrapped = parallel(model if whole else torch.compile(model, backend="eager"))
        outside = torch.compile(wrapped, backend="eager") if whole else wrapped
        optimizer = OPTIMIZERS["momentum"](model.parameters())
        batches = [batch(step, SIZE * EACH) for step in range(3)]
        for x, y in batches:
            optimizer.zero_grad()
            loss_of(outside, x[RANK::SIZE], y[RANK::SIZE]).backward()
            optimizer.step()
        alone(oracle, OPTIMIZERS["momentum"](oracle.parameters()), batches)
        assert distance(model, oracle) <= TOLERANCE, f"compiled {whole}"


def a_group_beside_the_default_one() -> None:
    group = dist.new_group(backend="byteps" if WAY == "hook" else "gloo")
    total = torch.full((3,), float(RANK))
    dist.all_reduce(total, group=group)
    assert torch.equal(total, torch.full((3,), SIZE * (SIZE - 1) / 2))


warnings.simplefilter("ignore", UserWarning)  # of find_unused_parameters where all are used
torch.set_num_threads(1)
bps.init()
dist.init_process_group("gloo" if WAY == "hook" else "byteps")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
Session.submit = counting(Session.submit)
for check in (
    equivalence,
    no_sync_is_one_reduction,
    unused_parameters_count_as_zero_and_those_of_nobody_are_left_alone,
    mixed_precision,
    infinite_on_one_rank,
    two_models,
    unequal_numbers_of_batches,
    torch_hooks_around_it,
    compiled,
    a_group_beside_the_default_one,
):
    check()
    print(f"{check.__name__} right", flush=True)
print("all right", flush=True)
dist.barrier()
dist.destroy_process_group()
