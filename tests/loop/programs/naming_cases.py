"""Which gradients there are, and what they are called: names, groups, unused, frozen and sparse ones."""

import copy

import torch
from casebook import EACH, RANK, SIZE, backward, batches, case, close, counted, run, said, sgd
from learning import OPTIMIZERS, alone, net
from torch import nn

import byteps.torch as bps


@case
def two_optimizers_over_models_with_the_same_names(clear_by_model: bool = False) -> None:
    """A GAN: the generator's loss also reaches the discriminator, whose gradients are then dropped."""

    def make():
        torch.manual_seed(2)
        return nn.Linear(3, 3).double(), nn.Linear(3, 3).double()

    def losses(maker, judge, x):
        yield 1, judge(x).sin().mean() - judge(maker(x).detach()).sin().mean()
        yield 0, judge(maker(x)).cos().mean()

    def train(optimizers, models, part):
        for step in range(4):
            x = torch.randn(SIZE * EACH, 3, generator=torch.Generator().manual_seed(step)).double()[part]
            for which, loss in losses(*models, x):
                (models[which] if clear_by_model else optimizers[which]).zero_grad()
                loss.backward()
                optimizers[which].step()

    models, oracles = make(), make()
    train(
        [bps.DistributedOptimizer(sgd(model), model.named_parameters()) for model in models],
        models,
        slice(RANK, None, SIZE),
    )
    train([sgd(oracle) for oracle in oracles], oracles, slice(None))
    for model, oracle in zip(models, oracles, strict=True):
        close(model, oracle)


@case
def two_optimizers_cleared_by_the_model() -> None:
    two_optimizers_over_models_with_the_same_names(clear_by_model=True)


@case
def several_groups_without_names() -> None:
    model, oracle = net(), net()

    def groups(of):
        return [
            {"params": [p for p in of.parameters() if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in of.parameters() if p.dim() <= 1], "lr": 0.02},
        ]

    optimizer = bps.DistributedOptimizer(torch.optim.SGD(groups(model), lr=0.1, momentum=0.9))
    with counted() as counts:
        for x, y in batches(3):
            optimizer.zero_grad()
            backward(model, x, y)
            optimizer.step()
    assert sorted(counts.values()) == [1] + [3] * (1 + len(list(model.parameters()))), counts
    close(model, alone(oracle, torch.optim.SGD(groups(oracle), lr=0.1, momentum=0.9), batches(3)))


@case
def names_for_half_of_the_parameters() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    other = nn.Linear(1, 1)
    half = [*list(model.named_parameters())[:2], ("other.weight", other.weight)]
    said(
        lambda: bps.DistributedOptimizer(sgd(model), half),
        "no name for 2 of the optimizer's 4 parameters: group 0/parameter 2 (1, 3), group 0/parameter 3 (1,)",
        "it names 'other.weight'",
    )


@case
def names_given_twice() -> None:
    model = nn.Linear(2, 3)
    twice = [("a", model.weight), ("a", model.bias)]
    said(lambda: bps.DistributedOptimizer(sgd(model), twice), "the name 'a' twice")


@case
def names_in_another_order_on_one_rank() -> None:
    model, oracle = net(), net()
    names = list(model.named_parameters())
    optimizer = bps.DistributedOptimizer(sgd(model), reversed(names) if RANK == 1 else names)
    for x, y in batches(3):
        optimizer.zero_grad()
        backward(model, x, y)
        optimizer.step()
    close(model, alone(oracle, sgd(oracle), batches(3)))


@case
def priorities_are_the_order_of_the_forward_pass() -> None:
    """Also where modules are defined in another order."""
    model = nn.ModuleDict({"last": nn.Linear(2, 2), "first": nn.Linear(2, 2), "middle": nn.Linear(2, 2)})
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    model["last"](model["middle"](model["first"](torch.ones(1, 2)))).sum().backward()
    optimizer.step()
    slots = sorted(optimizer._reducer.slots, key=lambda slot: -slot.priority)
    assert list(dict.fromkeys(slot.name.partition(".")[0] for slot in slots)) == ["first", "middle", "last"]
    priorities = [slot.priority for slot in optimizer._reducer.slots]
    assert len(set(priorities)) == len(priorities)
    assert bps.broadcast_object(priorities, 0) == priorities


@case
def parameters_added_later() -> None:
    model = nn.Linear(2, 2)
    optimizer = bps.DistributedOptimizer(sgd(model))
    said(lambda: optimizer.add_param_group({"params": nn.Linear(1, 1).parameters()}), "before Distributed")


@case
def another_type_later() -> None:
    model = nn.Linear(2, 2)
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    model.double()
    said(lambda: model(torch.ones(1, 2).double()).sum().backward(), "'bias' is torch.float64", "convert the model")
    assert optimizer is not None


