"""What a training job hands to a contender: its tensors in gradient-ready order, each with the moment it is ready.

A workload file (`models/*.toml`) describes a network by its layers, or lists tensors with times, as `record-trace`
writes it.  From layers, times follow by their share of an iteration's operations (see `experiments.layers`), so that
forward and backward together take as long as is published for one iteration on one GPU: batch / rate.

Replays.  A model's tensors may be divided by `scale` (at least one element is left of each) and its computation
slowed by `dilation`, so that computation and communication keep their proportion:

    real    M / B_real  :  T            lab    (M / scale) / B_lab  :  T * dilation
    =>  dilation = (B_real / B_lab) / scale

Pure: no I/O except reading a workload file, no clock, no randomness.
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from baselines.session import Tensor
from byteps.theory import TCP_PAYLOAD_FRACTION
from experiments.layers import Group, Phase, Shape, gradients, phase_ends, steps

MODELS = ("resnet50", "vgg16", "ugatit", "transformer_big", "bert_large", "gpt2", "vgg19", "lenet5", "googlenet")
FOLDER = Path(__file__).parent / "models"
PAPER_NIC_BYTES_PER_S = 90e9 / 8  # goodput between two machines of the paper's cluster, whose NICs are of 100 Gbit/s

Dtype = Literal["float32", "float16"]
ITEMSIZE: dict[Dtype, int] = {"float32": 4, "float16": 2}


class WorkloadError(ValueError):
    """A workload that cannot be used; the text names the file, the key and what is possible."""


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a workload file."""


class Timing(_Table, frozen=True, kw_only=True):
    """How long one iteration takes on one GPU: `seconds`, or `batch` over `rate`."""

    source: str
    seconds: float = 0.0
    batch: float = 0.0
    rate: float = 0.0  # `unit` per second
    unit: str = ""  # "images" or "tokens"

    def __post_init__(self) -> None:
        if (self.seconds > 0) == (self.batch > 0 and self.rate > 0):
            raise ValueError("a timing needs either seconds, or batch and rate, above 0")

    @property
    def iteration_seconds(self) -> float:
        return self.seconds or self.batch / self.rate


class TimedTensor(_Table, frozen=True, kw_only=True):
    """A gradient, at full size and speed."""

    name: str
    shape: Shape
    dtype: Dtype = "float32"
    ready_seconds: float  # after the start of the backward pass
    forward_position: int  # 0: needed first by the next forward pass
    forward_seconds: float = 0.0  # forward computation from the need of this tensor to the need of the next
    phase: int = 0  # after which its sum is used: by an optimiser's step, before the next phase's forward pass

    def __post_init__(self) -> None:
        if self.phase < 0:
            raise ValueError(f"tensor {self.name}: phase = {self.phase}: phases count from 0")
        if not (math.isfinite(self.ready_seconds) and self.ready_seconds >= 0 and self.numel >= 1):
            raise ValueError(f"tensor {self.name}: it needs elements, and ready_seconds of 0 or more")
        if not (math.isfinite(self.forward_seconds) and self.forward_seconds >= 0):
            raise ValueError(f"tensor {self.name}: forward_seconds must be 0 or more")

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * ITEMSIZE[self.dtype]


class Model(_Table, frozen=True, kw_only=True):
    """A workload file: a network in groups of layers, or tensors with times; its timings, the usual one first."""

    name: str
    title: str
    source: str
    dtype: Dtype = "float32"  # of the layers' parameters
    tokens: int = 1  # positions in the sequence of a sample
    timing: dict[str, Timing]
    group: list[Group] = []
    phase: tuple[Phase, ...] = (Phase(passes=("",), trains=("",)),)
    tensor: list[TimedTensor] = []


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model with the times of one of its timings; tensors in gradient-ready order."""

    name: str
    tensors: tuple[TimedTensor, ...]
    phase_ends: tuple[float, ...] = ()  # seconds from the start of the backward pass; not given: its last gradient's

    @property
    def numel(self) -> int:
        return sum(tensor.numel for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def forward_seconds(self) -> float:
        """The forward pass before the first backward pass."""
        return sum(tensor.forward_seconds for tensor in self.tensors)

    @property
    def backward_seconds(self) -> float:
        """Until the last gradient is ready, the forward passes of later phases included."""
        return self.tensors[-1].ready_seconds

    @property
    def iteration_seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds


def load(text: str, *, source: str = "workload") -> Model:
    """One model from TOML text."""
    try:
        model = msgspec.toml.decode(text, type=Model)
        if not model.timing:
            raise ValueError("no [timing.NAME]: say how long an iteration takes")
        if bool(model.group) == bool(model.tensor):
            raise ValueError("describe the model either by [[group]] or by [[tensor]]")
        tensors = _tensors(model)
    except (msgspec.MsgspecError, ValueError) as error:
        raise WorkloadError(f"{source}: {error}") from error
    for what, values in (
        ("name", [tensor.name for tensor in tensors]),
        ("forward_position", [str(tensor.forward_position) for tensor in tensors]),
    ):
        if twice := sorted({value for value in values if values.count(value) > 1}):
            raise WorkloadError(f"{source}: {what} {twice[0]} belongs to more than one tensor")
    if not sum(tensor.forward_seconds + tensor.ready_seconds for tensor in tensors):
        raise WorkloadError(f"{source}: no tensor has a time")
    return model


def _tensors(model: Model) -> list[TimedTensor]:
    """With times in any unit."""
    return model.tensor or [
        TimedTensor(
            name=gradient.name,
            shape=gradient.shape,
            dtype=model.dtype,
            ready_seconds=gradient.ready,
            forward_position=gradient.forward_position,
            forward_seconds=gradient.forward,
            phase=gradient.phase,
        )
        for gradient in gradients(steps(model.group, model.tokens), model.phase)
    ]


def dump(workload: Workload, *, title: str, source: str) -> str:
    """A workload file with these tensors and times, which `load` reads back; its timing is called "recorded"."""
    keys = ("name", "shape", "dtype", "ready_seconds", "forward_position", "forward_seconds", "phase")
    lines = [
        f"{key} = {_toml(value)}" for key, value in (("name", workload.name), ("title", title), ("source", source))
    ]
    lines += ["", "tensor = ["]
    for tensor in workload.tensors:
        lines.append("  { " + ", ".join(f"{key} = {_toml(getattr(tensor, key))}" for key in keys) + " },")
    lines += ["]", "", "[timing.recorded]", f"seconds = {workload.iteration_seconds!r}", f"source = {_toml(source)}"]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """Strings, numbers and lists of numbers are written as in JSON, but for one character that TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def path(name: str) -> Path:
    """The file of a shipped model, or of one's own: `name` is one of MODELS or ends in ".toml"."""
    if name in MODELS:
        return FOLDER / f"{name}.toml"
    if name.endswith(".toml"):
        return Path(name)
    raise WorkloadError(f"{name!r} is not a model: use {', '.join(MODELS)}, or the path of a .toml file")


