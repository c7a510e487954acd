"""One worker of a training on the CPU, for `experiments.training`: one model, whichever way its gradients are summed.

    local       not at all: what computation alone takes here
    ddp         DistributedDataParallel on gloo
    optimizer   byteps.torch.DistributedOptimizer
    hook        DistributedDataParallel with byteps.torch.ddp_hook
    backend     DistributedDataParallel on the torch.distributed backend "byteps"

The model's 50 layers of LayerNorm and Linear have 200 tensors of 256 to 786,432 elements, 25 million in all.  It speaks
the protocol of `baselines.driver`: "go" is some training steps one after the other, and its time that of one of them;
"check" is one more, after which the parameters must be those that this rank computes alone from all ranks' data.
"""

import argparse
import copy
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from baselines.driver import Conversation

WIDTHS = (1024, 768, 256, 1280, 512)
LEARNING_RATE = 0.1
# Of float32 sums in another order, relative to the largest change of any parameter.
TOLERANCE = 1e-3
DEADLINE = timedelta(seconds=120)


def build(layers: int) -> nn.Module:
    """The same parameters on every rank."""
    torch.manual_seed(0)
    modules: list[nn.Module] = []
    for index in range(layers):
        width, following = WIDTHS[index % len(WIDTHS)], WIDTHS[(index + 1) % len(WIDTHS)]
        modules += [nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, following)]
    return nn.Sequential(*modules)


def batch(rank: int, step: int, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, different on every rank and in every step, for a number of layers that repeats the widths."""
    random = torch.Generator().manual_seed(1_000_003 * step + rank)
    return torch.randn(samples, WIDTHS[0], generator=random), torch.randn(samples, WIDTHS[0], generator=random)


def loss_of(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = (model(data[0]) - data[1]).square().mean()
    return loss


class Training:
    """The model, its optimiser, and one of the ways."""

    def __init__(
        self,
        way: str,
        *,
        rank: int,
        size: int,
        layers: int,
        samples: Sequence[int],
        rendezvous: str,
        pace: Sequence[float] = (0.0,),
    ) -> None:
        """`samples`: of a batch, by rank, or one number for all; `pace`: seconds that a sample takes beyond what it
        takes here, to emulate a slower machine, likewise."""
        self.rank, self.size = rank, size
        self.samples = [samples[each % len(samples)] for each in range(size)]
        self.waits = pace[rank % len(pace)] * self.samples[rank]
        self.steps = 0
        self.parameters = build(layers)
        self.model: nn.Module = self.parameters
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.parameters.parameters(), lr=LEARNING_RATE)
        self.alone = way == "local"
        self._close: list[Callable[[], None]] = []
        self._join(way, rendezvous)

    def _join(self, way: str, rendezvous: str) -> None:
        if way in ("optimizer", "hook", "backend"):
            import byteps.torch as bps

            bps.init()
            self._close.append(bps.shutdown)
            if way == "optimizer":
                self.optimizer = bps.DistributedOptimizer(self.optimizer, self.parameters.named_parameters())
                if len(set(self.samples)) > 1:
                    self.optimizer.batch_size = self.samples[self.rank]  # type: ignore[attr-defined]
        if way in ("ddp", "hook", "backend"):
            dist.init_process_group(
                "byteps" if way == "backend" else "gloo",
                init_method=rendezvous,
                rank=self.rank,
                world_size=self.size,
                timeout=DEADLINE,
            )
            self._close.insert(0, dist.destroy_process_group)
            self.model = ddp = DistributedDataParallel(self.parameters)
            if way == "hook":
                ddp.register_comm_hook(None, bps.ddp_hook)

    def step(self) -> None:
        data = batch(self.rank, self.steps, self.samples[self.rank])
        self.optimizer.zero_grad()
        loss = loss_of(self.model, data)
        if self.waits:  # waiting for 0 s would still give the core away
            time.sleep(self.waits)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.steps += 1

    def step_and_compare(self) -> float:
        """One step; how far it is from what one process makes of all ranks' data, 0 if within rounding."""
        expected = copy.deepcopy(self.parameters)
        ranks = [self.rank] if self.alone else range(self.size)
        for rank in ranks:
            part = self.samples[rank] / sum(self.samples[each] for each in ranks)
            loss = loss_of(expected, batch(rank, self.steps, self.samples[rank])) * part
            loss.backward()  # type: ignore[no-untyped-call]
        self.step()
        largest = far = 0.0
        with torch.no_grad():
            for mine, other in zip(self.parameters.parameters(), expected.parameters(), strict=True):
                assert other.grad is not None
                change = LEARNING_RATE * other.grad
                largest = max(largest, change.abs().max().item())
                far = max(far, (mine - (other - change)).abs().max().item())
        return 0.0 if far <= TOLERANCE * largest else far / largest

    def close(self) -> None:
        for close in self._close:
            close()


def serve(talk: Conversation, training: Training, steps: int) -> None:
    """Iteration after iteration, as the orchestrator says."""
    talk.say("started", facts={"torch": torch.__version__, "steps": str(steps)})
    talk.hear("workload")
    talk.say("declared")
    iteration = 0
    while True:
        talk.say("ready", iteration=iteration)
        if talk.hear("warm", "go", "stop")[0] == "stop":
            return
        started = time.monotonic()
        for _ in range(steps):
            training.step()
        talk.say("done", iteration=iteration, seconds=(time.monotonic() - started) / steps)
        talk.hear("check")
        talk.say("checked", iteration=iteration, max_error=training.step_and_compare())
        iteration += 1


@contextmanager
def protocol() -> Iterator[Conversation]:
    """What libraries print goes to the log; an exception is told, and ends the process at once."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    talk = Conversation(out, sys.stdin)
    try:
        yield talk
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        with suppress(BrokenPipeError):
            talk.say("failed", error=f"{type(error).__name__}: {error}")
        os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description="One worker of a training; started by experiments.training.")
    parser.add_argument("--way", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--samples", required=True, help="of a batch, by rank")
    parser.add_argument("--pace", default="0", help="milliseconds that a sample takes beyond computing, by rank")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--rendezvous", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)  # the ranks share the cores of one machine
    with protocol() as talk:
        training = Training(
            args.way,
            rank=args.rank,
            size=args.size,
            layers=args.layers,
            samples=[int(word) for word in args.samples.split(",")],
            pace=[float(word) / 1000 for word in args.pace.split(",")],
            rendezvous=args.rendezvous,
        )
        serve(talk, training, args.steps)
        training.close()
        talk.say("stopped")


if __name__ == "__main__":
    main()
