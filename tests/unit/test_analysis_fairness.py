"""Fairness, dimensionless groups, and where the gain comes from."""

import math

import pytest
from synthetic import PAYLOAD_RATE, RATE, failed, made, not_run, replayed

from experiments import fairness, gain, groups
from experiments.record import Fidelity


def test_the_groups_of_a_launch():
    cpu = {f"gpu{i}": 0.3 for i in range(8)}
    one = made("byteps", 2.0, k=8, record_cpu_seconds_by_host=cpu, record_facts={"latency_seconds": "0.001"})
    found = groups.groups(one)
    assert found.latency_share == pytest.approx(2 * 0.001 / 2.0)
    assert found.cores_at_rate == pytest.approx(0.1 / 2**24 * PAYLOAD_RATE)
    assert found.burst_share == pytest.approx(32768 / 2**24)
    assert found.partitions_per_service == pytest.approx(2**24 / 65536 / 8)


def test_groups_that_do_not_apply_are_not_numbers():
    ring = groups.groups(made("gloo-ring", 1.0, record_cpu_seconds_by_host={}))
    assert all(math.isnan(value) for value in (ring.latency_share, ring.cores_at_rate, ring.partitions_per_service))
    assert math.isnan(groups.groups(failed("byteps")).burst_share)
    assert math.isnan(groups.groups(made("byteps", 1.0, n=1)).burst_share)


def test_a_ring_has_more_steps_than_a_server():
    latency = {"record_facts": {"latency_seconds": "0.001"}}
    assert groups.groups(made("gloo-ring", 1.0, **latency)).latency_share == pytest.approx(0.014)


def test_replays_count_the_partitions_of_every_tensor_and_scale_a_chosen_size():
    one = replayed("byteps", 1.0, "vgg16", n=4, scale=256.0, settings={"partition": "16MiB"})
    # Of full size: fc1 25 of 16 MiB, fc2 4, all others one each; by 4 services.
    assert groups.groups(one).partitions_per_service == pytest.approx((30 + 25 + 4) / 4)


def test_what_is_smaller_than_twenty_buckets_is_software():
    assert groups.least_shaped_nbytes(RATE) == 20 * 32768
    assert groups.unshaped(made("byteps", 1.0, nbytes=2**19).case)
    assert not groups.unshaped(made("byteps", 1.0, nbytes=2**20).case)


def test_an_intervention_is_paired_with_the_same_case_without_it():
    records = [
        made("horovod", 1.0, settings={"cycle": "5"}),
        made("horovod", 3.0, settings={"cycle": "5", "wait": "spin"}),
    ]
    records += [
        made("horovod", 9.0, settings={"cycle": "1"}),
        made("mxnet-sync", 1.0),
        made("mxnet-sync", 2.0, settings={"keys": "1"}),
    ]
    found = {one.label: one for one in fairness.interventions(records)}
    assert found["Horovod (gloo), cycle 5"].ratios == [3.0]
    assert found["MXNet PS"].ratios == [2.0]
    assert len(found) == 2


def test_a_cpu_bound_spinner_is_shown_without_a_ratio():
    spin = made("horovod", 3.0, settings={"wait": "spin"}, record_fidelity=Fidelity(verdict="cpu-bound"))
    (one,) = fairness.interventions([made("horovod", 1.0), spin])
    assert one.otherwise == {0: 3.0}
    assert one.ratios == []
    assert one.unverified == "cpu-bound"


def test_defaults_are_compared_with_tuned_knobs_of_the_same_strategy():
    records = [
        made("horovod", 1.0, settings={"fusion": "8MiB", "knobs": "tuned"}),
        made("horovod", 1.5),
        made("horovod", 0.1, settings={"strategy": "scheduled"}),
    ]
    (one,) = fairness.defaults(records)
    assert one.ratios == [1.5]


def rates(slowdown):
    """BytePS and Horovod at three rates; at the last one Horovod is slower than everywhere else."""
    return [
        replayed(
            name,
            factor * (slowdown if (name, rate) == ("horovod", 50e6) else 1.0),
            "gpt2",
            k=k,
            nic_bytes_per_s=rate,
            block=block,
            experiment="rates",
        )
        for rate in (12.5e6, 25e6, 50e6)
        for block in range(2)
        for name, k, factor in (("byteps", 8, 1.0), ("horovod", 0, 1.7))
    ]


@pytest.mark.parametrize("slowdown, verdict", [(1.04, "transfers"), (1.06, "does not transfer")])
def test_a_ratio_that_drifts_by_more_than_five_percent_does_not_transfer(slowdown, verdict):
    (one,) = fairness.transfer(rates(slowdown))
    assert one.drift == pytest.approx(slowdown - 1)
    assert one.verdict == verdict
    assert [len(values) for values in one.values.values()] == [2, 2, 2]


def test_a_ratio_seen_at_one_rate_is_not_said_to_transfer():
    (one,) = fairness.transfer([record for record in rates(1.0) if record.case.nic_bytes_per_s == 25e6])
    assert one.verdict == "seen once"


def test_scaled_and_whole_models_are_compared_as_shares_of_linear_scaling():
    records = [replayed("horovod", factor, "vgg16", scale=scale) for scale, factor in ((1.0, 2.0), (64.0, 2.5))]
    (one,) = fairness.scaling(records)
    assert {scale: values[0] for scale, values in one.values.items()} == pytest.approx({1.0: 0.5, 64.0: 0.4})
    assert one.verdict == "does not transfer"


def launch(name, strategy, factor, **changes):
    return replayed(name, factor, "gpt2", n=4, settings={"strategy": strategy} if strategy else {}, **changes)


def test_each_step_is_on_top_of_the_last():
    (one,) = gain.decompose(
        [
            launch("horovod", "one-by-one", 4.0),
            launch("horovod", "fused", 2.0),
            launch("horovod", "scheduled", 1.6),
            launch("horovod", "", 3.0),
            launch("byteps", "", 1.25),
        ]
    )
    assert one.ratios(("ring", "one by one"), ("ring", "fused")) == pytest.approx([2.0])
    assert one.ratios(("ring", "fused"), ("ring", "scheduled")) == pytest.approx([1.25])
    assert one.ratios(("ring", "scheduled"), ("split", "scheduled")) == pytest.approx([1.28])
    assert one.share_of_linear(("split", "scheduled")) == pytest.approx(0.8)
    assert one.share_of_linear(("ring", "as it is")) == pytest.approx(1 / 3)
    assert one.share_of_linear(("PS", "fused")) is None


def test_a_cell_without_numbers_has_a_reason():
    (one,) = gain.decompose(
        [
            launch("horovod", "fused", 2.0),
            failed("mxnet-sync", workload="gpt2", settings={"strategy": "fused"}),
            not_run("mxnet-sync", workload="gpt2", settings={"strategy": "scheduled"}),
        ]
    )
    assert one.reasons == {("PS", "fused"): "failed", ("PS", "scheduled"): "not run"}


def test_only_launches_without_cpu_machines_are_part_of_the_decomposition():
    assert gain.decompose([launch("byteps", "", 1.0, k=4), launch("gloo-ring", "fused", 1.0)]) == []
