"""Training loops as people write them, each against one process with all samples."""

import math
import warnings

import torch
from casebook import RANK, SIZE, backward, batches, case, close, counted, run, said, sgd
from learning import alone, batch, loss_of, net
from torch import nn

import byteps.torch as bps


@case
def inf_on_one_rank_under_a_grad_scaler() -> None:
    """All ranks skip the step, and halve the scale; as written for one process, and with synchronize() first."""
    for recipe in ("plain", "unscale", "synchronize"):
        model, oracle = net(), net()
        optimizer, plain = bps.DistributedOptimizer(sgd(model), model.named_parameters()), sgd(oracle)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
        for step, (x, y) in enumerate(batches(4)):
            optimizer.zero_grad()
            loss = loss_of(model, x[RANK::SIZE], y[RANK::SIZE])
            if step == 1 and RANK == SIZE - 1:
                loss = loss * math.inf
            scaler.scale(loss).backward()
            if recipe == "synchronize":
                optimizer.synchronize()
            if recipe != "plain":
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            with optimizer.skip_synchronize() if recipe == "synchronize" else warnings.catch_warnings():
                scaler.step(optimizer)
            scaler.update()
            if step != 1:
                plain.zero_grad()
                loss_of(oracle, x, y).backward()
                if recipe != "plain":
                    nn.utils.clip_grad_norm_(oracle.parameters(), 0.5)
                plain.step()
        close(model, oracle)
        assert scaler.get_scale() == 512.0


@case
def clipping_reduces_once() -> None:
    for recipe in ("skip_synchronize", "synchronize", "groups"):
        model, oracle = net(), net()
        optimizer, plain = bps.DistributedOptimizer(sgd(model), model.named_parameters()), sgd(oracle)
        for x, y in batches(3):
            optimizer.zero_grad()
            with counted() as counts:
                backward(model, x, y)
                if recipe == "groups":
                    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.1)
                else:
                    optimizer.synchronize()
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                with optimizer.skip_synchronize() if recipe == "skip_synchronize" else warnings.catch_warnings():
                    optimizer.step()
            assert set(counts.values()) == {1}, counts
            plain.zero_grad()
            loss_of(oracle, x, y).backward()
            nn.utils.clip_grad_norm_(oracle.parameters(), 0.1)
            plain.step()
        close(model, oracle)


@case
def clipping_what_is_being_summed() -> None:
    model = net()
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    backward(model, *batch(0, SIZE))
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    said(optimizer.step, "'place' was changed while it was being summed", "call optimizer.synchronize()")


@case
def skipping_what_was_never_synchronised() -> None:
    model = net()
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    backward(model, *batch(0, SIZE))
    with optimizer.skip_synchronize():
        said(optimizer.step, "call synchronize() first")
    optimizer.step()


@case
def backward_twice() -> None:
    model = nn.Linear(2, 2)
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    model(torch.ones(1, 2)).sum().backward()
    said(model(torch.ones(1, 2)).sum().backward, "'bias' was computed again", "backward_passes_per_step")
    assert optimizer is not None


@case
def a_step_before_all_backward_passes() -> None:
    """The last batches of an epoch; and a rank whose last ones are fewer."""
    model, oracle = net(), net()
    optimizer, plain = bps.DistributedOptimizer(sgd(model), backward_passes_per_step=3), sgd(oracle)
    for passes in (3, 2, 3):
        optimizer.zero_grad()
        plain.zero_grad()
        with counted() as counts:
            for part in range(passes):
                x, y = batch(part, SIZE)
                backward(model, x, y)
                loss_of(oracle, x, y).backward()
            optimizer.step()
        assert set(counts.values()) == {1}
        plain.step()
    close(model, oracle)


