"""Sharded training over the backend "byteps" against one process with all samples; run as every worker."""

import warnings
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from learning import OPTIMIZERS, alone, batch, loss_of, net
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import byteps.torch  # noqa: F401  # registers the backend

STEPS, EACH = 4, 2
LAYERS = (nn.MultiheadAttention, nn.LayerNorm, nn.Sequential)


def sharded(model: nn.Module, mesh: DeviceMesh, **options: object) -> nn.Module:
    """As one writes it today."""
    for module in model.modules():
        if isinstance(module, LAYERS):
            fully_shard(module, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def wrapped(model: nn.Module, strategy: ShardingStrategy, mesh: DeviceMesh) -> nn.Module:
    """As one wrote it before."""
    return FullyShardedDataParallel(
        model,
        sharding_strategy=strategy,
        auto_wrap_policy=ModuleWrapPolicy(LAYERS),
        device_id=torch.device("cpu"),
        device_mesh=mesh,
        use_orig_params=True,
    )


def far(model: nn.Module, oracle: nn.Module) -> float:
    """The largest difference of a parameter, as a checkpoint of the whole model would have it on every rank."""
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return max((state[name].double() - value).abs().max().item() for name, value in oracle.state_dict().items())


def train(what: str, shard: Callable[[nn.Module], nn.Module], kind: str, accumulate: int = 1) -> None:
    model = shard(net())
    optimizer = OPTIMIZERS[kind](model.parameters())
    batches = [batch(step, SIZE * EACH * accumulate) for step in range(STEPS)]
    for x, y in batches:
        optimizer.zero_grad()
        for part in range(accumulate):
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(part == accumulate - 1)
            chosen = slice(RANK * accumulate + part, None, SIZE * accumulate)
            (loss_of(model, x[chosen], y[chosen]) / accumulate).backward()
        optimizer.step()
    oracle = net()
    alone(oracle, OPTIMIZERS[kind](oracle.parameters()), batches)
    distance = far(model, oracle)
    assert distance <= 1e-12, f"{what} {kind} {accumulate}: {distance}"
    assert far(model, net()) > 0.01  # it moved


def sixteen_bits(mesh: DeviceMesh) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model, oracle = sharded(net(torch.float32), mesh, mp_policy=policy), net(torch.float32)
    optimizer, other = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, oracle))
    for step in range(STEPS):
        x, y = batch(step, SIZE * EACH)
        for each, opt, chosen in ((model, optimizer, slice(RANK, None, SIZE)), (oracle, other, slice(None))):
            opt.zero_grad()
            loss_of(each, x[chosen], y[chosen]).backward()
            opt.step()
    assert 0 < far(model, oracle) < 2e-2


def clipped(mesh: DeviceMesh) -> None:
    """The norm is that of all shards."""
    model, oracle = sharded(net(), mesh), net()
    x, y = batch(0, SIZE * EACH)
    loss_of(model, x[RANK::SIZE], y[RANK::SIZE]).backward()
    loss_of(oracle, x, y).backward()
    ours = nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()
    torch.testing.assert_close(ours, nn.utils.clip_grad_norm_(oracle.parameters(), 0.1), rtol=0, atol=1e-12)


warnings.simplefilter("ignore", FutureWarning)  # of torch, about its own older names
warnings.simplefilter("ignore", UserWarning)  # FSDP warns that CPUs are no GPUs
torch.set_num_threads(1)
dist.init_process_group("byteps")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
flat = init_device_mesh("cpu", (SIZE,))
ways: dict[str, Callable[[nn.Module], nn.Module]] = {"fully_shard": partial(sharded, mesh=flat)}
for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
    ways[strategy.name] = partial(wrapped, strategy=strategy, mesh=flat)
if SIZE == 4:
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    ways["fully_shard of a grid"] = partial(sharded, mesh=grid)
    for strategy in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2):
        ways[strategy.name] = partial(wrapped, strategy=strategy, mesh=grid)
for what, shard in ways.items():
    for kind in OPTIMIZERS:
        train(what, shard, kind)
        print(f"{what} {kind} right", flush=True)
train("fully_shard", ways["fully_shard"], "momentum", accumulate=3)
sixteen_bits(flat)
clipped(flat)
print("all right", flush=True)
dist.barrier()
dist.destroy_process_group()
