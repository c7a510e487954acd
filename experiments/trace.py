"""Records a workload from one's own PyTorch training: when each parameter is needed, and when its gradient is complete.

Hooks on every module tell when its forward pass begins and ends, hooks on every parameter when its gradient has been
accumulated, a hook on all optimisers when they consume gradients.  In an iteration

    time 0   is the end of the model's forward pass, so computing a loss outside of the model counts as backward
    needed   a parameter is when the first module that holds it starts; where that module is never called (its parent
             uses the parameter itself), when the nearest of those around it does
    ready    a gradient is at its last accumulation before the first optimiser's step that consumes it, so adversarial
             networks are understood; without an optimiser, at its last

and the workload has the median over iterations of each.  What comes after the last gradient, such as the optimiser's
step, is not part of it.  On a GPU the moments are events in its stream, read when the iteration is over, so that
recording does not make the processor wait for it.  torch is imported when something is recorded, not before.
"""

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from experiments import workloads
from experiments.workloads import Dtype, TimedTensor, Workload

if TYPE_CHECKING:
    import torch

NEVER = float("inf")
WARMUPS = 3  # iterations not recorded: allocations, kernel selection
_DTYPES: dict[int, Dtype] = {4: "float32", 2: "float16"}  # by bytes of an element, all that matters to a network
Kind: TypeAlias = Literal["enter", "leave", "gradient", "consume"]


class TraceError(ValueError):
    """A training step that cannot be recorded; the text says what was expected of it."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that a hook saw in an iteration: a module, a parameter, or the parameters that an optimiser has."""

    kind: Kind
    whom: tuple[int, ...]
    seconds: float  # since the start of the iteration


@dataclass(frozen=True, kw_only=True)
class Moments:
    """One iteration: seconds from its start to the backward pass; when a parameter is needed, from the start of the
    iteration, NEVER if not before the backward pass; and when its gradient is ready, from that of the backward pass."""

    forward: float
    needed: dict[int, float]
    ready: dict[int, float]


def moments(events: Sequence[Event], holders: Mapping[int, Sequence[Sequence[int]]], root: int) -> Moments:
    """`holders`: for a parameter the modules that hold it, each followed by those around it, up to `root`."""
    before = list(takewhile(lambda event: event.kind != "gradient", events))
    ends = [event for event in before if event.kind == "leave"]
    if len(before) == len(events):
        raise TraceError("no gradient was computed: step() has to run the model forward and a loss backward")
    if not ends:
        raise TraceError("no module ran before the first gradient: step() has to call the model that is returned")
    forward = [event for event in ends if event.whom == (root,)] or ends  # a mere container is never called itself
    start = forward[-1].seconds

    entered: dict[int, float] = {}
    for event in before:
        if event.kind == "enter":
            entered.setdefault(event.whom[0], event.seconds)
    accumulated: dict[int, float] = {}
    consumed: dict[int, float] = {}
    for event in events:
        if event.kind == "gradient":
            accumulated[event.whom[0]] = max(0.0, event.seconds - start)
        elif event.kind == "consume":
            consumed = {one: accumulated[one] for one in event.whom if one in accumulated} | consumed
    ready = accumulated | consumed
    needed = {
        parameter: min(
            next((entered[module] for module in modules if module in entered), NEVER) for modules in holders[parameter]
        )
        for parameter in ready
    }
    return Moments(forward=start, needed=needed, ready=ready)


class _CpuClock:
    """Moments are seconds."""

    def mark(self) -> Any:
        return time.perf_counter()

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        return [mark - marks[0] for mark in marks]


class _CudaClock:
    """Moments are events in the stream in which the hook's work runs."""

    def mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, marks: Sequence[Any]) -> list[float]:
        import torch

        torch.cuda.synchronize()
        return [marks[0].elapsed_time(mark) / 1e3 for mark in marks]


class _Recorder:
    """What the hooks write to."""

    def __init__(self, clock: _CpuClock | _CudaClock) -> None:
        self._clock = clock
        self._marks: list[tuple[Kind, tuple[int, ...], Any]] = []

    def see(self, kind: Kind, whom: tuple[int, ...]) -> None:
        self._marks.append((kind, whom, self._clock.mark()))

    def iteration(self, step: Callable[[], object]) -> list[Event]:
        self._marks.clear()
        start = self._clock.mark()
        step()
        seconds = self._clock.seconds([start, *(mark for _, _, mark in self._marks)])[1:]
        return [
            Event(kind=kind, whom=whom, seconds=after)
            for (kind, whom, _), after in zip(self._marks, seconds, strict=True)
        ]


