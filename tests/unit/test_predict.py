"""Whole iterations in mean field against the closed forms, and what barriers, phases and costs must do."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps import predict, theory
from byteps.assign import paper_shares
from byteps.predict import BytePSCosts, Gradient, Job, Kind, RingCosts, ServerCosts, bare, transfer

B = 1e9
M = 64_000_000
WHOLE = BytePSCosts(partition_bytes=M)  # the parts of `transfer` are not cut further


def kinds(n: int, k: int, rate: float = B) -> list[Kind]:
    plan, capacities = bare(rate)
    shares = paper_shares(n, k)
    gpu = Kind(name="gpu", count=n, own=shares.gpu[0], plan=plan, capacities=capacities)
    cpu = [Kind(name="cpu", count=k, own=shares.cpu[0], plan=plan, capacities=capacities, worker=False)] if k else []
    return [gpu, *cpu]


def ring_kind(rate: float = B) -> Kind:
    plan, capacities = bare(rate)
    return Kind(name="gpu", count=1, own=1.0, plan=plan, capacities=capacities)


def ring_loads(n: int) -> dict[str, float]:
    return {"NIC0.out": 2 * (n - 1) / n, "NIC0.in": 2 * (n - 1) / n}


@settings(deadline=None)
@given(n=st.integers(2, 64), k=st.integers(0, 64), parts=st.integers(1, 40))
def test_parts_in_sequence_end_one_part_after_the_optimum_and_at_it_without_cpu_machines(
    n: int, k: int, parts: int
) -> None:
    k = min(k, n)
    expected = theory.byteps_seconds(M, n, k, B) * (1 + (1 / parts if k else 0))
    assert predict.byteps(transfer(M, parts), kinds(n, k), WHOLE).seconds == pytest.approx(expected, rel=1e-6)


@settings(deadline=None)
@given(n=st.integers(2, 256), parts=st.integers(1, 20))
def test_a_ring_takes_its_closed_form_however_the_bytes_are_cut(n: int, parts: int) -> None:
    seconds = predict.ring(transfer(M, parts), ring_kind(), n, ring_loads(n)).seconds
    assert seconds == pytest.approx(theory.ring_seconds(M, n, B), rel=1e-6)


@pytest.mark.parametrize(("n", "k"), [(8, 1), (8, 4), (8, 8), (4, 0)])
def test_a_parameter_server_takes_its_servers_time_and_then_its_workers(n: int, k: int) -> None:
    plan, capacities = bare(B)
    gpu = Kind(name="gpu", count=n, own=0.0, plan=plan, capacities=capacities)
    costs = ServerCosts(server_fraction=0.8, worker_fraction=1.2)
    part = 1.0 if k else (n - 1) / n
    expected = 0.8 * (n / k * M / B if k else part * M / B) + 1.2 * part * M / B
    assert predict.parameter_server(transfer(M, 4), gpu, n, k, costs).seconds == pytest.approx(expected, rel=1e-6)


def test_unequal_kinds_of_machines_take_the_time_of_the_busiest_nic() -> None:
    fast, slow = bare(2 * B), bare(B)
    own = 0.125
    machines = [
        Kind(name="fast", count=4, own=own, plan=fast[0], capacities=fast[1]),
        Kind(name="slow", count=4, own=own, plan=slow[0], capacities=slow[1]),
    ]
    parts = 50
    busiest = theory.ring_seconds(M, 8, B)
    assert (
        busiest <= predict.byteps(transfer(M, parts), machines, WHOLE).seconds <= busiest * (1 + 1 / parts) * (1 + 1e-9)
    )


def test_shares_that_do_not_sum_to_one_are_an_error_that_says_what_they_sum_to() -> None:
    with pytest.raises(ValueError, match=r"sum to 0\.5; they must sum to 1"):
        predict.byteps(transfer(M, 1), [replace(kinds(2, 0)[0], own=0.25)])


def training(overlap: bool = False) -> Job:
    """Backward from layer 2 to layer 0 in 0.3 s, forward in 0.3 s."""
    gradients = tuple(
        Gradient(nbytes=10_000_000, ready_seconds=0.1 * (index + 1), forward_position=2 - index, forward_seconds=0.1)
        for index in range(3)
    )
    return Job(gradients=gradients, overlap_forward=overlap)


def test_an_infinite_network_leaves_the_computation() -> None:
    for overlap in (False, True):
        assert predict.byteps(training(overlap), kinds(4, 4, 1e15)).seconds == pytest.approx(0.6, rel=1e-4)
        ring = predict.ring(training(overlap), ring_kind(1e15), 4, ring_loads(4))
        assert ring.seconds == pytest.approx(0.6, rel=1e-4)


def test_a_barrier_exposes_what_remains_after_the_backward_pass() -> None:
    """The last layer's 10 MB at 0.1 s per 10 MB start when it is ready: 0.3 + 0.1 + 0.3."""
    assert predict.ring(training(), ring_kind(1e8), 2, ring_loads(2)).seconds == pytest.approx(0.7)


@given(rate=st.floats(1e7, 1e10), factor=st.floats(1.1, 10))
@settings(deadline=None)
def test_more_bandwidth_and_no_barrier_are_never_slower(rate: float, factor: float) -> None:
    slow = predict.byteps(training(), kinds(4, 2, rate)).seconds
    assert predict.byteps(training(), kinds(4, 2, rate * factor)).seconds <= slow * (1 + 1e-9)
    assert predict.byteps(training(overlap=True), kinds(4, 2, rate)).seconds <= slow * (1 + 1e-9)
    assert slow >= 0.6


