"""One function names every line."""

import pytest
from synthetic import made_case

from baselines.contenders import CONTENDERS
from experiments import lines, tune


def label(name, **settings):
    return lines.line_of(name, settings).label


def test_a_contender_has_one_colour_whatever_it_does():
    looks = [lines.line_of("horovod", settings) for settings in ({}, {"strategy": "scheduled"}, {"knobs": "default"})]
    assert len({look.colour for look in looks}) == 1
    assert len({(look.linestyle, look.fillstyle, bool(look.notes)) for look in looks}) == 3


def test_strategies_and_interventions_are_named():
    assert label("horovod") == "Horovod (gloo)"
    assert label("horovod", strategy="scheduled") == "Horovod (gloo) + ByteScheduler-like"
    assert label("horovod", strategy="one-by-one") == "Horovod (gloo), one by one"
    assert label("horovod", wait="spin") == "Horovod (gloo), spinning"
    assert label("byteps", partition="4096000") == "BytePS, 4,096,000-byte partitions"


def test_what_is_usual_here_goes_without_saying():
    assert label("byteps", partition="auto", credit="auto") == "BytePS"
    assert label("horovod", wait="poll", strategy="plain") == "Horovod (gloo)"


def test_tuned_knobs_do_not_show_and_others_do():
    assert label("horovod", fusion="8MiB", cycle="5", knobs="tuned") == "Horovod (gloo)"
    assert label("horovod", fusion="8MiB", cycle="5") == "Horovod (gloo), cycle 5, fusion 8MiB"
    assert label("horovod", knobs="default") == "Horovod (gloo), default knobs"


@pytest.mark.parametrize("name", tune.load())
def test_every_tuned_contender_is_at_its_best_whatever_the_trials_chose(name):
    contender, _, strategy = name.partition(" ")
    settings = {**tune.load()[name], "knobs": "tuned"} | ({"strategy": strategy} if strategy else {})
    line = lines.line_of(contender, settings)
    assert line.notes == ()
    assert line.main == (not strategy)


def test_what_tuning_never_chooses_shows_beside_tuned_knobs():
    assert label("horovod", wait="spin", fusion="8MiB", knobs="tuned") == "Horovod (gloo), spinning"
    assert label("mxnet-sync", call="push+pull", keys="1", knobs="tuned") == "MXNet PS, push, then pull"


def test_default_knobs_are_named_only_where_tuned_ones_ran_too():
    default, tuned = made_case("horovod"), made_case("horovod", settings={"fusion": "8MiB", "knobs": "tuned"})
    assert lines.naming([default])(default).main
    named = lines.naming([default, tuned])
    assert named(default).label == "Horovod (gloo), default knobs"
    assert not named(default).main
    assert named(tuned).main
    other = made_case("horovod", experiment="fig4")
    assert lines.naming([default, tuned, other])(other).main


def test_only_the_contender_as_it_is_is_the_main_line():
    assert lines.line_of("byteps", {"partition": "auto"}).main
    for settings in ({"partition": "4096000"}, {"strategy": "fused"}, {"wait": "spin"}, {"keys": "1"}):
        assert not lines.line_of("byteps", settings).main


def test_k_is_part_of_a_name_only_where_it_matters():
    assert lines.line_of("byteps", {}).at("k = n").label == "BytePS, k = n"
    assert lines.line_of("byteps", {}).at("k = 0").linestyle != lines.line_of("byteps", {}).at("k = n").linestyle
    assert lines.line_of("horovod", {}).at("k = 0").label == "Horovod (gloo)"


def test_a_contender_that_this_version_does_not_know_is_still_named():
    look = lines.line_of("of tomorrow", {"strategy": "unheard of"})
    assert look.label == "of tomorrow, unheard of"
    assert look.colour == lines.UNKNOWN_COLOUR


def test_lines_are_ordered_as_the_table_of_contenders():
    known = [lines.line_of(name, {}) for name in CONTENDERS]
    assert sorted(set(known), key=lines.order_of) == known


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_has_a_colour_of_its_own(name):
    others = [other.colour for key, other in CONTENDERS.items() if key != name]
    assert CONTENDERS[name].colour not in others