@contextmanager
def _hooks(model: "torch.nn.Module", recorder: _Recorder) -> Iterator[None]:
    """All hooks, for as long as the block runs."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def consume(optimiser: "torch.optim.Optimizer", _args: object, _kwargs: object) -> None:
        recorder.see("consume", tuple(id(one) for group in optimiser.param_groups for one in group["params"]))

    with ExitStack() as handles:
        for module in model.modules():
            enter = module.register_forward_pre_hook(lambda one, _: recorder.see("enter", (id(one),)))
            leave = module.register_forward_hook(lambda one, _, __: recorder.see("leave", (id(one),)))
            handles.callback(enter.remove)
            handles.callback(leave.remove)
        for parameter in model.parameters():
            if parameter.requires_grad:
                ready = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda one: recorder.see("gradient", (id(one),))
                )
                handles.callback(ready.remove)
        handles.callback(register_optimizer_step_pre_hook(consume).remove)
        yield


def _holders(model: "torch.nn.Module") -> dict[int, list[list[int]]]:
    """For each parameter, under each of its names: the module that holds it and those around it."""
    result: dict[int, list[list[int]]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        path = name.split(".")[:-1]
        chain = [id(model.get_submodule(".".join(path[:length]))) for length in range(len(path), -1, -1)]
        result.setdefault(id(parameter), []).append(chain)
    return result


def record(
    model: "torch.nn.Module", step: Callable[[], object], *, name: str, iterations: int = 10, warmups: int = WARMUPS
) -> Workload:
    """The workload of `step`, one iteration of training `model`: medians over `iterations` after the warm-ups."""
    if iterations < 1:
        raise TraceError(f"iterations = {iterations}: record at least one")
    parameters = {id(parameter): (key, parameter) for key, parameter in model.named_parameters()}
    if not parameters:
        raise TraceError("the model has no parameters")
    on_gpu = next(iter(parameters.values()))[1].is_cuda
    recorder = _Recorder(_CudaClock() if on_gpu else _CpuClock())
    holders = _holders(model)
    with _hooks(model, recorder):
        for _ in range(warmups):
            recorder.iteration(step)
        seen = [moments(recorder.iteration(step), holders, id(model)) for _ in range(iterations)]

    def typical(values: Callable[[Moments], Mapping[int, float]], one: int) -> float:
        return median(values(moment)[one] for moment in seen if one in values(moment))

    ready = {one: typical(lambda moment: moment.ready, one) for one in parameters if any(one in m.ready for m in seen)}
    needed = {one: typical(lambda moment: moment.needed, one) for one in ready}
    order = sorted(ready, key=needed.__getitem__)
    forward = _forward_seconds([needed[one] for one in order], median(moment.forward for moment in seen))
    tensors = [
        TimedTensor(
            name=parameters[one][0],
            shape=tuple(parameters[one][1].shape),
            dtype=_dtype(*parameters[one]),
            ready_seconds=ready[one],
            forward_position=position,
            forward_seconds=forward[position],
        )
        for position, one in enumerate(order)
    ]
    tensors.sort(key=lambda tensor: (tensor.ready_seconds, -tensor.forward_position))
    return Workload(name=name, tensors=tuple(tensors))


def _forward_seconds(needed: Sequence[float], end: float) -> list[float]:
    """What is computed between the need of a tensor and that of the next; the first one's includes what is before."""
    moments = [0.0, *(min(moment, end) for moment in needed[1:]), end]
    return [after - before for before, after in pairwise(moments)]


def _dtype(name: str, parameter: "torch.nn.Parameter") -> Dtype:
    if parameter.element_size() not in _DTYPES:
        raise TraceError(f"parameter {name} is {parameter.dtype}: elements of 2 or 4 bytes can be replayed")
    return _DTYPES[parameter.element_size()]


def find(target: str) -> Callable[[str], object]:
    """The function that "package.module:function" or "path/to/file.py:function" names."""
    where, _, name = target.rpartition(":")
    if not where:
        raise TraceError(f"{target!r}: write MODULE:FUNCTION, such as my_package.train:build or train.py:build")
    try:
        module = _import_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise TraceError(f"{target!r}: {error}") from error
    if not callable(found := getattr(module, name, None)):
        raise TraceError(f"{target!r}: {where} has no function {name!r}")
    function: Callable[[str], object] = found
    return function


def _import_file(path: Path) -> ModuleType:
    sys.path.insert(0, str(path.resolve().parent))  # as for a script, so that it finds its neighbours
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not spec or not spec.loader:
        raise ModuleNotFoundError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record_to_file(target: str, output: Path, *, iterations: int = 10, device: str = "cpu") -> str:
    """What `record-trace` does; the answer says what was recorded."""
    import torch

    if device not in ("cpu", "cuda"):
        raise TraceError(f"device {device!r}: use cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise TraceError("device 'cuda': there is no CUDA device on this machine, or this torch is for processors only")
    if not output.parent.is_dir():
        raise TraceError(f"{output}: there is no folder {output.parent}")
    made = find(target)(device)
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module) and callable(made[1])):
        raise TraceError(f"{target}({device!r}) returned {type(made).__name__}; it has to return (model, step)")
    model, step = made
    workload = record(model, step, name=output.stem, iterations=iterations)
    where = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    source = f"recorded from {target}: PyTorch {torch.__version__}, {where}, median of {iterations} iterations"
    output.write_text(workloads.dump(workload, title=type(model).__name__, source=source), encoding="utf-8")
    silent = {name for name, _ in model.named_parameters()} - {tensor.name for tensor in workload.tensors}
    return (
        f"{output}: {len(workload.tensors)} tensors, {workload.nbytes / 1e6:.1f} MB, "
        f"forward {workload.forward_seconds * 1e3:.2f} ms, backward {workload.backward_seconds * 1e3:.2f} ms"
        + (f"; left out, for they got no gradient: {', '.join(sorted(silent))}" if silent else "")
    )
