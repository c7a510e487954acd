"""Recording a training step: what is needed when, what is ready when, and that the file replays."""

import importlib
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from experiments import trace, workloads
from experiments.trace import NEVER, Event, TraceError, moments

torch = pytest.importorskip("torch")
nn = torch.nn
REPOSITORY = Path(__file__).resolve().parents[2]
ROOT, FIRST, LAST = 10, 11, 12  # modules
W, V = 1, 2  # parameters
HOLDERS = {W: [[FIRST, ROOT]], V: [[LAST, ROOT]]}


def events(text: str) -> list[Event]:
    """ "enter 11 0.5, gradient 1 2.0" """
    words = [event.split() for event in text.split(",")]
    return [
        Event(kind=kind, whom=tuple(int(one) for one in whom.split("+")), seconds=float(seconds))
        for kind, whom, seconds in words
    ]


FORWARD = "enter 10 0.5, enter 11 1, leave 11 2, enter 12 3, leave 12 4, leave 10 5"


def test_time_begins_when_the_model_has_returned():
    seen = moments(events(f"{FORWARD}, gradient 2 7, gradient 1 8"), HOLDERS, ROOT)
    assert seen.forward == 5
    assert seen.needed == {W: 1, V: 3}
    assert seen.ready == {W: 3, V: 2}


def test_a_module_that_runs_again_for_the_backward_pass_changes_nothing():
    seen = moments(events(f"{FORWARD}, enter 12 6, leave 12 6.5, gradient 2 7, gradient 1 8"), HOLDERS, ROOT)
    assert (seen.forward, seen.needed) == (5, {W: 1, V: 3})


def test_a_container_that_is_never_called_returns_with_its_last_module():
    seen = moments(events("enter 11 1, leave 11 2, enter 12 3, leave 12 4, gradient 1 8"), HOLDERS, ROOT)
    assert (seen.forward, seen.ready) == (4, {W: 4})


def test_a_parameter_is_needed_by_whoever_runs_first_or_by_those_around_a_module_that_is_never_called():
    holders = {W: [[LAST, ROOT], [FIRST, ROOT]], V: [[99, FIRST, ROOT]]}
    seen = moments(events(f"{FORWARD}, gradient 2 7, gradient 1 8"), holders, ROOT)
    assert seen.needed == {W: 1, V: 1}


def test_the_gradient_that_counts_is_the_one_the_optimiser_takes():
    twice = f"{FORWARD}, gradient 1 6, gradient 1 7, consume 1 8, enter 12 9, leave 12 10, gradient 1 11, gradient 2 12"
    assert moments(events(twice), HOLDERS, ROOT).ready == {W: 2, V: 7}
    assert moments(events(f"{twice}, consume 1+2 13"), HOLDERS, ROOT).ready == {W: 2, V: 7}
    assert moments(events(twice.replace("consume 1", "consume 2")), HOLDERS, ROOT).ready == {W: 6, V: 7}


def test_a_parameter_of_a_later_phase_is_not_needed_before_the_backward_pass():
    late = "enter 11 1, leave 11 2, gradient 1 3, consume 1 4, enter 12 5, leave 12 6, gradient 2 7"
    assert moments(events(late), HOLDERS, ROOT).needed == {W: 1, V: NEVER}


def test_a_step_without_gradients_or_without_the_model_is_refused():
    with pytest.raises(TraceError, match="no gradient was computed"):
        moments(events(FORWARD), HOLDERS, ROOT)
    with pytest.raises(TraceError, match="has to call the model"):
        moments(events("gradient 1 8"), HOLDERS, ROOT)


class Sleep(torch.autograd.Function):
    """Computation of known length."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(0.01)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.02)
        return gradient


class Tied(nn.Module):
    """An embedding that is the head too, a slow layer, a frozen one and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.middle = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(4, 4)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(self.frozen(Sleep.apply(self.middle(Sleep.apply(self.table(x))))))


