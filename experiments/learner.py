"""One worker of a training whose loss is followed, for `experiments.convergence` and `experiments.compression`.

    digits   scikit-learn's digits and the small convolutional network of examples/digits.py
    char     Python's manual, character by character, and the small GPT of examples/char_model.py

A step takes at least `pace` seconds before its backward pass, as on a machine that computes so long; the last rank is
the straggler, if there is one, and takes `straggler` times as long.  Waiting costs no processor time, so that all
workers can share the cores of one machine.  Training ends after `steps` steps of every rank or after `seconds`,
whichever comes first.

The optimiser is AdamW.  Differences of asynchronous ranks add up where gradients are averaged, so their learning rate
is divided by the number of ranks, as docs/training.md says.

It speaks the protocol of `baselines.driver`: "go" is the whole training.  Rank 0 keeps copies of its weights meanwhile
and computes their losses afterwards, so that evaluating takes no time from training.  "check": all ranks have rank 0's
weights at the end, to the bit.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import msgspec
import torch
from torch import nn
from torch.nn import functional

import byteps.torch as bps
from baselines.driver import Conversation
from byteps.torch.compression import Compressor
from examples import char_model, digits
from experiments.curves import Evaluation, Notes
from experiments.trainer import protocol

LEARNING_RATE = 3e-3
EVALUATE_SECONDS = 0.4  # between two copies of the weights
_HELD_OUT = 0.05  # of the text
_LENGTH = 64  # characters of a sample


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is learnt: the same on every rank, and for a seed always the same."""

    build: Callable[[], nn.Module]
    batch: Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]  # of a rank and a step
    samples: int  # of a batch
    data: int  # samples of the data set
    held_out: tuple[torch.Tensor, torch.Tensor]


def digits_task() -> Task:
    training, test = digits.digits()
    images, labels = training.tensors
    samples = 32

    def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.randint(len(images), (samples,), generator=_random(rank, step))
        return images[chosen], labels[chosen]

    return Task(
        build=_seeded(digits.network),
        batch=batch,
        samples=samples,
        data=len(images),
        held_out=(test.tensors[0], test.tensors[1]),
    )


