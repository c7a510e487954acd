"""What ranks do together besides training: resume, join, weigh, start a second phase."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from casebook import RANK, SIZE, backward, batches, case, close, counted, run, said, sgd
from learning import OPTIMIZERS, alone, batch, distance, net
from torch import nn

import byteps.torch as bps
from byteps.torch import gradients
from byteps.torch.tensors import Handle


@case
def resuming_on_rank_0_only() -> None:
    for kind, make in OPTIMIZERS.items():
        oracle = net()
        plain = make(oracle.parameters())
        plain.param_groups[0]["lr"] *= 0.5
        alone(oracle, plain, batches(3))
        checkpoint = copy.deepcopy((oracle.state_dict(), plain.state_dict()))
        model = net(seed=5 + RANK)
        optimizer = make(model.parameters())
        if RANK == 0:
            model.load_state_dict(checkpoint[0])
            optimizer.load_state_dict(checkpoint[1])
        optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
        with counted() as counts:
            bps.broadcast_parameters(model.state_dict(), root_rank=0)
        assert len(counts) == len(list(model.parameters())) < len(model.state_dict())  # a shared parameter once
        bps.broadcast_optimizer_state(optimizer, root_rank=0)
        for x, y in batches(3):
            optimizer.zero_grad()
            backward(model, x, y)
            optimizer.step()
        alone(oracle, plain, batches(3))
        close(model, oracle)
        saved = optimizer.state_dict()
        fresh = make(net().parameters())
        fresh.load_state_dict(saved)  # a checkpoint of a plain optimizer
        assert saved["param_groups"] == plain.state_dict()["param_groups"], kind


@case
def joining_after_unequal_numbers_of_batches() -> None:
    model, oracle = net(), net()
    optimizer, plain = bps.DistributedOptimizer(sgd(model), model.named_parameters()), sgd(oracle)
    idle = nn.Linear(2, 2)
    others = bps.DistributedOptimizer(sgd(idle), idle.named_parameters())  # which only the last rank steps, at the end
    for step in range(2 + RANK):
        x, y = batch(step, SIZE)
        optimizer.zero_grad()
        backward(model, x, y)
        optimizer.step()
    if RANK == SIZE - 1:
        idle(torch.ones(1, 2)).sum().backward()
        others.step()
    assert bps.join() == SIZE - 1
    bps.broadcast_parameters(model.state_dict(), root_rank=SIZE - 1)
    for step in range(2 + SIZE - 1):
        x, y = batch(step, SIZE)
        here = [rank for rank in range(SIZE) if step < 2 + rank]
        alone(oracle, plain, [(x[here], y[here])])
    close(model, oracle)
    optimizer.zero_grad()  # and all go on together
    before = copy.deepcopy(model)
    backward(model, *batch(9, SIZE))
    optimizer.step()
    assert distance(before, model) > 0
    assert bps.join() in range(SIZE)


@case
def batch_sizes_on_some_ranks_only() -> None:
    model = nn.Linear(2, 2)
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    if RANK == 0:
        optimizer.batch_size = 3
    model(torch.ones(1, 2)).sum().backward()
    said(optimizer.step, "rank 0 has a batch_size, rank 1, 2 has none")


@case
def batch_sizes_that_are_none() -> None:
    model = nn.Linear(2, 2)
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())

    def give(samples: object) -> Callable[[], None]:
        return lambda: setattr(optimizer, "batch_size", samples)

    said(give(-1), "batch_size=-1")
    said(give(2.5), "batch_size=2.5")
    model(torch.ones(1, 2)).sum().backward()
    said(give(4), "set it before backward()")
    optimizer.step()
    summing = bps.DistributedOptimizer(sgd(nn.Linear(1, 1)), op=bps.Sum)
    said(lambda: setattr(summing, "batch_size", 4), "op='sum'")


@case
def arguments_of_horovod() -> None:
    model = nn.Linear(2, 2)
    names = list(model.named_parameters())
    said(lambda: bps.DistributedOptimizer(sgd(model), names, gradient_predivide_factor=2.0), "leave it out")
    said(lambda: bps.DistributedOptimizer(sgd(model), names, op=bps.Adasum), "'average' or 'sum'")
    said(lambda: bps.DistributedOptimizer(sgd(model), names, backward_passes_per_step=0), "per_step=0")
    said(lambda: bps.DistributedOptimizer(sgd(model), names, process_set=1), "process sets")
    optimizer = bps.DistributedOptimizer(sgd(model), names, num_groups=2, op=bps.Average)
    said(lambda: bps.DistributedOptimizer(optimizer, names), "distributed already")
    optimizer.set_backward_passes_per_step(2)


@case
def a_later_optimizer_takes_over() -> None:
    """Fine-tuning in phases: the first optimizer is still there when the second begins."""
    model, oracle = net(), net()
    first = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    backward(model, *batch(0, SIZE))
    first.step()
    first.zero_grad()
    plain = sgd(oracle)
    alone(oracle, plain, [batch(0, SIZE)])
    second = bps.DistributedOptimizer(sgd(model, 0.02), model.named_parameters())
    with counted() as counts:
        for x, y in batches(3):
            second.zero_grad()
            backward(model, x, y)
            second.step()
    assert not [name for name in counts if name.startswith(f"{first._reducer.name}/")]
    close(model, alone(oracle, sgd(oracle, 0.02), batches(3)))
    said(first.step, "belong to a later DistributedOptimizer")


@case
def nothing_is_left_of_an_optimizer_that_is_gone() -> None:
    model = nn.Linear(2, 2)
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    assert model.weight._post_accumulate_grad_hooks
    del optimizer
    assert not model.weight._post_accumulate_grad_hooks


@case
def gradients_from_a_device_beside_gradients_from_the_host() -> None:
    """What a worker with a GPU does, a copy on the host that another thread submits, fits workers without one."""
    plain = gradients.begin
    with ThreadPoolExecutor(1, "staging") as pool:

        def staged(session, spec, source, result, priority=0):
            host = source.detach().clone()
            view = host.reshape(-1).view(torch.uint8).numpy().data
            return Handle(spec.name, None, host, result, pool.submit(session.submit, spec, view, view, priority))

        gradients.begin = staged if RANK % 2 else plain
        try:
            for crossing in (False, True):
                model, oracle = net(), net()
                optimizer = bps.DistributedOptimizer(
                    sgd(model), model.named_parameters(), cross_barrier=model if crossing else None
                )
                for x, y in batches(3):
                    optimizer.zero_grad()
                    backward(model, x, y)
                    optimizer.step()
                optimizer.synchronize()
                close(model, alone(oracle, sgd(oracle), batches(3)))
        finally:
            gradients.begin = plain


run()
