"""Training on the paper's cluster: what must hold whatever the constants are, and what they say of Figure 12."""

from dataclasses import replace

import pytest

from byteps import machine_file, strategy, theory
from byteps.predict import Gradient, Job, transfer
from experiments import paper, scale, systems, workloads
from experiments.scale import Site
from experiments.systems import AllReduce, BytePS, Constant, Lab, ParameterServer, Systems

B = 90e9 / 8
GIB = 2**30


def zero(value: float = 0.0) -> Constant:
    return Constant(value=value, source="a test")


FREE = Systems(
    byteps=BytePS(
        network_fraction=zero(1.0), message_seconds=zero(), tensor_seconds=zero(), partition_bytes=zero(4_096_000)
    ),
    all_reduce=AllReduce(
        network_fraction=zero(1.0),
        negotiation_seconds=zero(),
        cycle_seconds=zero(),
        fusion_bytes=zero(2**26),
        network_step_seconds=zero(),
        nvlink_step_seconds=zero(),
        pcie_step_seconds=zero(),
    ),
    parameter_server=ParameterServer(
        server_fraction=zero(1.0), worker_fraction=zero(1.0), tensor_seconds={"MXNet": zero(), "TensorFlow": zero()}
    ),
    lab=Lab(latency_seconds=zero()),
)
CONSTANTS = systems.load()


def site(n: int = 8, k: int = 0, name: str = "nvlink", rate: float = B) -> Site:
    return Site(machine=name, n=n, k=k, nic_bytes_per_s=rate)


def training(model: str = "gpt2") -> Job:
    return scale.training(workloads.with_times(workloads.read(model)), overlap_forward=False)


JOB = training()
COMPUTATION = workloads.with_times(workloads.read("gpt2")).iteration_seconds


@pytest.mark.parametrize("k", [0, 1, 4, 8])
def test_free_systems_on_one_gpu_machines_take_theorys_time(k: int) -> None:
    one_gpu = site(k=k, name="one-gpu")
    job = transfer(GIB, 1)
    expected = theory.byteps_seconds(GIB, 8, k, B)
    assert scale.byteps(job, one_gpu, "rule", FREE).seconds == pytest.approx(expected, rel=5e-3)
    assert scale.all_reduce(job, one_gpu, FREE).seconds == pytest.approx(theory.ring_seconds(GIB, 8, B))
    if k:
        both = (8 / k + 1) * GIB / B  # pushes and pulls of the one key do not overlap
        assert scale.parameter_server(job, one_gpu, "MXNet", FREE).seconds == pytest.approx(both)
        through = scale.scheduled_parameter_server(job, one_gpu, "MXNet", FREE).seconds
        assert through == pytest.approx(theory.noncolocated_ps_seconds(GIB, 8, k, B), rel=5e-3)