def char_task() -> Task:
    characters, codes = char_model.manual()
    train, rest = codes[: -int(_HELD_OUT * len(codes))], codes[-int(_HELD_OUT * len(codes)) :]
    samples = 16

    def cut(text: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sample = text[starts[:, None] + torch.arange(_LENGTH + 1)]
        return sample[:, :-1], sample[:, 1:]

    def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return cut(train, torch.randint(len(train) - _LENGTH, (samples,), generator=_random(rank, step)))

    return Task(
        build=_seeded(lambda: char_model.CharacterModel(len(characters), _LENGTH)),
        batch=batch,
        samples=samples,
        data=len(train) // _LENGTH,
        held_out=cut(rest, torch.arange(64) * ((len(rest) - _LENGTH) // 64)),
    )


TASKS: dict[str, Callable[[], Task]] = {"digits": digits_task, "char": char_task}


def _random(rank: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(1_000_003 * step + rank)


def _seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return make()

    return build


def loss_of(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    logits, wanted = model(data[0]), data[1]
    return functional.cross_entropy(logits.flatten(0, -2), wanted.flatten())


def compression(codec: str) -> Compressor:
    """The compressor of a codec's spelling, such as "none" and "topk:0.01"."""
    name, _, ratio = codec.partition(":")
    found = getattr(bps.Compression, name)
    return cast(Compressor, found(float(ratio)) if ratio else found)


class Learner:
    """The model, its optimiser in the wanted mode, and what is noted."""

    def __init__(self, task: Task, *, mode: str, codec: str = "none", wait: float = 0.0) -> None:
        """`mode`: bsp, async, or ssp:S; `wait`: seconds from a step's begin to its backward pass, at least."""
        self.task, self.wait = task, wait
        self.model = task.build()
        word, _, staleness = mode.partition(":")
        rate = LEARNING_RATE if word == "bsp" else LEARNING_RATE / bps.size()
        self.optimizer: torch.optim.Optimizer = bps.DistributedOptimizer(
            torch.optim.AdamW(self.model.parameters(), lr=rate),
            self.model.named_parameters(),
            compression=compression(codec),
            mode=cast(Literal["bsp", "async", "ssp"], word),  # which refuses others itself
            staleness=int(staleness) if staleness else None,
        )
        self.started = 0.0
        self.ends: list[float] = []
        self.kept: list[tuple[int, float, torch.Tensor]] = []  # weights after so many steps, and when

    def train(self, steps: int, seconds: float) -> None:
        """Until both are used up by none; then until all ranks are, and with the final weights."""
        self.started = now = time.monotonic()
        self._keep(now)
        while len(self.ends) < steps and now < self.started + seconds:
            self.optimizer.zero_grad()
            loss = loss_of(self.model, self.task.batch(bps.rank(), len(self.ends)))
            if (left := now + self.wait - time.monotonic()) > 0:
                time.sleep(left)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            now = time.monotonic()
            self.ends.append(now)
            if now - self.kept[-1][1] >= EVALUATE_SECONDS:
                self._keep(now)
        bps.join()
        self._keep(time.monotonic())

    def _keep(self, now: float) -> None:
        weights = nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()
        self.kept.append((len(self.ends), now, weights))

    def notes(self) -> Notes:
        """With the losses of all weights that were kept, if this is rank 0."""
        return Notes(
            rank=bps.rank(),
            samples=self.task.samples,
            data=self.task.data,
            started=self.started,
            ends=self.ends,
            evaluations=[
                Evaluation(step=step, at=at, loss=held_out_loss(self.task, weights))
                for step, at, weights in (self.kept if bps.rank() == 0 else [])
            ],
        )

    def difference(self) -> float:
        """How far this rank's weights are from rank 0's."""
        mine = self.kept[-1][2]
        return float((bps.broadcast(mine, 0, name="weights to compare") - mine).abs().max())


def held_out_loss(task: Task, weights: torch.Tensor) -> float:
    model = task.build()
    nn.utils.vector_to_parameters(weights, model.parameters())
    with torch.no_grad():
        return float(loss_of(model, task.held_out))


def serve(talk: Conversation, learner: Learner, steps: int, seconds: float, notes: Path) -> None:
    """One training, as the orchestrator says; what was noted lies in `notes` when it is checked."""
    talk.say("started", facts={"torch": torch.__version__, "parameters": str(learner_size(learner))})
    talk.hear("workload")
    talk.say("declared")
    talk.say("ready", iteration=0)
    talk.hear("go")
    learner.train(steps, seconds)
    talk.say("done", iteration=0, seconds=learner.kept[-1][1] - learner.started)
    talk.hear("check")
    (notes / f"{bps.rank()}.json").write_bytes(msgspec.json.encode(learner.notes()))
    talk.say("checked", iteration=0, max_error=learner.difference())
    talk.say("ready", iteration=1)
    talk.hear("stop")


def learner_size(learner: Learner) -> int:
    return sum(parameter.numel() for parameter in learner.model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description="One worker of a training; started by experiments.convergence.")
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--mode", required=True, help="bsp, async, ssp:1")
    parser.add_argument("--codec", default="none")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds until a backward pass")
    parser.add_argument("--straggler", type=float, default=1.0, help="how many times as long the last rank takes")
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--notes", type=Path, required=True, help="folder for what was noted")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the ranks share the cores of one machine
    with protocol() as talk:
        bps.init()
        is_last = bps.rank() == bps.size() - 1
        wait = args.pace * (args.straggler if is_last else 1.0)
        learner = Learner(TASKS[args.task](), mode=args.mode, codec=args.codec, wait=wait)
        serve(talk, learner, args.steps, args.seconds, args.notes)
        bps.shutdown()
        talk.say("stopped")


if __name__ == "__main__":
    main()