@cache
def read(name: str) -> Model:
    """A shipped model, or one's own from its path."""
    return load(path(name).read_text(encoding="utf-8"), source=name)


def named(workload: str) -> tuple[Model, str]:
    """Model and timing of "vgg16", "vgg16@fig4" or "my/training.toml"; the timing is "" where none is named."""
    name, _, timing = workload.partition("@")
    return read(name), timing


def with_times(model: Model, timing: str = "") -> Workload:
    """The model's tensors with the times of one timing; "" is its first."""
    chosen = timing or next(iter(model.timing))
    if chosen not in model.timing:
        raise WorkloadError(f"{model.name} has no timing {chosen!r}; it has {', '.join(model.timing)}")
    tensors = sorted(_tensors(model), key=lambda one: (one.ready_seconds, -one.forward_position))
    factor = model.timing[chosen].iteration_seconds / Workload(name="", tensors=tuple(tensors)).iteration_seconds
    return Workload(
        name=model.name,
        tensors=tuple(
            msgspec.structs.replace(
                tensor,
                ready_seconds=tensor.ready_seconds * factor,
                forward_seconds=tensor.forward_seconds * factor,
            )
            for tensor in tensors
        ),
        phase_ends=tuple(end * factor for end in _phase_ends(model)),
    )


def _phase_ends(model: Model) -> list[float]:
    return [] if model.tensor else phase_ends(steps(model.group, model.tokens), model.phase)


def replay(
    model: Model,
    timing: str = "",
    *,
    scale: float = 1.0,
    dilation: float = 1.0,
    as_float32: bool = False,
    label: str = "",
) -> tuple[Tensor, ...]:
    """The workload as a contender gets it; `as_float32` sends fp16 tensors as fp32 ones of as many bytes.

    Names are prefixed with `label`, by default the model's name: they have to be unique within a launch.
    """
    if not (1 <= scale < math.inf and 0 <= dilation < math.inf):
        raise WorkloadError(f"scale = {scale}, dilation = {dilation}: scale must be at least 1, dilation at least 0")
    tensors = with_times(model, timing).tensors
    result = []
    for tensor in tensors:
        numel = max(1, round(tensor.numel / scale))
        narrow = as_float32 and tensor.dtype == "float16"
        result.append(
            Tensor(
                name=f"{label or model.name}/{tensor.name}",
                numel=(numel + 1) // 2 if narrow else numel,
                dtype="float32" if narrow else tensor.dtype,
                ready_seconds=tensor.ready_seconds * dilation,
                priority=-tensor.forward_position,
                forward_seconds=tensor.forward_seconds * dilation,
            )
        )
    return tuple(result)


def single(nbytes: int) -> tuple[Tensor, ...]:
    """One fp32 tensor without times."""
    return many(nbytes, 1)


def many(nbytes: int, count: int) -> tuple[Tensor, ...]:
    """`count` fp32 tensors without times, `nbytes` together; they differ by one element at most."""
    numel, rest = divmod(nbytes, ITEMSIZE["float32"])
    if rest or numel < count or count < 1:
        raise WorkloadError(f"{nbytes} bytes in {count} tensors: give each at least one element of 4 bytes")
    cuts = [numel * index // count for index in range(count + 1)]
    return tuple(
        Tensor(name=f"{count} of {nbytes}/{index}", numel=cuts[index + 1] - cuts[index], dtype="float32")
        for index in range(count)
    )


def dilation(real_nic_bytes_per_s: float, lab_nic_bytes_per_s: float, scale: float) -> float:
    """How many times slower the lab has to compute so that a model divided by `scale` behaves as the real one."""
    return real_nic_bytes_per_s / lab_nic_bytes_per_s / scale


def paper_dilation(nic_bytes_per_s: float, scale: float) -> float:
    """The same for the paper's cluster and a lab whose NICs are shaped to that rate, headers included."""
    return dilation(PAPER_NIC_BYTES_PER_S, nic_bytes_per_s * TCP_PAYLOAD_FRACTION, scale)