def test_a_phase_waits_for_the_results_of_the_one_before() -> None:
    gradients = (
        Gradient(nbytes=10_000_000, ready_seconds=0.1, forward_position=0),
        Gradient(nbytes=10_000_000, ready_seconds=0.3, forward_position=1, phase=1),
    )
    ring = predict.ring(Job(gradients=gradients), ring_kind(1e8), 2, ring_loads(2))
    assert ring.seconds == pytest.approx(0.1 + 0.1 + 0.2 + 0.1)  # compute, synchronise, compute, synchronise


def test_a_phase_that_computes_on_after_its_last_gradient_hides_its_synchronisation() -> None:
    gradients = (
        Gradient(nbytes=10_000_000, ready_seconds=0.1, forward_position=0),
        Gradient(nbytes=10_000_000, ready_seconds=0.4, forward_position=1, phase=1),
    )
    job = Job(gradients=gradients, phase_ends=(0.25, 0.4))
    assert predict.ring(job, ring_kind(1e8), 2, ring_loads(2)).seconds == pytest.approx(0.4 + 0.1)
    slow = predict.ring(job, ring_kind(4e7), 2, ring_loads(2)).seconds
    assert slow == pytest.approx(0.1 + 0.25 + 0.15 + 0.25)  # 0.1 s late at the step
    with pytest.raises(ValueError, match="phase_ends has 1 moments for 2 phases"):
        Job(gradients=gradients, phase_ends=(0.25,))


def test_costs_come_on_top() -> None:
    job = transfer(M, 4)
    free = predict.byteps(job, kinds(8, 8), WHOLE).seconds
    dear = predict.byteps(job, kinds(8, 8), replace(WHOLE, message_seconds=0.01, tensor_seconds=0.002)).seconds
    assert dear == pytest.approx(free + 5 * 0.01 + 0.002)  # four messages out and the last one back; one tensor first
    half = predict.byteps(job, kinds(8, 8), replace(WHOLE, network_fraction=0.5)).seconds
    assert half == pytest.approx(2 * free)
    steps = predict.ring(job, ring_kind(), 8, ring_loads(8), RingCosts(step_seconds=1e-3)).seconds
    assert steps == pytest.approx(theory.ring_seconds(M, 8, B) + 4 * 14 * 1e-3)


def test_fusion_gathers_what_is_ready_in_a_cycle_as_far_as_the_buffer_goes() -> None:
    ready = (0.001, 0.002, 0.004, 0.006, 0.007)
    gradients = [Gradient(nbytes=10, ready_seconds=at) for at in ready]
    assert predict.fused(gradients, 0.005, 1000) == [range(0, 3), range(3, 5)]
    assert predict.fused(gradients, 0.005, 20) == [range(0, 2), range(2, 3), range(3, 5)]
    assert predict.fused(gradients, 0.0, 1000) == [range(i, i + 1) for i in range(5)]


def test_stages_inside_the_machine_run_as_a_pipeline() -> None:
    """A copy at half the NIC's rate sets the pace; the other stages add one partition each."""
    plan, capacities = bare(B)
    inside = replace(plan, before=({"copy": 1.0},), after=({"back": 1.0},))
    rates = capacities | {"copy": B / 2, "back": B}
    machines = [replace(kinds(8, 8)[0], plan=inside, capacities=rates), kinds(8, 8)[1]]
    parts = 10
    seconds = predict.byteps(transfer(M, parts), machines, WHOLE).seconds
    assert seconds == pytest.approx(M / B * (2 + 3 / parts))


@pytest.mark.parametrize(
    ("phases", "complaint"),
    [
        ((1, 1), "the first gradient is of phase 1; phases begin with 0"),
        ((-1,), "the first gradient is of phase -1"),
        ((0, 2), "gradient 1 is of phase 2 after one of phase 0"),
        ((0, 1, 0), "gradient 2 is of phase 0 after one of phase 1"),
    ],
)
def test_phases_that_are_not_in_a_row_are_refused(phases: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Job(gradients=tuple(Gradient(nbytes=1, phase=phase) for phase in phases))


def test_phases_that_end_before_the_one_before_are_refused() -> None:
    gradients = tuple(Gradient(nbytes=1, phase=phase) for phase in (0, 1))
    with pytest.raises(ValueError, match=r"phase_ends are \(2\.0, 1\.0\)"):
        Job(gradients=gradients, phase_ends=(2.0, 1.0))


@pytest.mark.parametrize(("nbytes", "parts"), [(100, 0), (0, 4), (100, -1), (-5, 2)])
def test_a_transfer_of_nothing_or_in_no_parts_is_refused(nbytes: int, parts: int) -> None:
    with pytest.raises(ValueError, match=f"nbytes is {nbytes}, parts is {parts}; there is at least 1 of each"):
        transfer(nbytes, parts)


@pytest.mark.parametrize("what", ["ready_seconds", "forward_seconds"])
@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_moments_that_are_none_are_refused(what: str, seconds: float) -> None:
    with pytest.raises(ValueError, match=f"{what} of a gradient is {seconds}"):
        replace(Gradient(nbytes=1), **{what: seconds})
    with pytest.raises(ValueError, match="nbytes of a gradient is -1"):
        Gradient(nbytes=-1)