@pytest.mark.parametrize("name", ["nvlink", "pcie-only"])
def test_cpu_machines_make_byteps_faster_and_no_other_all_reduce(name: str) -> None:
    times = [scale.byteps(JOB, site(k=k, name=name), "rule", CONSTANTS).seconds for k in (0, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_a_faster_network_is_never_slower() -> None:
    for rate in (B / 8, B / 2, B):
        slow, fast = site(k=4, rate=rate), site(k=4, rate=2 * rate)
        for run in (
            lambda at: scale.byteps(JOB, at, "rule", CONSTANTS),
            lambda at: scale.all_reduce(JOB, at, CONSTANTS),
        ):
            assert run(fast).seconds <= run(slow).seconds * (1 + 1e-9)


def test_nothing_is_faster_than_computation() -> None:
    for n in (1, 2, 32):
        at = site(n=n, k=n)
        assert scale.byteps(JOB, at, "rule", CONSTANTS).seconds >= COMPUTATION
        assert scale.all_reduce(JOB, at, CONSTANTS).seconds >= COMPUTATION
        assert scale.parameter_server(JOB, at, "MXNet", CONSTANTS).seconds >= COMPUTATION


def test_one_machine_uses_no_network_and_all_systems_sum_alike() -> None:
    outcomes = [
        scale.byteps(JOB, site(n=1), "rule", FREE),
        scale.all_reduce(JOB, site(n=1), FREE),
        scale.parameter_server(JOB, site(n=1), "MXNet", FREE),
    ]
    for outcome in outcomes:
        assert not any(nbytes for link, nbytes in outcome.carried.items() if "NIC0." in link)
        assert outcome.seconds == pytest.approx(outcomes[0].seconds, rel=2e-3)
    assert outcomes[0].seconds == pytest.approx(COMPUTATION, rel=0.02)


def test_ways_inside_a_machine_are_named() -> None:
    nvlink = machine_file.preset("nvlink")
    assert site().plan("rule") == strategy.rule(nvlink)
    assert site().plan("strawman") == strategy.strawman(nvlink)
    assert site().plan("root=all").roots == nvlink.gpus
    assert site().plan("root=2,3").roots == ("GPU2", "GPU3")
    for wrong, said in (
        *(("best", "local = 'best': use rule"), ("root", "local = 'root': use rule")),
        *(("root=9", r"roots are \['GPU9'\]"), ("root=", r"roots are \['GPU'\]")),
    ):
        with pytest.raises(ValueError, match=said):
            site().plan(wrong)


def test_the_papers_root_beats_the_one_beside_the_nic() -> None:
    times = {local: scale.byteps(JOB, site(), local, CONSTANTS).seconds for local in ("root=2", "root=0")}
    assert times["root=2"] < times["root=0"]


def test_a_rings_steps_take_the_networks_time_where_they_leave_a_machine() -> None:
    costs = replace_steps(network=10.0, nvlink=1.0, pcie=2.0)
    assert scale.step_seconds(site(n=2), costs) * 30 == pytest.approx(4 * 10.0 + 26 * 1.0)
    assert scale.step_seconds(site(n=1), costs) == pytest.approx(1.0)
    assert scale.step_seconds(site(n=2, name="pcie-only"), costs) * 30 == pytest.approx(4 * 10.0 + 26 * 2.0)
    assert scale.step_seconds(site(n=8, name="one-gpu"), costs) == pytest.approx(10.0)
    assert scale.step_seconds(site(n=1, name="one-gpu"), costs) == 0.0


def replace_steps(network: float, nvlink: float, pcie: float) -> AllReduce:
    old = FREE.all_reduce
    return AllReduce(
        network_fraction=old.network_fraction,
        negotiation_seconds=old.negotiation_seconds,
        cycle_seconds=old.cycle_seconds,
        fusion_bytes=old.fusion_bytes,
        network_step_seconds=zero(network),
        nvlink_step_seconds=zero(nvlink),
        pcie_step_seconds=zero(pcie),
    )


def test_scheduling_hides_what_the_barrier_exposes() -> None:
    late = Job(
        gradients=(
            Gradient(nbytes=1_500_000_000, ready_seconds=0.1, forward_position=1, forward_seconds=0.1),
            Gradient(nbytes=200_000_000, ready_seconds=0.2, forward_position=0, forward_seconds=0.1),
        )
    )
    at = site(n=4)
    assert scale.scheduled_all_reduce(late, at, FREE).seconds < scale.all_reduce(late, at, FREE).seconds
    assert scale.byteps(replace(late, overlap_forward=True), at, "rule", FREE).seconds < (
        scale.byteps(late, at, "rule", FREE).seconds
    )


def test_frameworks_are_the_papers() -> None:
    assert [scale.framework_of(model) for model in ("vgg16", "resnet50", "gpt2", "vgg19")] == [
        *("MXNet", "TensorFlow", "PyTorch", "PyTorch")
    ]
    assert set(scale.OVERLAPS_FORWARD) == {one.framework for one in paper.fig15_16().model.values()}
