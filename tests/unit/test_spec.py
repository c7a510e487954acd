"""Experiments as data."""

import pytest

from baselines.contenders import CONTENDERS, USES_K, source_files
from experiments import agenda, record, spec
from experiments.spec import SpecError

TEXT = """
name = "x"
title = "t"
provenance = "emulated"
warmups = 1
iterations = 3
[[contender]]
name = "byteps"
settings = { partition = ["auto", "4096000"] }
[[contender]]
name = "gloo-ring"
[tier.reproduce]
blocks = 3
n = 4
ks = [0, 2, 4]
nbytes = ["1MiB"]
nic = "200Mbit"
"""

TUNING_NAMES = [*CONTENDERS, "horovod scheduled", "mxnet-sync scheduled"]


def expand(text: str = TEXT) -> list[record.Case]:
    return spec.expand(spec.parse(text, source="x.toml"), "reproduce", uses_k=USES_K)


def test_every_contender_and_setting_runs_once_per_block_and_the_ring_once_for_all_k():
    cases = expand()
    assert len(cases) == 3 * (2 * 3 + 1)
    assert [case.k for case in cases if case.contender == "gloo-ring"] == [0, 0, 0]
    assert len({record.case_hash(case) for case in cases}) == len(cases)


def test_the_order_of_contenders_and_of_k_is_rotated_from_block_to_block():
    blocks = [[case for case in expand() if case.block == block] for block in range(3)]
    assert [block[0].contender for block in blocks] == ["byteps", "gloo-ring", "byteps"]
    assert [next(case.k for case in block if case.contender == "byteps") for block in blocks] == [0, 2, 4]
    assert [case.position for case in blocks[1]] == list(range(7))


def test_units_are_read_as_units():
    case = expand()[0]
    assert (case.nbytes, case.nic_bytes_per_s) == (2**20, 25e6)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("ks = [0, 2, 4]", "ks = [0, 5]", r"x\.toml: .*ks = \[0, 5\]"),
        ('nic = "200Mbit"', "", r"nic is missing"),
        ('nic = "200Mbit"', 'nic = "fast"', r"x\.toml: .*fast"),
        ('nbytes = ["1MiB"]', 'nbytes = ["abc"]', r"x\.toml: .*abc"),
        ("blocks = 3", "blocks = 0", "blocks"),
        ("warmups = 1", "warmup = 1", "warmup"),
        ("[tier.reproduce]", "[tier.quick]", "quick"),
    ],
)
def test_a_wrong_file_is_refused_with_file_and_key(old, new, message):
    with pytest.raises(SpecError, match=message):
        expand(TEXT.replace(old, new))


def test_an_unknown_contender_is_named():
    with pytest.raises(SpecError, match="'horse' is not registered"):
        expand(TEXT.replace('"gloo-ring"', '"horse"'))


def test_a_missing_tier_is_named():
    with pytest.raises(SpecError, match="no tier 'paper'"):
        spec.parse(TEXT, source="x.toml").size("paper")


@pytest.mark.parametrize(
    ("name", "tier"), [(name, tier) for name in sorted(agenda.experiments()) for tier in agenda.load(name).tier]
)
def test_the_shipped_experiments_are_valid(name, tier, monkeypatch):
    monkeypatch.setattr(agenda.tune, "load", lambda: {name: {"tried": "1"} for name in TUNING_NAMES})
    cases = agenda.cases_of(agenda.load(name), tier)
    assert cases
    assert {case.experiment for case in cases} == {name}
    assert len({record.case_hash(case) for case in cases}) == len(cases)


def test_figure_12_is_judged_by_64_mib_on_8_machines_in_3_blocks():
    cases = [case for case in agenda.cases_of(agenda.load("fig12"), "reproduce") if case.nbytes == 2**26]
    assert {case.k for case in cases if case.contender == "byteps"} == {0, 1, 2, 4, 8}
    assert {(case.n, case.nic_bytes_per_s, case.block) for case in cases} == {(8, 25e6, block) for block in range(3)}


@pytest.mark.parametrize("name", sorted(CONTENDERS))
def test_the_code_of_every_contender_is_found(name):
    assert source_files(CONTENDERS[name])
