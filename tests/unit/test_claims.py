"""Verdicts follow from intervals, mechanically."""

import pytest

from experiments.claims import Claim, judge, load_claims
from experiments.metrics import METRICS
from experiments.report import CLAIMS


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


def test_the_claims_file_is_valid_and_names_known_metrics():
    claims = load_claims(CLAIMS)
    assert len(claims) >= 8
    assert {claim.metric for claim in claims} <= set(METRICS)


def test_a_wrong_claims_file_names_the_file(tmp_path):
    path = tmp_path / "claims.toml"
    path.write_text('[[claim]]\nid = "a"\n')
    with pytest.raises(ValueError, match=str(path)):
        load_claims(path)
