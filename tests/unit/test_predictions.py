"""Simulations beside the emulated launches of the same cases."""

import pytest
from simulations import DAY, in_the_lab
from synthetic import figure_12, made

from experiments.predictions import compare
from experiments.record import Fidelity

LATER = "2026-03-02T00:00:00Z"


def test_launches_are_compared_with_the_simulation_of_the_same_case():
    run = figure_12()
    for one in (compared := compare(run, in_the_lab(run, 1.25))):
        assert one.error == pytest.approx(-0.2)  # of the speed
        assert set(one.launches) == {0, 1}
    assert {(one.line.contender, one.case.k) for one in compared} == {
        *(("byteps", k) for k in (0, 1, 2, 4, 8)),
        ("gloo-ring", 0),
    }


def test_another_rate_size_or_setting_is_another_case():
    run = [made("byteps", 1.0, settings={"partition": "auto"})]
    assert compare(run, in_the_lab(run))
    for change in ({"nbytes": 2**20}, {"nic_bytes_per_s": 1e9}, {"k": 1}, {"settings": {"partition": "4096000"}}):
        assert not compare([made("byteps", 1.0, **change)], in_the_lab(run))


def test_launches_that_were_not_faithful_are_not_compared():
    run = figure_12()
    bound = figure_12(fidelity=Fidelity(verdict="cpu-bound"))
    assert not compare(bound, in_the_lab(run))


def test_a_prediction_is_older_than_every_launch():
    run = figure_12(started_at=LATER)
    assert all(one.predicted for one in compare(run, in_the_lab(run, started_at=DAY)))
    assert not any(one.predicted for one in compare(run, in_the_lab(run, started_at="2026-03-03T00:00:00Z")))


def test_a_launch_before_the_simulation_is_not_undone_by_one_after_it():
    launches = [made("byteps", 1.0, block=block, record_started_at=f"2026-03-0{1 + 2 * block}") for block in (0, 1)]
    assert not any(one.predicted for one in compare(launches, in_the_lab(launches, started_at=LATER)))


def test_a_prediction_stands_while_later_simulations_say_the_same():
    run = figure_12(started_at="2026-03-02T12:00:00Z")
    early, late = in_the_lab(run), in_the_lab(run, started_at="2026-03-03T00:00:00Z")
    assert all(one.predicted for one in compare(run, [*early, *late]))
    changed = in_the_lab(run, 1.1, started_at="2026-03-02T00:00:00Z")
    assert not any(one.predicted for one in compare(run, [*early, *changed, *late]))
