"""Layers of a network: their parameters, and when in an iteration each gradient is complete, counted in operations.

Operations of the forward pass of one sample, a multiply and an add being two:

    conv        2 * kernel^2 * in * out * size^2         `size`: height = width of its output
    linear      2 * in * out * positions                 `positions`: how often it is applied, by default once a token
    attention   2 * 2 * queries * keys * width           scores and weighted sums of all heads; it has no parameters
    norm, embedding   nothing

What a GPU spends on memory instead (normalisation, activations, look-ups, a linear layer's weights at a small batch)
is not counted.  A layer's backward pass takes twice its operations: the gradient of its input, and of its weights.

An iteration is a sequence of phases: a forward pass over parts of the network, each as often as it is run, and the
backward pass through all of it in reverse order.  A gradient is complete when the backward pass has left the earliest
use of its parameter.  Time 0 is the start of the first backward pass; later forward passes are gaps.
Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import msgspec

Shape: TypeAlias = tuple[int, ...]
Parameter: TypeAlias = tuple[str, Shape]
BACKWARD = 2.0  # times forward


class _Layer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    name: str = ""

    def parameters(self) -> list[Parameter]:
        """Its own, in the order in which it holds them."""
        return []

    def flops(self, tokens: int) -> float:
        """Of the forward pass of one sample, a sequence of `tokens` (1 for an image)."""
        return 0.0

    def tied(self) -> str:
        """Full name of another layer's parameter that it uses, or ""."""
        return ""

    def steps(self) -> "list[_Layer]":
        """What runs one after the other in the forward pass."""
        return [self]

    def _named(self, parameter: str) -> str:
        return f"{self.name}.{parameter}" if self.name else parameter


class Conv(_Layer, frozen=True, kw_only=True, tag="conv", rename={"inputs": "in", "outputs": "out"}):
    """A square convolution, and the normalisation that follows it if `norm` names one."""

    inputs: int
    outputs: int
    kernel: int
    size: int
    bias: bool = False
    weight: str = "weight"
    norm: str = ""

    def parameters(self) -> list[Parameter]:
        shape = (self.outputs, self.inputs, self.kernel, self.kernel)
        bias: list[Parameter] = [(self._named("bias"), (self.outputs,))] if self.bias else []
        return [(self._named(self.weight), shape), *bias]

    def flops(self, tokens: int) -> float:
        return 2.0 * self.kernel**2 * self.inputs * self.outputs * self.size**2

    def steps(self) -> list[_Layer]:
        return [self, Norm(name=self.norm, channels=self.outputs)] if self.norm else [self]


class Linear(_Layer, frozen=True, kw_only=True, tag="linear", rename={"inputs": "in", "outputs": "out"}):
    """A matrix; `tied_to` names the embedding whose table it uses, and then it has none of its own."""

    inputs: int
    outputs: int
    bias: bool = True
    weight: str = "weight"
    positions: int = 0  # 0: once a token
    tied_to: str = ""

    def parameters(self) -> list[Parameter]:
        weight: list[Parameter] = [(self._named(self.weight), (self.outputs, self.inputs))] if not self.tied_to else []
        bias: list[Parameter] = [(self._named("bias"), (self.outputs,))] if self.bias else []
        return weight + bias

    def flops(self, tokens: int) -> float:
        return 2.0 * self.inputs * self.outputs * (self.positions or tokens)

    def tied(self) -> str:
        return self.tied_to


class Norm(_Layer, frozen=True, kw_only=True, tag="norm"):
    """Batch, layer or instance normalisation: vectors of one element per channel."""

    channels: int
    vectors: tuple[str, ...] = ("weight", "bias")

    def parameters(self) -> list[Parameter]:
        return [(self._named(vector), (self.channels,)) for vector in self.vectors]


class Embedding(_Layer, frozen=True, kw_only=True, tag="embedding"):
    """A look-up table."""

    rows: int
    width: int

    def parameters(self) -> list[Parameter]:
        return [(self._named("weight"), (self.rows, self.width))]


class Attention(_Layer, frozen=True, kw_only=True, tag="attention"):
    """Scores and weighted sums; its projections are linear layers."""

    width: int

    def flops(self, tokens: int) -> float:
        return 4.0 * tokens**2 * self.width


