"""Workloads: the models have the sizes of the real ones, their times add up, and replays keep proportions."""

import csv
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import workloads
from experiments.layers import steps
from experiments.workloads import ITEMSIZE, MODELS, TimedTensor, Workload, WorkloadError

# Per-tensor V100 traces of others; not part of this repository.
TRACES = Path(__file__).resolve().parents[3] / "shared" / "reference" / "traces"

# Parameters and tensors, as published or counted in the usual implementation.
SIZES = {
    "resnet50": (25_557_032, 161),
    "vgg16": (138_357_544, 32),
    "ugatit": (670_761_088, 148),
    "transformer_big": (210_804_736, 185),
    "bert_large": (336_226_108, 398),
    "gpt2": (124_439_808, 148),
    "vgg19": (143_667_240, 38),
    "lenet5": (431_080, 8),
    "googlenet": (6_624_904, 173),
}
# The paper's iteration on one GPU: batch / rate of linear scaling.
ITERATION_SECONDS = {
    ("resnet50", "fig15"): 0.7111,
    ("vgg16", "fig15"): 0.4267,
    ("vgg16", "fig4"): 0.1667,
    ("ugatit", "fig15"): 0.9298,
    ("transformer_big", "fig16"): 0.1988,
    ("bert_large", "fig16"): 0.4900,
    ("gpt2", "fig16"): 0.4819,
}
SMALL = """
name = "small"
title = "t"
source = "s"
tokens = 2
[timing.slow]
source = "s"
seconds = 12
[timing.fast]
source = "s"
batch = 6
rate = 2
[[group]]
layers = [
  { name = "table", kind = "embedding", rows = 5, width = 4 },
  { name = "middle", kind = "linear", in = 4, out = 4 },
  { name = "head", kind = "linear", in = 4, out = 5, bias = false, tied_to = "table.weight" },
]
"""


def flops(name: str) -> float:
    model = workloads.read(name)
    return sum(step.flops for part in steps(model.group, model.tokens).values() for step in part)


def test_every_file_in_the_folder_is_a_model_and_is_named_after_it():
    assert sorted(path.stem for path in workloads.FOLDER.glob("*.toml")) == sorted(MODELS)
    assert [workloads.read(name).name for name in MODELS] == list(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_sizes_are_those_of_the_real_model(name: str):
    workload = workloads.with_times(workloads.read(name))
    assert (workload.numel, len(workload.tensors)) == SIZES[name]
    assert workload.nbytes == workload.numel * (2 if name == "bert_large" else 4)


def test_operations_are_those_published_for_one_sample():
    assert flops("resnet50") == pytest.approx(2 * 4.09e9, rel=0.001)
    assert flops("vgg16") == pytest.approx(2 * 15.47e9, rel=0.001)
    assert flops("vgg19") == pytest.approx(2 * 19.63e9, rel=0.001)
    assert flops("googlenet") == pytest.approx(2 * 1.498e9, rel=0.001)


@pytest.mark.parametrize("name", MODELS)
def test_forward_and_backward_add_up_to_the_published_iteration(name: str):
    model = workloads.read(name)
    for timing, one in model.timing.items():
        workload = workloads.with_times(model, timing)
        assert workload.iteration_seconds == pytest.approx(one.iteration_seconds)
        if (name, timing) in ITERATION_SECONDS:
            assert one.iteration_seconds == pytest.approx(ITERATION_SECONDS[name, timing], rel=1e-3)
        if name != "ugatit":
            assert workload.backward_seconds == pytest.approx(2 * workload.forward_seconds)


def test_rates_that_nobody_published_are_vgg16_at_the_same_operations_per_second():
    per_second = workloads.read("vgg16").timing["fig15"].rate * flops("vgg16")
    for name in ("vgg19", "lenet5"):
        assert workloads.read(name).timing["derived"].rate == pytest.approx(per_second / flops(name), rel=1e-3)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "ugatit"])
def test_gradients_become_ready_in_the_reverse_order_of_the_forward_pass(name: str):
    tensors = workloads.with_times(workloads.read(name)).tensors
    assert [tensor.forward_position for tensor in tensors] == list(reversed(range(len(tensors))))
    assert all(first.ready_seconds <= second.ready_seconds for first, second in pairwise(tensors))