@case
def frozen_parameters_and_unfreezing() -> None:
    model, oracle = net(), net()
    for each in (model, oracle):
        each.wide.requires_grad_(False)
    optimizer, plain = bps.DistributedOptimizer(sgd(model), model.named_parameters()), sgd(oracle)
    for x, y in batches(2):
        optimizer.zero_grad()
        with counted() as counts:
            backward(model, x, y)
            optimizer.step()
        assert not [name for name in counts if ".wide." in name]
    close(model, alone(oracle, plain, batches(2)))
    assert torch.equal(model.wide[0].weight, net().wide[0].weight)
    for each in (model, oracle):
        each.wide.requires_grad_(True)
    for x, y in batches(3):
        optimizer.zero_grad()
        backward(model, x, y)
        optimizer.step()
    close(model, alone(oracle, plain, batches(3)))


class Heads(nn.Module):
    """Rank 0 uses one head, the others another, nobody the third."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body, self.a, self.b, self.c = (nn.Linear(3, 3) for _ in range(4))
        self.double()

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        return (self.b if rank else self.a)(self.body(x).tanh()).sin().mean()


@case
def parameters_unused_on_some_ranks(kind: str = "momentum", set_to_none: bool = True) -> None:
    model, oracle = Heads(), Heads()
    optimizer = bps.DistributedOptimizer(OPTIMIZERS[kind](model.parameters()), model.named_parameters())
    plain = OPTIMIZERS[kind](oracle.parameters())
    for step in range(4):
        x = torch.randn(SIZE, 2, 3, generator=torch.Generator().manual_seed(step)).double()
        optimizer.zero_grad(set_to_none=set_to_none)
        with counted() as counts:
            model(x[RANK], RANK).backward()
            optimizer.step()
        assert not [name for name in counts if "/c." in name]
        plain.zero_grad(set_to_none=set_to_none)
        sum(oracle(x[rank], rank) for rank in range(SIZE)).div(SIZE).backward()
        plain.step()
    close(model, oracle)
    assert model.c.weight.grad is None
    assert torch.equal(model.c.weight, Heads().c.weight)


@case
def unused_parameters_with_gradients_zeroed_in_place() -> None:
    parameters_unused_on_some_ranks("adam", set_to_none=False)


@case
def two_hundred_gradients_of_every_size_type_and_layout() -> None:
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
    shapes = [(), (0,), (1,), (7,), (2, 3, 4, 5), (300, 311), (3, 0, 2)]
    parameters = nn.ParameterList()
    for index in range(200):
        tensor = torch.zeros(shapes[index % len(shapes)], dtype=dtypes[index % len(dtypes)])
        if tensor.dim() == 4 and index % 2:
            tensor = tensor.to(memory_format=torch.channels_last)
        parameters.append(nn.Parameter(tensor))

    def slope(index: int, rank: int) -> torch.Tensor:
        """Integers of so few bits that their averages over three ranks are the nearest numbers to the true ones."""
        parameter = parameters[index]
        values = (torch.arange(parameter.numel()) * 7 + 13 * rank + index) % 61 - 30
        return values.reshape(parameter.shape).to(parameter.dtype)

    optimizer = bps.DistributedOptimizer(torch.optim.SGD(parameters.parameters(), lr=1.0))
    for _ in range(2):
        optimizer.zero_grad()
        torch.stack([(p * slope(i, RANK)).sum().double() for i, p in enumerate(parameters)]).sum().backward()
        optimizer.synchronize()
        for index, parameter in enumerate(parameters):
            total = sum(slope(index, rank).double() for rank in range(SIZE))
            wide = torch.float64 if parameter.dtype is torch.float64 else torch.float32
            assert torch.equal(parameter.grad, (total.to(wide) / SIZE).to(parameter.dtype)), index
            assert parameter.grad.stride() == parameter.stride() or parameter.numel() < 2


@case
def gradients_set_by_hand() -> None:
    model = nn.Linear(2, 2)
    optimizer = bps.DistributedOptimizer(sgd(model, lr=1.0), model.named_parameters())
    before = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float(RANK))
    optimizer.step()
    assert torch.allclose(before.weight - model.weight, torch.tensor((SIZE - 1) / 2))


def lookups(sparse: bool) -> nn.Embedding:
    torch.manual_seed(4)
    return nn.Embedding(6, 2, padding_idx=0, sparse=sparse, dtype=torch.float64)


@case
def sparse_gradients() -> None:
    """Rank 1 only sees padding: its gradient has no entries."""
    model = lookups(sparse=True)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    model(torch.tensor([0, 0]) if RANK == 1 else torch.tensor([1, 2])).sum().backward()
    said(optimizer.step, "gradient of 'weight' is sparse", "sparse_as_dense=True")


@case
def sparse_gradients_as_dense_ones() -> None:
    model, oracle = lookups(sparse=True), lookups(sparse=False)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), sparse_as_dense=True
    )
    plain = torch.optim.SGD(oracle.parameters(), lr=0.1)
    for step in range(3):
        rows = [torch.tensor([0, 0]) if rank == 1 else torch.tensor([rank + 1, step]) for rank in range(SIZE)]
        optimizer.zero_grad()
        model(rows[RANK]).sin().mean().backward()
        optimizer.step()
        plain.zero_grad()
        sum(oracle(row).sin().mean() for row in rows).div(SIZE).backward()
        plain.step()
    close(model, oracle)


run()
