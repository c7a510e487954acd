"""The axes of an experiment: several n, k as many as n, sizes and tiers of one contender, several NICs, models, shared
launches."""

import pytest

from experiments import record, spec
from experiments.spec import SpecError

USES_K = {"servers": True, "ring": False}
HEAD = """
name = "x"
title = "t"
provenance = "emulated"
warmups = 1
iterations = 2
"""
SERVERS = '[[contender]]\nname = "servers"\n'
RING = '[[contender]]\nname = "ring"\n'
TIER = '[tier.reproduce]\nblocks = 1\nn = [1, 2, 8]\nks = [0, 4, "n"]\nnbytes = ["1MiB"]\nnic = "200Mbit"\n'
MODELS = TIER.replace('nbytes = ["1MiB"]', 'workloads = ["vgg16", "gpt2"]\nscale = 64')


def model_size(workload: str, scale: float, rate: float, real: float) -> tuple[int, float]:
    return round(len(workload) * 6400 / scale), 1e9 / rate + real


def expand(text: str, tier: spec.Tier = "reproduce") -> list[record.Case]:
    return spec.expand(spec.parse(text, source="x.toml"), tier, uses_k=USES_K, model_size=model_size)


def test_k_may_be_as_many_as_n_more_than_n_is_left_out_and_one_machine_has_none():
    found = [(case.n, case.k) for case in expand(HEAD + SERVERS + TIER)]
    assert found == [(1, 0), (2, 0), (2, 2), (8, 0), (8, 4), (8, 8)]


def test_k_that_equals_n_is_there_once():
    cases = expand(HEAD + SERVERS + TIER.replace('[0, 4, "n"]', '[2, "n"]'))
    assert [(case.n, case.k) for case in cases] == [(1, 0), (2, 2), (8, 2), (8, 8)]


def test_what_does_not_use_cpu_machines_runs_once_per_n():
    assert [(case.n, case.k) for case in expand(HEAD + RING + TIER)] == [(1, 0), (2, 0), (8, 0)]


def test_a_contender_may_have_values_of_k_and_sizes_of_its_own():
    own = SERVERS + 'ks = ["n"]\nnbytes = ["2MiB", "3MiB"]\n'
    cases = expand(HEAD + own + SERVERS.replace('"servers"', '"ring"') + TIER.replace("[1, 2, 8]", "[8]"))
    assert [(case.contender, case.k, case.nbytes >> 20) for case in cases] == [
        ("servers", 8, 2),
        ("servers", 8, 3),
        ("ring", 0, 1),
    ]


def test_a_contender_may_be_of_some_tiers_only():
    smoke = TIER.replace("tier.reproduce", "tier.smoke").replace("[1, 2, 8]", "[4]")
    text = HEAD + SERVERS + RING + 'tiers = ["reproduce"]\n' + TIER + smoke
    assert {case.contender for case in expand(text)} == {"servers", "ring"}
    assert {case.contender for case in expand(text, "smoke")} == {"servers"}


def test_nics_are_run_one_after_the_other_over_all_blocks():
    text = HEAD + RING + TIER.replace('"200Mbit"', '["400Mbit", "100Mbit"]').replace("blocks = 1", "blocks = 2")
    cases = expand(text)
    rates = [case.nic_bytes_per_s for case in cases]
    assert rates == sorted(rates)
    assert set(rates) == {12.5e6, 50e6}
    assert [case.block for case in cases] == [0, 0, 0, 1, 1, 1] * 2
    assert len({record.case_hash(case) for case in cases}) == len(cases)


def test_models_have_their_own_size_and_the_dilation_of_the_nic():
    (vgg, gpt) = expand(HEAD + RING + MODELS.replace("[1, 2, 8]", "8"))
    assert (vgg.workload, vgg.nbytes, vgg.scale, vgg.dilation) == ("vgg16", 500, 64.0, 40.0)
    assert (gpt.workload, gpt.nbytes) == ("gpt2", 400)


def test_a_replay_may_stand_for_another_cluster_than_the_papers():
    case = expand(HEAD + RING + MODELS + 'real_nic = "10Gbit"\n')[0]
    assert case.dilation == 40.0 + 1.25e9


@pytest.mark.parametrize("change", [('nbytes = ["1MiB"]', ""), ("scale = 64", 'nbytes = ["1MiB"]')])
def test_tensors_need_sizes_and_models_take_none(change):
    text = HEAD + RING + (MODELS if "scale" in change[0] else TIER)
    with pytest.raises(SpecError, match="give nbytes for tensors, and none for models"):
        expand(text.replace(*change))


def test_a_model_without_models_at_hand_is_named():
    with pytest.raises(SpecError, match="'vgg16' is a model"):
        spec.expand(spec.parse(HEAD + RING + MODELS, source="x"), "reproduce", uses_k=USES_K)


def launches(text: str) -> list[list[record.Case]]:
    experiment = spec.parse(text, source="x.toml")
    return spec.launches(experiment, expand(text))


def test_a_launch_is_one_case_unless_said_otherwise():
    assert [len(group) for group in launches(HEAD + SERVERS + MODELS)] == [1] * 12


def test_one_launch_serves_all_workloads_of_a_setting_and_no_two_settings():
    text = HEAD + "one_launch = true\n" + SERVERS + 'settings = { knob = ["1", "2"] }\n' + RING
    text += MODELS.replace('nic = "200Mbit"', 'nic = ["200Mbit", "1Gbit"]').replace("blocks = 1", "blocks = 2")
    groups = launches(text)
    assert {len(group) for group in groups} == {2}
    for group in groups:
        assert [case.workload for case in group] == ["vgg16", "gpt2"]
        assert len({(c.block, c.nic_bytes_per_s, c.contender, c.settings.get("knob"), c.n, c.k) for c in group}) == 1
    assert len(groups) == 2 * 2 * (2 * 6 + 3)


def test_what_is_left_of_a_launch_shares_it_still():
    text = HEAD + "one_launch = true\n" + RING + MODELS.replace('["vgg16", "gpt2"]', '["a", "b", "c"]')
    experiment = spec.parse(text, source="x.toml")
    left = [case for case in expand(text) if case.workload != "b"]
    assert [[case.workload for case in group] for group in spec.launches(experiment, left)] == [["a", "c"]] * 3


def test_several_scales_are_launches_of_their_own_since_knobs_scale_with_the_tensors():
    text = (
        HEAD + "one_launch = true\n" + RING + MODELS.replace("scale = 64", "scale = [1, 64]").replace("[1, 2, 8]", "8")
    )
    experiment = spec.parse(text, source="x.toml")
    groups = spec.launches(experiment, expand(text))
    assert [[(case.workload, case.scale) for case in group] for group in groups] == [
        [("vgg16", 1.0), ("gpt2", 1.0)],
        [("vgg16", 64.0), ("gpt2", 64.0)],
    ]