@pytest.mark.parametrize(
    "name, tied",
    [
        ("gpt2", "transformer.wte.weight"),
        ("transformer_big", "embedding_and_softmax.weight"),
        ("bert_large", "bert.embeddings.word_embeddings.weight"),
    ],
)
def test_an_embedding_that_the_head_uses_too_is_ready_last_and_needed_first(name: str, tied: str):
    last = workloads.with_times(workloads.read(name)).tensors[-1]
    assert (last.name, last.forward_position) == (tied, 0)


def test_the_head_that_uses_the_embedding_takes_its_time_but_has_no_tensor():
    workload = workloads.with_times(workloads.load(SMALL))
    ready = {tensor.name: tensor.ready_seconds for tensor in workload.tensors}
    # 64 operations in the middle, 80 in the head, of the 8 seconds backward
    assert ready == pytest.approx({"middle.bias": 8, "middle.weight": 8, "table.weight": 8} | {"table.weight": 8.0})
    assert [tensor.forward_seconds for tensor in workload.tensors] == pytest.approx([4.0, 0.0, 0.0])


def test_adversarial_networks_train_in_two_phases():
    workload = workloads.with_times(workloads.read("ugatit"))
    discriminators = [tensor for tensor in workload.tensors if tensor.name.startswith("dis")]
    generators = [tensor for tensor in workload.tensors if tensor.name.startswith("gen")]
    assert list(workload.tensors) == discriminators + generators
    gap = generators[0].ready_seconds - discriminators[-1].ready_seconds
    burst = generators[-1].ready_seconds - generators[0].ready_seconds
    # The gap holds 2 backward passes of generators, 6 forward, 4 backward, and discriminators; the burst 2 backward.
    assert gap / burst == pytest.approx(18 / 4, rel=0.1)
    # The discriminators are needed after the generators by the next iteration, in its first forward pass.
    assert min(one.forward_position for one in discriminators) > max(one.forward_position for one in generators)
    assert sum(one.forward_seconds for one in discriminators) > 0
    assert {one.phase for one in discriminators} == {0}
    assert {one.phase for one in generators} == {1}
    sizes = [sum(one.numel for one in workload.tensors if one.phase == phase) for phase in (0, 1)]
    assert [size / 1e6 for size in sizes] == pytest.approx([112.8, 557.9], abs=0.05)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "ugatit"])
def test_other_networks_train_in_one_phase(name: str):
    assert {tensor.phase for tensor in workloads.with_times(workloads.read(name)).tensors} == {0}


def test_a_tensor_without_a_phase_is_in_the_first_and_none_comes_before_it():
    text = """
name = "listed"
title = "t"
source = "s"
tensor = [{ name = "a", shape = [3], ready_seconds = 1.0, forward_position = 0 }]
[timing.one]
source = "s"
seconds = 1
"""
    assert workloads.load(text).tensor[0].phase == 0
    with pytest.raises(WorkloadError, match="tensor a: phase = -1"):
        workloads.load(text.replace("forward_position = 0", "forward_position = 0, phase = -1"))


@pytest.mark.parametrize(
    "name, largest, mean_by_bytes",
    [
        # Convolutions on large images are bound by memory, so the front layers take longer than their share: the model
        # is late in the middle, where few bytes are.  The fully connected layers at the end hold 89 % of the bytes.
        ("vgg16", 0.30, 0.035),
        # Batch normalisation costs time there and none here; evenly spread, so the error is smaller.
        ("resnet50", 0.13, 0.05),
        ("gpt2", 0.02, 0.01),
        # The generators' FC.0 (1.07 GB each) takes 10.7 ms for its memory traffic, nothing by its operations.
        ("ugatit", 0.03, 0.015),
    ],
)
def test_tensors_are_ready_roughly_when_they_were_on_a_v100(name: str, largest: float, mean_by_bytes: float):
    path = TRACES / f"{name}.csv"
    if not path.exists():
        pytest.skip(f"needs the V100 trace {path.name}, which is not in this repository")
    with path.open() as file:
        rows = [(row["tensor"], int(row["elements"]), float(row["ready_us"])) for row in csv.DictReader(file)]
    tensors = workloads.with_times(workloads.read(name)).tensors
    assert sorted((one.name, one.numel) for one in tensors) == sorted((one, numel) for one, numel, _ in rows)

    place = {tensor.name: index for index, tensor in enumerate(tensors)}
    assert max(abs(place[one] - index) for index, (one, _, _) in enumerate(rows)) <= 1  # weight and bias may swap

    first, last = tensors[0].ready_seconds, tensors[-1].ready_seconds
    ours = {one.name: (one.ready_seconds - first) / (last - first) for one in tensors}
    errors = {one: abs(ours[one] - ready / rows[-1][2]) for one, _, ready in rows}
    assert max(errors.values()) <= largest
    assert sum(errors[one] * numel for one, numel, _ in rows) <= mean_by_bytes * sum(numel for _, numel, _ in rows)


