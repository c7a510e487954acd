"""Verdicts follow from intervals, mechanically."""

import pytest

from baselines.contenders import CONTENDERS
from experiments.agenda import simulations
from experiments.claims import Claim, judge, load_claims
from experiments.metrics import METRICS
from experiments.report import CLAIMS, experiments


def make_claim(**changes: object) -> Claim:
    fields = {
        "id": "c",
        "text": "t",
        "metric": "m",
        "direction": "at_least",
        "threshold": 0.95,
        "tolerance": 0.0,
        "provenance": "emulated",
        "rule": "interval",
        "parts": ["k=0"],
    }
    return Claim(**{**fields, **changes})


@pytest.mark.parametrize(
    "values, word",
    [
        ([0.95, 0.97], "reproduced"),
        ([0.94, 0.97], "inconclusive"),
        ([0.90, 0.94], "not reproduced"),
        ([0.99], "inconclusive"),
    ],
)
def test_the_interval_decides(values, word):
    assert judge(make_claim(), {"k=0": values}, cores=2).word == word


def test_at_most_is_the_mirror_of_at_least():
    claim = make_claim(direction="at_most", threshold=0.1)
    assert judge(claim, {"k=0": [0.05, 0.1]}, cores=2).word == "reproduced"
    assert judge(claim, {"k=0": [0.11, 0.2]}, cores=2).word == "not reproduced"


def test_the_tolerance_widens_the_claim():
    assert judge(make_claim(tolerance=0.05), {"k=0": [0.90, 0.91]}, cores=2).word == "reproduced"


def test_one_bad_part_decides_and_is_named():
    verdict = judge(make_claim(parts=["k=0", "k=1"]), {"k=0": [0.99, 0.99], "k=1": [0.8, 0.81]}, cores=2)
    assert verdict.word == "not reproduced"
    assert verdict.reason.startswith("k=1: 0.805")


def test_a_missing_part_is_never_reproduced():
    verdict = judge(make_claim(parts=["k=0", "k=1"]), {"k=0": [0.99, 0.99]}, cores=2)
    assert verdict.word == "inconclusive"
    assert verdict.reason == "k=1: no verified record"


def test_what_was_never_tried_is_not_testable_and_what_only_failed_is_inconclusive():
    assert judge(make_claim(), {}, cores=2).word == "not testable here"
    assert judge(make_claim(), {}, cores=2, attempted=True).word == "inconclusive"


def test_a_claim_about_a_bigger_machine_is_not_testable_on_a_smaller_one_unless_it_holds_there():
    claim = make_claim(cores=32)
    assert judge(claim, {"k=0": [0.5, 0.6]}, cores=2).word == "not testable here"
    assert judge(claim, {"k=0": [0.5, 0.6]}, cores=32).word == "not reproduced"
    assert judge(claim, {"k=0": [0.96, 0.97]}, cores=2).word == "reproduced"


def test_the_rule_every_looks_at_each_value_and_needs_no_interval():
    claim = make_claim(rule="every", direction="at_most", threshold=0.0)
    assert judge(claim, {"k=0": [0.0]}, cores=2).word == "reproduced"
    assert judge(claim, {"k=0": [0.0, 0.0, 1.0]}, cores=2).word == "not reproduced"


def test_a_pattern_stands_for_all_parts_that_fit_and_is_missing_if_none_does():
    claim = make_claim(parts=["sizes 1 MiB k=0", "sizes * k=0"])
    values = {"sizes 1 MiB k=0": [0.99, 0.98], "sizes 8 MiB k=0": [0.99, 0.97], "sizes 8 MiB k=8": [0.1, 0.1]}
    verdict = judge(claim, values, cores=2)
    assert [part.part for part in verdict.parts] == ["sizes 1 MiB k=0", "sizes 8 MiB k=0"]
    assert verdict.word == "reproduced"
    assert (
        judge(make_claim(parts=["sizes * k=0"]), {}, cores=2, attempted=True).reason
        == "sizes * k=0: no verified record"
    )


def test_without_an_opponent_that_it_names_a_claim_is_not_reproduced():
    claim = make_claim(contenders=["horovod", "ddp"])
    absent = {"horovod": "not run: install it with: make horovod"}
    verdict = judge(claim, {"k=0": [0.99, 0.98]}, cores=2, absent=absent)
    assert verdict.word == "inconclusive"
    assert verdict.reason == "without horovod: not run: install it with: make horovod"
    assert judge(claim, {"k=0": [0.9, 0.9]}, cores=2, absent=absent).word == "not reproduced"


def test_what_was_never_tried_for_want_of_a_peer_says_so():
    absent = {"horovod": "not run: install it with: make horovod"}
    verdict = judge(make_claim(contenders=["horovod"]), {}, cores=2, absent=absent)
    assert verdict.word == "not testable here"
    assert verdict.reason == "k=0: no launch of this size; without horovod: not run: install it with: make horovod"


def test_a_part_that_is_a_missing_contender_says_why():
    claim = make_claim(parts=["mxnet-sync"])
    verdict = judge(claim, {}, cores=2, attempted=True, absent={"mxnet-sync": "not run: make mxnet"})
    assert verdict.reason == "mxnet-sync: not run: make mxnet"


def test_the_claims_file_is_valid_and_names_what_is_known():
    claims = load_claims(CLAIMS)
    assert len(claims) >= 19
    assert {claim.metric for claim in claims} <= set(METRICS)
    assert {name for claim in claims for name in claim.contenders} <= set(CONTENDERS)
    assert {name for claim in claims for name in claim.experiments} <= {*experiments(), *simulations()}


def test_a_wrong_claims_file_names_the_file(tmp_path):
    path = tmp_path / "claims.toml"
    path.write_text('[[claim]]\nid = "a"\n')
    with pytest.raises(ValueError, match=str(path)):
        load_claims(path)