Layer: TypeAlias = Conv | Linear | Norm | Embedding | Attention


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layers one after the other, `repeat` times; "{i}" in `name` counts from `first`, "{part}" is the part."""

    layers: list[Layer]
    name: str = ""
    first: int = 0
    repeat: int = 1
    parts: tuple[str, ...] = ("",)  # each gets layers of its own


class Phase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A forward and a backward pass over parts, in forward order, and the parts whose gradients are used after it."""

    passes: tuple[str, ...]
    trains: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A layer in its place: the parameters that it owns, and all that it uses."""

    flops: float
    owned: list[Parameter]
    used: list[str]


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """A parameter in an iteration that is measured in operations."""

    name: str
    shape: Shape
    phase: int  # after which it is used
    ready: float  # operations after the start of the backward pass
    forward_position: int  # 0: needed first
    forward: float  # operations of the forward pass from the need of this parameter to the need of the next


def steps(groups: Sequence[Group], tokens: int) -> dict[str, list[Step]]:
    """The layers of each part in forward order."""
    result: dict[str, list[Step]] = {}
    for group in groups:
        for part in group.parts:
            for number in range(group.first, group.first + group.repeat):
                prefix = group.name.replace("{i}", str(number)).replace("{part}", part)
                for layer in (step for one in group.layers for step in one.steps()):
                    owned = [(f"{prefix}.{name}" if prefix else name, shape) for name, shape in layer.parameters()]
                    used = [name for name, _ in owned] + ([layer.tied()] if layer.tied() else [])
                    result.setdefault(part, []).append(Step(flops=layer.flops(tokens), owned=owned, used=used))
    return result


def gradients(parts: dict[str, list[Step]], phases: Sequence[Phase]) -> list[Gradient]:
    """When each parameter is needed and its gradient complete; in the order in which parameters are needed."""
    shapes = dict(parameter for steps in parts.values() for step in steps for parameter in step.owned)
    _check(parts, phases, set(shapes))
    runs = [[step for part in phase.passes for step in parts[part]] for phase in phases]
    ready: dict[str, float] = {}
    trained_in: dict[str, int] = {}
    clock = 0.0
    for index, (phase, run) in enumerate(zip(phases, runs, strict=True)):
        trained = {name for part in phase.trains for step in parts[part] for name, _ in step.owned}
        trained_in |= dict.fromkeys(trained, index)
        clock += sum(step.flops for step in run) if index else 0.0
        for step in reversed(run):
            clock += BACKWARD * step.flops
            ready |= {name: clock for name in step.used if name in trained}  # an earlier use overwrites a later one
    forward: dict[str, float] = {}
    for index, run in enumerate(runs):
        for step in run:
            forward |= {name: 0.0 for name in step.used if name not in forward}
            if index == 0 and forward:
                forward[next(reversed(forward))] += step.flops
    return [
        Gradient(
            name=name,
            shape=shapes[name],
            phase=trained_in[name],
            ready=ready[name],
            forward_position=position,
            forward=flops,
        )
        for position, (name, flops) in enumerate(forward.items())
    ]


def phase_ends(parts: dict[str, list[Step]], phases: Sequence[Phase]) -> list[float]:
    """When the backward pass of each phase is over, maybe long after the last gradient that is used after it."""
    runs = [sum(step.flops for part in phase.passes for step in parts[part]) for phase in phases]
    return list(accumulate((BACKWARD + bool(index)) * flops for index, flops in enumerate(runs)))


def _check(parts: dict[str, list[Step]], phases: Sequence[Phase], names: set[str]) -> None:
    passes = {part for phase in phases for part in phase.passes}
    trains = [part for phase in phases for part in phase.trains]
    if passes != set(parts) or sorted(trains) != sorted(parts):
        raise ValueError(
            f"the phases pass {', '.join(sorted(passes))} and train {', '.join(sorted(trains))}: "
            f"every part ({', '.join(sorted(parts))}) must be passed, and trained in one phase"
        )
    for phase in phases:
        if missing := set(phase.trains) - set(phase.passes):
            raise ValueError(f"a phase trains {', '.join(sorted(missing))} without a pass over it")
    owned = [name for steps in parts.values() for step in steps for name, _ in step.owned]
    if len(owned) > len(names):
        raise ValueError(f"two parameters are called {next(name for name in owned if owned.count(name) > 1)}")
    if unknown := {name for steps in parts.values() for step in steps for name in step.used} - names:
        raise ValueError(f"tied_to = {min(unknown)!r}: there is no such parameter")