def step_of(model, x):
    def step() -> None:
        model.zero_grad()
        model(x).sum().backward()

    return step


def test_a_shared_parameter_is_needed_first_and_ready_last_and_what_gets_no_gradient_is_left_out():
    model = Tied()
    workload = trace.record(model, step_of(model, torch.arange(5)), name="tied", iterations=3, warmups=1)
    tensors = {tensor.name: tensor for tensor in workload.tensors}
    assert set(tensors) == {"head.bias", "middle.weight", "middle.bias", "table.weight"}
    assert workload.tensors[0].name == "head.bias"
    assert workload.tensors[-1].name == "table.weight"
    assert sorted(tensors, key=lambda name: tensors[name].forward_position) == [
        "table.weight",
        "middle.weight",
        "middle.bias",
        "head.bias",
    ]
    assert tensors["table.weight"].shape == (5, 4)
    # One sleep forward after the table and one after the middle layer, the same backward at double length.
    assert tensors["table.weight"].forward_seconds >= 0.01
    assert tensors["middle.bias"].forward_seconds >= 0.01
    assert tensors["head.bias"].ready_seconds < tensors["middle.weight"].ready_seconds - 0.02
    assert tensors["middle.weight"].ready_seconds < tensors["table.weight"].ready_seconds - 0.02


def test_no_hook_is_left_behind():
    model = Tied()
    step = step_of(model, torch.arange(5))
    trace.record(model, step, name="tied", iterations=1, warmups=0)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    assert not importlib.import_module("torch.optim.optimizer")._global_optimizer_pre_hooks


def test_parameters_that_a_parent_uses_itself_are_needed_with_the_parent():
    model = nn.Sequential(nn.Linear(4, 4), nn.MultiheadAttention(4, 2))

    def step() -> None:
        x = model[0](torch.ones(3, 1, 4))
        model[1](x, x, x)[0].sum().backward()

    workload = trace.record(model, step, name="attention", iterations=1, warmups=0)
    order = sorted(workload.tensors, key=lambda tensor: tensor.forward_position)
    assert [tensor.name for tensor in order[:2]] == ["0.weight", "0.bias"]
    assert {tensor.name for tensor in order[2:]} >= {"1.out_proj.weight", "1.in_proj_weight"}
    assert workload.iteration_seconds > 0


def test_adversarial_training_is_two_bursts():
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    model = nn.ModuleDict({"generator": generator, "critic": critic})
    optimisers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (critic, generator)]

    def step() -> None:
        for optimiser in optimisers:
            model.zero_grad()
            critic(generator(torch.ones(2, 4))).sum().backward()  # gives both a gradient, each time
            optimiser.step()
            time.sleep(0.01)

    workload = trace.record(model, step, name="gan", iterations=2, warmups=1)
    assert [tensor.name.split(".")[0] for tensor in workload.tensors] == ["critic"] * 2 + ["generator"] * 2
    assert workload.tensors[2].ready_seconds - workload.tensors[1].ready_seconds >= 0.01
    first = [tensor.name for tensor in workload.tensors if tensor.forward_position < 2]
    assert sorted(first) == ["generator.bias", "generator.weight"]


def test_half_precision_is_recorded_as_two_bytes_and_double_refused():
    model = nn.Linear(4, 4)
    half = model.bfloat16()
    step = step_of(half, torch.ones(2, 4, dtype=torch.bfloat16))
    assert trace.record(half, step, name="x", iterations=1).nbytes == 2 * 20
    double = nn.Linear(4, 4).double()
    with pytest.raises(TraceError, match=r"weight is torch\.float64"):
        trace.record(double, step_of(double, torch.ones(2, 4, dtype=torch.float64)), name="x", iterations=1)


