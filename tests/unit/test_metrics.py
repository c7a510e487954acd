"""From records to the values that claims are judged by."""

import pytest
from synthetic import MODELS, SLOW_NIC, figure_12, made, replayed

from experiments import opponents
from experiments.metrics import METRICS
from experiments.record import Fidelity


def over_best(records):
    return opponents.over(records, opponent=opponents.anybody, situation=lambda _: True)


def test_goodput_steps_are_named_after_their_ks():
    assert list(METRICS["goodput_step"](figure_12())) == ["k=0->1", "k=1->2", "k=2->4", "k=4->8"]


def test_the_best_opponent_is_chosen_in_every_block():
    records = [made("byteps", 1.0, block=block) for block in (0, 1)]
    records += [made("horovod", 1.2, block=0), made("horovod", 1.5, block=1)]
    records += [made("gloo-ring", 1.4, block=0), made("gloo-ring", 1.1, block=1)]
    assert over_best(records) == {"fig12 16 MiB k=0": pytest.approx([1.2, 1.1])}


def test_a_block_without_an_opponent_or_without_byteps_says_nothing():
    records = [made("byteps", 1.0, block=0), made("byteps", 1.0, block=1), made("horovod", 2.0, block=1)]
    assert over_best([*records, made("horovod", 9.0, block=2)]) == {"fig12 16 MiB k=0": [2.0]}


def test_parameter_servers_are_opponents_with_as_many_cpu_machines_only_and_all_reduce_always():
    records = [made("byteps", 1.0, k=k) for k in (0, 8)]
    records += [made("mxnet-sync", 0.5, k=8), made("mxnet-sync", 3.0, k=0), made("horovod", 2.0)]
    assert over_best(records) == {"fig12 16 MiB k=0": [2.0], "fig12 16 MiB k=8": [0.5]}
    assert METRICS["over_mxnet_sync"](records) == {"fig12 16 MiB k=0": [3.0], "fig12 16 MiB k=8": [0.5]}


def test_unverified_opponents_enter_no_ratio():
    cpu_bound = Fidelity(verdict="cpu-bound")
    records = [made("byteps", 1.0), made("horovod", 2.0), made("gloo-ring", 0.1, record_fidelity=cpu_bound)]
    assert over_best(records) == {"fig12 16 MiB k=0": [2.0]}


def test_byteps_is_judged_by_its_main_line_and_opponents_by_all_of_theirs():
    records = [
        made("byteps", 1.0, settings={"partition": "auto"}),
        made("byteps", 0.1, settings={"partition": "4096000"}),
        made("byteps", 0.1, settings={"strategy": "fused"}),
        made("horovod", 2.0),
        made("horovod", 1.5, settings={"strategy": "scheduled"}),
    ]
    assert over_best(records) == {"fig12 16 MiB k=0": [1.5]}


def test_with_tuned_knobs_the_default_ones_are_not_the_main_line():
    records = [
        made("byteps", 1.0, settings={"partition": "128KiB", "knobs": "tuned"}),
        made("byteps", 0.1),
        made("horovod", 2.0),
    ]
    assert over_best(records) == {"fig12 16 MiB k=0": [2.0]}


def test_sizes_rates_and_experiments_are_never_mixed():
    records = [made("byteps", 1.0), made("horovod", 2.0, nbytes=2**26)]
    records += [made("horovod", 2.0, experiment="sizes"), made("horovod", 2.0, nic_bytes_per_s=50e6)]
    assert over_best(records) == {}


def test_the_best_opponent_by_size_needs_a_tensor_that_the_nic_shapes():
    records = [
        made(name, 1.0, experiment="sizes", nbytes=nbytes)
        for name in ("byteps", "horovod")
        for nbytes in (2**16, 2**20)
    ]
    records += [made(name, 1.0, experiment="sizes", workload="tensors:100") for name in ("byteps", "horovod")]
    assert list(METRICS["over_best_by_size"](records)) == ["sizes 1 MiB k=0"]


def test_replays_bound_by_computation_are_left_out_of_the_claim_about_communication():
    records = [
        replayed(name, 2.0, model, real_nic=SLOW_NIC, scale=64.0, k=k, experiment="slow_nics")
        for model in MODELS
        for name, k in (("byteps", 8), ("horovod", 0), ("mxnet-sync", 8))
    ]
    expected = {f"slow_nics {model} k=8" for model in MODELS if model != "resnet50"}
    assert set(METRICS["over_best_allreduce_communication_bound"](records)) == expected
    assert set(METRICS["over_mxnet_sync_communication_bound"](records)) == expected
    assert len(METRICS["over_best_on_replays"](records)) == len(MODELS)


def test_a_model_that_the_nic_lets_pass_unshaped_enters_no_claim():
    records = [replayed(name, 2.0, "resnet50", scale=256.0, k=k) for name, k in (("byteps", 8), ("horovod", 0))]
    assert METRICS["over_best_on_replays"](records) == {}


def test_cost_is_byteps_over_horovod_and_silent_without_measurements():
    records = [made("byteps", 1.0, k=4), made("horovod", 2.0)]
    assert METRICS["cpu_cost_over_horovod"](records) == {"fig12 16 MiB k=4": pytest.approx([0.5])}
    assert (
        METRICS["cpu_cost_over_horovod"]([made("byteps", 1.0, record_cpu_seconds_by_host={}), made("horovod", 2.0)])
        == {}
    )


def test_every_contender_has_its_share_of_its_own_bound():
    shares = METRICS["fraction_of_bound"](figure_12(fraction=0.96))
    assert shares["gloo-ring"] == pytest.approx([0.97, 0.97])
    assert shares["byteps"] == pytest.approx([0.96] * 10)


def test_one_machine_alone_has_no_opponents():
    assert over_best([made("byteps", 1.0, n=1), made("horovod", 2.0, n=1)]) == {}
