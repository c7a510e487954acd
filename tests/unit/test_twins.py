"""The emulated cluster simulated: closed forms where there are any, and what whole partitions cost."""

from collections.abc import Mapping

import pytest
from synthetic import PAYLOAD_RATE, made_case

from byteps import theory
from experiments import agenda, analysis, simulate, spec, twins
from experiments.record import Case

AUTO = {"partition": "auto"}
M = 2**24


def case(contender: str, k: int = 0, settings: Mapping[str, str] | None = None, **changes: object) -> Case:
    return made_case(contender, k=k, settings=dict(settings or {}), nbytes=M, **changes)


def of_bound(one: Case) -> float:
    return analysis.bound_seconds(one) / twins.simulate(one, 0.0).seconds


@pytest.mark.parametrize("contender", ["gloo-ring", "horovod"])
def test_a_ring_takes_its_closed_form_and_a_latency_for_each_step(contender: str) -> None:
    ring = theory.ring_seconds(M, 8, PAYLOAD_RATE)
    assert twins.simulate(case(contender), 0.0).seconds == pytest.approx(ring)
    assert twins.simulate(case(contender), 1e-3).seconds == pytest.approx(ring + 14e-3)


@pytest.mark.parametrize("k", [0, 2, 8])
def test_byteps_comes_near_the_optimum_but_not_to_it_where_partitions_are_whole(k: int) -> None:
    assert 0.95 < of_bound(case("byteps", k, AUTO)) < 1.0 - (1e-3 if k else -1e-9)


def test_large_partitions_cost_more() -> None:
    large = case("byteps", 8, {"partition": "1024000"})
    assert of_bound(large) < of_bound(case("byteps", 8, AUTO)) - 0.05


@pytest.mark.parametrize("k, keys_of_a_server", [(4, 4), (8, 2)])
def test_keys_of_mxnet_overlap_as_far_as_a_server_has_several(k: int, keys_of_a_server: int) -> None:
    """The first key comes in, then each next one while the one before goes out, then the last goes out."""
    assert of_bound(case("mxnet-sync", k)) == pytest.approx(1 / (1 + 1 / keys_of_a_server))


def test_what_is_not_known_of_the_emulated_cluster_is_refused() -> None:
    for one in (
        case("mpi-ring"),
        case("horovod", settings={"strategy": "scheduled"}),
        case("mxnet-sync", 8, {"call": "push+pull"}),
        case("byteps", settings={"strategy": "fused"}),
        case("byteps", settings=AUTO, n=1),
        case("byteps", settings=AUTO, workload="vgg16"),
    ):
        with pytest.raises(ValueError, match="without a machine in its settings, simulated are byteps"):
            simulate.simulated(one)


def test_every_prediction_is_of_a_case_that_is_emulated() -> None:
    def asked_for(experiment: spec.Experiment) -> set[tuple[object, ...]]:
        return {
            (one.contender, one.n, one.k, one.nbytes, one.nic_bytes_per_s, *sorted(one.settings.items()))
            for one in agenda.cases_of(experiment, "reproduce")
            if "machine" not in one.settings
        }

    predicted = asked_for(agenda.load_simulation("fig12"))
    assert len(predicted) == 13
    assert predicted <= asked_for(agenda.load("fig12"))