@case
def learning_rate_schedulers() -> None:
    """Made before and after the optimizer is distributed; without a warning."""
    for first in (False, True):
        model, oracle = net(), net()
        plain, reference = sgd(model), sgd(oracle)
        schedules = [torch.optim.lr_scheduler.StepLR(reference, 2, 0.5)]
        if first:
            schedules.append(torch.optim.lr_scheduler.StepLR(plain, 2, 0.5))
        optimizer = bps.DistributedOptimizer(plain, model.named_parameters())
        assert isinstance(optimizer, torch.optim.SGD)
        if not first:
            schedules.append(torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for x, y in batches(5):
                optimizer.zero_grad()
                backward(model, x, y)
                optimizer.step()
                alone(oracle, reference, [(x, y)])
                for schedule in schedules:
                    schedule.step()
        assert optimizer.param_groups[0]["lr"] == reference.param_groups[0]["lr"] == 0.025
        close(model, oracle)


@case
def schedulers_with_a_cross_barrier() -> None:
    """The scheduler changes the learning rate before the step's updates are made; the model clears the gradients."""
    model, oracle = net(), net()
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), cross_barrier=model)
    plain = sgd(oracle)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in (optimizer, plain)]
    stepped = []
    optimizer.register_step_post_hook(lambda *_: stepped.append(1))
    for step, (x, y) in enumerate(batches(6)):
        backward(model, x, y)
        if step == 3:
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        (model if step % 2 else optimizer).zero_grad()
        plain.zero_grad()
        loss_of(oracle, x, y).backward()
        if step == 3:
            nn.utils.clip_grad_norm_(oracle.parameters(), 0.1)
        plain.step()
        for schedule in schedules:
            schedule.step()
        if step == 2:
            close(model, oracle)  # state_dict() is up to date
    optimizer.synchronize()
    close(model, oracle)
    assert len(stepped) == 6


@case
def backward_passes_whose_gradients_the_model_drops() -> None:
    """They do not count."""
    model, oracle = net(), net()
    optimizer, plain = bps.DistributedOptimizer(sgd(model), backward_passes_per_step=2), sgd(oracle)
    for step in range(3):
        backward(model, *batch(7, SIZE))
        if step == 1:
            backward(model, *batch(8, SIZE))
        model.zero_grad()
        plain.zero_grad()
        for part in range(2):
            x, y = batch(10 * step + part, SIZE)
            backward(model, x, y)
            loss_of(oracle, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        plain.step()
    close(model, oracle)


@case
def clearing_gradients_while_updates_are_pending() -> None:
    """After a forward pass that leaves a module out, whose update is then still to be made."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(6)
            self.body, self.a, self.b = (nn.Linear(3, 3) for _ in range(3))
            self.double()

        def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
            return (self.b if step % 3 == 2 else self.a)(self.body(x).tanh()).sin().mean()

    for set_to_none in (True, False):
        model, oracle = Net(), Net()
        optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), cross_barrier=model)
        plain = sgd(oracle)
        for step in range(8):
            x = torch.randn(SIZE * 2, 3, generator=torch.Generator().manual_seed(step)).double()
            loss, reference = model(x[RANK::SIZE], step), oracle(x, step)
            for each, its_loss in ((optimizer, loss), (plain, reference)):
                each.zero_grad(set_to_none=set_to_none)
                its_loss.backward()
                each.step()
        optimizer.synchronize()
        close(model, oracle)


@case
def parameters_used_past_the_cross_barrier() -> None:
    """By a function that is no module of the model."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters(), cross_barrier=model)
    x = torch.ones(2, 3)
    model(x).sum().backward()
    optimizer.step()
    for clear in (optimizer.zero_grad, model.zero_grad):
        clear()
        said(model[1].weight.sum().backward, "'1.weight' was used before its update", "optimizer.synchronize()")


@case
def closures() -> None:
    model, oracle = net(), net()
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    for x, y in batches(3):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            return backward(model, x, y)

        assert optimizer.step(closure).item() > 0
    close(model, alone(oracle, sgd(oracle), batches(3)))
    said(lambda: bps.DistributedOptimizer(torch.optim.LBFGS(model.parameters())), "LBFGS is not supported")


@case
def compiled_models() -> None:
    for crossing in (False, True):
        model, oracle = net(), net()
        compiled = torch.compile(model, backend="aot_eager")
        optimizer = bps.DistributedOptimizer(
            sgd(model), model.named_parameters(), cross_barrier=model if crossing else None
        )
        for x, y in batches(3):
            optimizer.zero_grad()
            backward(compiled, x, y)
            optimizer.step()
        close(model, alone(oracle, sgd(oracle), batches(3)))


@case
def steps_without_backward() -> None:
    """On all ranks nothing happens; on some, the others' gradients count."""
    model, oracle = net(), net()
    optimizer, plain = bps.DistributedOptimizer(sgd(model), model.named_parameters()), sgd(oracle)
    optimizer.step()
    close(model, oracle)
    x, y = batch(0, SIZE)
    if RANK == 0:
        backward(model, x, y)
    optimizer.step()
    (loss_of(oracle, x[:1], y[:1]) / SIZE).backward()
    plain.step()
    close(model, oracle)


run()