def test_the_first_timing_is_the_usual_one_and_an_unknown_one_is_refused():
    model = workloads.load(SMALL)
    assert workloads.with_times(model).iteration_seconds == pytest.approx(12)
    assert workloads.with_times(model, "fast").iteration_seconds == pytest.approx(3)
    with pytest.raises(WorkloadError, match="small has no timing 'fats'; it has slow, fast"):
        workloads.with_times(model, "fats")


def test_a_workload_is_named_by_model_and_timing():
    model, timing = workloads.named("vgg16@fig4")
    assert (model.name, timing) == ("vgg16", "fig4")
    assert workloads.named("gpt2")[1] == ""
    with pytest.raises(WorkloadError, match="'vgg61' is not a model: use resnet50, vgg16"):
        workloads.named("vgg61@fig4")


@pytest.mark.parametrize(
    "before, after, message",
    [
        ("seconds = 12", "seconds = 12\nbatch = 3\nrate = 1", "either seconds, or batch and rate"),
        ('kind = "embedding"', 'kind = "embeding"', "embeding"),
        ("rows = 5", "row = 5", "row"),
        ('tied_to = "table.weight"', 'tied_to = "tabel.weight"', "'tabel.weight': there is no such parameter"),
        ('name = "middle"', 'name = "table"', "two parameters are called table.weight"),
        ("[[group]]", '[[phase]]\npasses = [""]\ntrains = []\n[[group]]', "trained in one phase"),
        (
            "[[group]]",
            '[[tensor]]\nname = "x"\nshape = [1]\nready_seconds = 1\nforward_position = 0\n[[group]]',
            "either",
        ),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_name(before: str, after: str, message: str):
    assert before in SMALL
    with pytest.raises(WorkloadError, match=message) as caught:
        workloads.load(SMALL.replace(before, after), source="mine.toml")
    assert str(caught.value).startswith("mine.toml: ")


@settings(max_examples=50, deadline=None)  # up to 40 ms each: a model is expanded anew for every replay
@given(
    name=st.sampled_from(MODELS),
    scale=st.floats(min_value=1, max_value=1e7),
    dilation=st.floats(min_value=0, max_value=1e4),
)
def test_a_scaled_replay_keeps_every_tensor_its_order_and_the_proportions_of_time(name, scale, dilation):
    full = workloads.with_times(workloads.read(name))
    tensors = workloads.replay(workloads.read(name), scale=scale, dilation=dilation)
    assert [tensor.name for tensor in tensors] == [f"{name}/{tensor.name}" for tensor in full.tensors]
    for mine, real in zip(tensors, full.tensors, strict=True):
        assert mine.numel >= 1
        assert abs(mine.numel - real.numel / scale) <= max(0.5, 1 - real.numel / scale) + 1e-6
        assert mine.ready_seconds == pytest.approx(real.ready_seconds * dilation)
        assert mine.forward_seconds == pytest.approx(real.forward_seconds * dilation)
    by_priority = sorted(tensors, key=lambda tensor: -tensor.priority)
    by_need = sorted(full.tensors, key=lambda tensor: tensor.forward_position)
    assert [tensor.name for tensor in by_priority] == [f"{name}/{tensor.name}" for tensor in by_need]


@settings(max_examples=20, deadline=None)
@given(scale=st.floats(min_value=1, max_value=1e6))
def test_fp16_travels_as_fp32_of_as_many_bytes(scale):
    model = workloads.read("bert_large")
    half, single = workloads.replay(model, scale=scale), workloads.replay(model, scale=scale, as_float32=True)
    assert {tensor.dtype for tensor in half} == {"float16"}
    assert {tensor.dtype for tensor in single} == {"float32"}
    for narrow, wide in zip(half, single, strict=True):
        assert 0 <= 4 * wide.numel - 2 * narrow.numel <= 2  # an odd one is rounded up
    resnet = workloads.read("resnet50")
    assert workloads.replay(resnet, as_float32=True) == workloads.replay(resnet)


def test_replays_of_one_model_in_one_launch_get_different_names():
    model, timing = workloads.named("vgg16@fig4")
    assert workloads.replay(model, timing, label="vgg16@fig4")[0].name == "vgg16@fig4/classifier.6.bias"


@pytest.mark.parametrize("scale, dilation", [(0.5, 1), (0, 1), (1, -1), (float("nan"), 1)])
def test_scales_below_one_and_negative_dilations_are_refused(scale: float, dilation: float):
    with pytest.raises(WorkloadError, match="scale must be at least 1"):
        workloads.replay(workloads.read("lenet5"), scale=scale, dilation=dilation)


rates = st.floats(min_value=1e5, max_value=1e12)


@given(real=rates, lab=rates, scale=st.floats(min_value=1, max_value=1e6), nbytes=rates, seconds=rates)
def test_dilation_keeps_communication_and_computation_in_proportion(real, lab, scale, nbytes, seconds):
    slower = workloads.dilation(real, lab, scale)
    assert (nbytes / scale / lab) / (seconds * slower) == pytest.approx((nbytes / real) / seconds)
    assert workloads.dilation(real, lab, 2 * scale) == pytest.approx(slower / 2)
    assert workloads.dilation(real, lab, 1) * workloads.dilation(lab, real, 1) == pytest.approx(1)
    assert workloads.dilation(real, real, 1) == pytest.approx(1)


def test_the_paper_sends_90_gbit_per_second_and_the_lab_what_headers_leave():
    assert workloads.paper_dilation(25e6, 100) == pytest.approx(90e9 / 8 / (25e6 * 1448 / 1514) / 100)


def test_one_tensor_and_many_have_no_times_and_the_bytes_asked_for():
    (one,) = workloads.single(64)
    assert (one.name, one.numel, one.ready_seconds, one.forward_seconds) == ("1 of 64/0", 16, 0.0, 0.0)
    for text in ("63", "0"):
        with pytest.raises(WorkloadError, match="4 bytes"):
            workloads.single(int(text))


@given(numel=st.integers(1, 10_000), count=st.integers(1, 300))
def test_many_tensors_are_equal_to_one_element_and_leave_nothing_out(numel, count):
    if numel < count:
        with pytest.raises(WorkloadError):
            workloads.many(4 * numel, count)
        return
    tensors = workloads.many(4 * numel, count)
    assert len({tensor.name for tensor in tensors}) == count
    assert sum(tensor.numel for tensor in tensors) == numel
    assert max(tensor.numel for tensor in tensors) - min(tensor.numel for tensor in tensors) <= 1


times = st.floats(min_value=0, max_value=1e3)


@given(
    rows=st.lists(st.tuples(st.text(), st.lists(st.integers(1, 50), max_size=3), times, times), min_size=1, max_size=8),
    title=st.text(),
    data=st.data(),
)
def test_what_is_written_is_read_back(rows, title, data):
    positions = data.draw(st.permutations(range(len(rows))))
    tensors = [
        TimedTensor(
            name=f"{index} {name}",
            shape=tuple(shape),
            dtype=data.draw(st.sampled_from(list(ITEMSIZE))),
            ready_seconds=ready + 1e-3,
            forward_position=position,
            forward_seconds=forward,
            phase=data.draw(st.integers(0, 3)),
        )
        for index, ((name, shape, ready, forward), position) in enumerate(zip(rows, positions, strict=True))
    ]
    tensors.sort(key=lambda tensor: (tensor.ready_seconds, -tensor.forward_position))
    workload = Workload(name="mine", tensors=tuple(tensors))
    model = workloads.load(workloads.dump(workload, title=title, source="s"))
    assert model.title == title
    again = workloads.with_times(model, "recorded")
    for mine, theirs in zip(again.tensors, tensors, strict=True):
        assert (mine.name, mine.shape, mine.dtype, mine.phase) == (
            theirs.name,
            theirs.shape,
            theirs.dtype,
            theirs.phase,
        )
        assert mine.ready_seconds == pytest.approx(theirs.ready_seconds)
        assert mine.forward_seconds == pytest.approx(theirs.forward_seconds)


def test_a_phase_ends_with_its_backward_pass_and_the_last_with_the_last_gradient() -> None:
    ugatit, vgg16 = (workloads.with_times(workloads.read(name)) for name in ("ugatit", "vgg16"))
    of_phase = [max(t.ready_seconds for t in ugatit.tensors if t.phase == phase) for phase in (0, 1)]
    assert ugatit.phase_ends[0] > of_phase[0] + 0.1  # the generators' part of the discriminators' backward pass
    assert ugatit.phase_ends[1] == pytest.approx(of_phase[1])
    assert vgg16.phase_ends == pytest.approx((vgg16.backward_seconds,))
