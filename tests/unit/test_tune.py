"""The best of a contender's trials, over workloads, and a file that says so."""

import pytest
from test_record import make_case, make_record

from experiments import spec, tune
from experiments.record import Record

CHOICE = """
name = "x"
title = "t"
provenance = "emulated"
warmups = 1
iterations = 3
[[contender]]
name = "horovod"
settings = {{ strategy = ["{strategy}"] }}
knobs = ["default", "tuned"]
[tier.reproduce]
blocks = 1
n = 2
ks = [0]
nbytes = ["1MiB"]
nic = "200Mbit"
"""


def trials(contender: str, settings: dict[str, str], *seconds: float, **changes: object) -> list[Record]:
    """One record per workload."""
    cases = [
        make_case(contender=contender, settings=settings, workload=f"model {number}") for number in range(len(seconds))
    ]
    return [make_record(case, seconds=[time] * 3, **changes) for case, time in zip(cases, seconds, strict=True)]


def test_the_least_geometric_mean_over_the_workloads_wins():
    records = [
        *trials("horovod", {"fusion": "8MiB"}, 1.0, 4.0),
        *trials("horovod", {"fusion": "64MiB"}, 1.5, 1.5),
        *trials("horovod", {"fusion": "128MiB"}, 3.0, 3.0),
    ]
    (winner,) = tune.winners(records)
    assert winner.knobs == {"fusion": "64MiB"}
    assert (winner.seconds, winner.worst_seconds, winner.trials) == (pytest.approx(1.5), pytest.approx(3.0), 3)


def test_a_trial_that_failed_on_one_workload_is_out():
    broken = trials("ddp", {"bucket": "1MiB"}, 0.1, 0.1)
    records = [*broken[:1], *trials("ddp", {"bucket": "1MiB"}, 0.1, 0.1, error="died")[1:]]
    (winner,) = tune.winners([*records, *trials("ddp", {"bucket": "25MiB"}, 1.0, 1.0)])
    assert winner.knobs == {"bucket": "25MiB"}
    assert (winner.trials, winner.failed) == (2, 1)


def test_a_contender_of_which_every_trial_failed_has_no_winner():
    assert tune.winners(trials("ddp", {"bucket": "1MiB"}, 0.1, 0.1, error="not run")) == []


def test_strategies_are_tuned_apart_and_the_file_is_read_back(tmp_path):
    records = [
        *trials("horovod", {"fusion": "8MiB"}, 1.0),
        *trials("horovod", {"strategy": "scheduled", "piece": "4MiB"}, 2.0),
    ]
    path = tmp_path / "tuned.toml"
    path.write_text(tune.text(tune.winners(records)))
    assert tune.load(path) == {"horovod": {"fusion": "8MiB"}, "horovod scheduled": {"piece": "4MiB"}}
    assert "1 trials" in path.read_text()


def test_before_the_first_tuning_there_are_no_knobs(tmp_path):
    assert tune.load(tmp_path / "tuned.toml") == {}


def test_a_case_holds_the_knobs_that_were_found():
    experiment = spec.parse(CHOICE.format(strategy="scheduled"), source="x")
    cases = spec.expand(
        experiment, "reproduce", uses_k={"horovod": False}, tuned={"horovod scheduled": {"piece": "4MiB"}}
    )
    assert [case.settings for case in cases] == [
        {"strategy": "scheduled"},
        {"strategy": "scheduled", "piece": "4MiB", "knobs": "tuned"},
    ]


def test_knobs_that_nobody_has_tuned_are_an_error_that_says_how():
    experiment = spec.parse(CHOICE.format(strategy="plain"), source="x")
    with pytest.raises(spec.SpecError, match=r"'horovod': find them with `python -m experiments tune`"):
        spec.expand(experiment, "reproduce", uses_k={"horovod": False})


def test_contenders_without_a_winner_this_time_keep_the_knobs_of_earlier_trials(tmp_path):
    path = tmp_path / "tuned.toml"
    path.write_text(tune.text([], {"ddp": {"bucket": "25MiB"}}))
    assert tune.load(path) == {"ddp": {"bucket": "25MiB"}}
    assert "# from earlier trials" in path.read_text()