PROGRAM = """
    import torch
    from neighbour import WIDTH

    def build(device):
        used = torch.nn.Linear(WIDTH, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)
        model = torch.nn.Sequential(*used, torch.nn.Linear(9, 9))
        x = torch.ones(7, WIDTH)
        def step():
            model.zero_grad()
            model[:3](x).sum().backward()
        return model.to(device), step

    def wrong(device):
        return torch.nn.Linear(1, 1)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "neighbour.py").write_text("WIDTH = 5\n")
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return path


def test_what_is_recorded_is_a_workload_file_that_replays(program: Path, tmp_path: Path):
    output = tmp_path / "mine.toml"
    said = trace.record_to_file(f"{program}:build", output, iterations=2)
    assert said.startswith(f"{output}: 4 tensors, 0.0 MB, forward ")
    assert said.endswith("; left out, for they got no gradient: 3.bias, 3.weight")

    model, timing = workloads.named(f"{output}@recorded")
    assert (model.name, model.title) == ("mine", "Sequential")
    assert "median of 2 iterations" in model.source
    workload = workloads.with_times(model, timing)
    assert {tensor.name: tensor.shape for tensor in workload.tensors} == {
        "0.weight": (3, 5),
        "0.bias": (3,),
        "2.weight": (1, 3),
        "2.bias": (1,),
    }
    tensors = workloads.replay(model, scale=2, dilation=10)
    assert sorted(tensor.numel for tensor in tensors) == [1, 2, 2, 8]
    total = tensors[-1].ready_seconds + sum(tensor.forward_seconds for tensor in tensors)
    assert total == pytest.approx(10 * workload.iteration_seconds)


def test_the_command_writes_the_file_and_names_what_is_wrong(program: Path, tmp_path: Path):
    command = [sys.executable, "-m", "experiments", "record-trace", f"{program}:build", "--iterations", "2"]
    output = tmp_path / "mine.toml"
    done = subprocess.run([*command, "--output", output], capture_output=True, text=True, timeout=100, cwd=REPOSITORY)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{output}: 4 tensors")
    assert workloads.read(str(output)).name == "mine"
    command[4] = f"{program}:built"
    done = subprocess.run([*command, "--output", output], capture_output=True, text=True, timeout=100, cwd=REPOSITORY)
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no function 'built'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "function, message",
    [
        ("wrong", "returned Linear; it has to return"),
        ("built", "has no function 'built'"),
    ],
)
def test_a_function_that_is_not_there_or_returns_something_else_is_refused(
    program: Path, tmp_path: Path, function: str, message: str
):
    with pytest.raises(TraceError, match=message):
        trace.record_to_file(f"{program}:{function}", tmp_path / "x.toml")


@pytest.mark.parametrize("device, output", [("tpu", "x.toml"), ("cpu", "no/x.toml")])
def test_nothing_is_run_before_device_and_folder_are_known_to_be_there(tmp_path: Path, device: str, output: str):
    with pytest.raises(TraceError, match=f"{device!r}: use cpu or cuda|there is no folder"):
        trace.record_to_file("no.such.module:build", tmp_path / output, device=device)


@pytest.mark.parametrize("target", ["build", "no_such_module_here:build", "no/such/file.py:build"])
def test_a_target_that_cannot_be_found_is_refused_by_name(target: str):
    with pytest.raises(TraceError, match=repr(target)):
        trace.find(target)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_on_a_gpu_the_moments_are_those_of_the_stream():
    model = nn.Sequential(nn.Linear(2048, 2048), nn.Linear(2048, 2048)).cuda()
    workload = trace.record(model, step_of(model, torch.ones(4096, 2048, device="cuda")), name="x", iterations=3)
    assert {tensor.name for tensor in workload.tensors[:2]} == {"1.bias", "1.weight"}
    # 2 * 2048^2 * 4096 operations a layer: a call returns in microseconds, the work takes longer.
    assert workload.forward_seconds > 1e-4
    assert workload.backward_seconds > workload.forward_seconds
