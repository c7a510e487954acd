"""Which experiments there are, by name or from a file of one's own."""

from pathlib import Path

import pytest

from experiments import agenda
from experiments.record import case_hash

OWN = """
name = "{name}"
title = "t"
provenance = "emulated"
warmups = 1
iterations = 3
[[contender]]
name = "byteps"
[tier.reproduce]
blocks = 2
n = 2
ks = [0]
nbytes = ["1MiB"]
nic = "200Mbit"
"""


def own(folder: Path, name: str) -> str:
    path = folder / "own.toml"
    path.write_text(OWN.format(name=name), encoding="utf-8")
    return str(path)


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(agenda.RunError, match=r"no experiment 'fig99'; there are .*fig12, "):
        agenda.load("fig99")


def test_what_runs_elsewhere_is_answered_with_where() -> None:
    with pytest.raises(agenda.RunError, match="fig13 does not run here, it is simulated: use --on sim"):
        agenda.load("fig13")
    with pytest.raises(agenda.RunError, match=r"sizes is not simulated; simulated are fig12, "):
        agenda.load_simulation("sizes")


def test_a_file_of_ones_own_is_an_experiment(tmp_path: Path) -> None:
    experiment = agenda.load(own(tmp_path, "mine"))
    cases = agenda.cases_of(experiment, "reproduce")
    assert [case.block for case in cases] == [0, 1]
    assert agenda.cases_of(experiment, "smoke") == []
    assert agenda.current_hashes(experiment) == {case_hash(case) for case in cases}


def test_a_file_of_ones_own_must_be_there_and_not_take_a_name_of_the_suite(tmp_path: Path) -> None:
    with pytest.raises(agenda.RunError, match="there is no such file"):
        agenda.load(str(tmp_path / "none.toml"))
    with pytest.raises(agenda.RunError, match="'fig12' is an experiment of this suite"):
        agenda.load(own(tmp_path, "fig12"))


def test_a_shipped_file_may_be_named_by_its_path() -> None:
    assert agenda.load(str(agenda.CASES / "fig12.toml")) == agenda.load("fig12")
