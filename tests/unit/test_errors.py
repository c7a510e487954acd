"""How far simulated results lie from the paper's and from emulated ones."""

from collections import Counter
from dataclasses import replace

import pytest
from simulations import answer, everything, in_the_lab, simulated
from synthetic import figure_12

from experiments import errors, residuals
from experiments.errors import Number, Wanted

LATER = "2026-03-02T00:00:00Z"


def number(figure: str, line: str, where: str) -> Number:
    (found,) = [one for one in errors.published() if (one.figure, one.line, one.where) == (figure, line, where)]
    return found


def test_a_simulation_that_says_what_the_paper_says_has_no_error_anywhere():
    found = errors.points(everything())
    assert [point.error for point in found] == pytest.approx([0.0] * len(found))


def test_a_simulation_that_is_a_tenth_too_fast_is_so_everywhere():
    found = errors.points(everything(1.1))
    assert errors.errors(found) == pytest.approx([0.1] * len(found))
    assert errors.median_error(found) == pytest.approx(0.1)


def test_every_number_is_answered_by_a_case_of_its_own():
    apart = [one for one in errors.published() if one.wanted.n > 1]  # a single machine has no use for others
    assert set(Counter((one.wanted, one.ways) for one in apart).values()) == {1}


def test_only_figure_12_and_16_gpus_are_fitted_and_8_gpus_say_nothing_about_the_network():
    by_use = {use: {one.figure for one in errors.published() if one.use == use} for use in errors.USES}
    assert by_use["fitted"] == {"Fig 12", "Fig 15", "Fig 16"}
    assert by_use["one machine"] == {"Fig 15", "Fig 16"}
    assert by_use["held out"] >= {"Fig 4", "Fig 13a", "Fig 13b", "Fig 14a", "Fig 14b", "Fig 15", "Fig 16"}
    in_figure_12 = [one for one in errors.published() if one.figure == "Fig 12" and one.use != "fitted"]
    assert [(one.line, one.where) for one in in_figure_12] == [("MXNet PS", "k = 0")]
    trained = [one for one in errors.published() if one.wanted.experiment == "scale"]
    assert {one.wanted.n for one in trained if one.use == "fitted"} == {2}
    assert {one.wanted.n for one in trained if one.use == "one machine"} == {1}


def test_a_number_without_a_usable_record_has_no_error():
    wanted = number("Fig 12", "BytePS", "k = 3")
    broken = answer(wanted, record_error="no route", record_seconds=[])
    points = {point.number: point for point in errors.points(broken)}
    assert points[wanted].error is None
    assert errors.median_error(points.values()) is None
    assert errors.worst(points.values()) is None


def test_the_worst_point_may_lie_on_either_side():
    low, high = number("Fig 12", "BytePS", "k = 3"), number("Fig 12", "BytePS", "k = 4")
    found = errors.worst(errors.points([*answer(low, 0.7), *answer(high, 1.2)]))
    assert found
    assert found.number == low


def test_the_papers_way_inside_a_machine_is_compared_with_the_paper_where_both_were_simulated():
    wanted = number("Fig 13a", "UGATIT", "k = 0")
    rule, all_reduce = answer(wanted)
    case = {"experiment": "fig13", "n": 8, "workload": "ugatit"}
    planned = simulated("byteps", 0.1, settings={"machine": "pcie-only", "local": "planned"}, **case)
    value = {point.number: point.simulated for point in errors.points([planned, rule, all_reduce])}[wanted]
    assert value == pytest.approx(wanted.value)
    value = {point.number: point.simulated for point in errors.points([planned, all_reduce])}[wanted]
    assert value == pytest.approx(20.0)


def test_a_speed_up_is_over_all_reduce_on_machines_of_the_same_kind():
    wanted = number("Fig 13a", "UGATIT", "k = 0")
    byteps, _ = answer(wanted)
    other = simulated("horovod", 2.0, settings={"machine": "nvlink"}, experiment="fig13", n=8, workload="ugatit")
    assert {point.number: point.simulated for point in errors.points([byteps, other])}[wanted] is None


def test_the_newest_record_of_a_case_counts_and_those_of_the_lab_do_not():
    wanted = number("Fig 12", "BytePS", "k = 8")
    lab = in_the_lab(figure_12())
    found = errors.points([*answer(wanted, 0.5), *answer(wanted, record_started_at=LATER), *lab])
    assert errors.errors(found) == pytest.approx([0.0])


def test_the_papers_all_reduce_of_ugatit_is_slower_than_without_any_overlap_and_that_of_transformer_is_not():
    below = Counter((one.line, one.wanted.model) for one in residuals.no_overlap() if residuals.below_no_overlap(one))
    assert below["All-reduce", "ugatit"] == 5
    assert below["All-reduce", "transformer_big"] == 0


def test_sums_without_overlap_are_as_fast_as_in_figure_12():
    gpt2 = Wanted("scale", "nvlink", "horovod", 8, 0, "gpt2")
    gigabits = 497.759232e6 * 8e-9
    assert residuals.sum_seconds(gpt2) == pytest.approx(gigabits / 36 * (63 / 64) / (7 / 8), rel=1e-3)  # of 64 GPUs
    assert residuals.sum_seconds(gpt2._replace(contender="byteps")) == pytest.approx(gigabits / 49, rel=1e-3)
    assert residuals.sum_seconds(gpt2._replace(contender="byteps", k=8)) == pytest.approx(gigabits / 86)
    assert residuals.sum_seconds(gpt2._replace(contender="byteps", n=32, k=32)) == pytest.approx(gigabits / 86)


def test_the_bound_without_overlap_is_what_one_machine_takes_and_the_sums():
    wanted = number("Fig 16", "All-reduce", "GPT-2, 64 GPUs")
    alone = number("Fig 16", "All-reduce", "GPT-2, 8 GPUs")
    computation = 80 / 166
    seconds = computation * alone.linear / alone.value + residuals.sum_seconds(wanted.wanted)
    assert residuals.no_overlap()[wanted].bound == pytest.approx(computation / seconds)
    assert alone not in residuals.no_overlap()


def test_what_the_paper_hides_is_nothing_at_the_bound_and_all_where_it_is_as_fast_as_one_machine():
    one = residuals.no_overlap()[number("Fig 16", "All-reduce", "GPT-2, 64 GPUs")]

    def hidden(share: float) -> float:
        return replace(one, number=replace(one.number, value=share * one.number.linear)).hidden

    assert hidden(one.bound) == pytest.approx(0.0)
    assert hidden(one.computation_seconds / one.alone_seconds) == pytest.approx(1.0)
    assert hidden(0.9 * one.bound) < 0


def test_reasons_are_given_for_what_they_fit_only():
    assert "overlap" in residuals.reason_of(number("Fig 15", "All-reduce", "UGATIT, 256 GPUs"))
    assert "as at the other sizes" in residuals.reason_of(number("Fig 15", "BytePS, k = 0", "UGATIT, 128 GPUs"))
    assert residuals.reason_of(number("Fig 16", "All-reduce", "BERT-large, 16 GPUs")) == residuals.UNEXPLAINED


def test_every_reason_fits_some_number():
    for reason in residuals.load().reason:
        assert any(reason.fits(one) for one in errors.published()), reason
