"""Curves of trainings, the straggler's ratio, and the figures, from records that never were."""

import msgspec
import pytest
from synthetic import loaded, trained
from test_record import make_record

from experiments import compression, convergence, curves, learning
from experiments.curves import Evaluation, Notes, Point
from experiments.figures.compression import compression_cost
from experiments.figures.convergence import convergence_loss


def noted(rank, ends, losses=()):
    evaluations = [Evaluation(step=step, at=at, loss=loss) for step, at, loss in losses]
    return Notes(rank=rank, samples=10, data=100, started=100.0, ends=ends, evaluations=evaluations)


def test_epochs_count_every_workers_steps_whoever_evaluates():
    notes = [noted(1, [101.0, 105.0]), noted(0, [100.5, 101.5, 102.0], [(0, 100.0, 3.0), (3, 102.0, 2.0)])]
    facts = curves.facts(notes)
    one = make_record(facts=facts)
    assert curves.points(one) == [
        Point(seconds=0.0, epochs=0.0, step=0, loss=3.0),
        Point(seconds=2.0, epochs=pytest.approx(0.4), step=3, loss=2.0),
    ]
    assert curves.speeds(one) == [1.5, 0.4]
    assert curves.steps(one) == [3, 2]


def test_a_worker_without_a_step_has_no_speed():
    assert curves.speeds(make_record(facts=curves.facts([noted(0, [], [(0, 100.0, 3.0)])]))) == [0.0]


def test_a_target_is_reached_between_two_evaluations_or_never():
    curve = [Point(seconds=at, epochs=at, step=0, loss=loss) for at, loss in ((0, 4.0), (2, 2.0), (4, 3.0), (6, 1.0))]
    assert curves.seconds_to(curve, 3.0) == pytest.approx(1.0)
    assert curves.seconds_to(curve, 1.5) == pytest.approx(5.5)
    assert curves.seconds_to(curve, 5.0) == 0.0
    assert curves.seconds_to(curve, 0.5) is None
    assert curves.seconds_to([], 0.5) is None


def test_what_a_straggler_leaves_is_of_the_fast_workers_of_the_same_block():
    records = [
        trained(case, speeds=[7.6, 7.6, 7.6, 2.0] if case.settings["straggler"] == "3" else [8.0] * 3 + [9.0])
        for case in convergence.cases(blocks=2)
    ]
    kept = convergence.kept(records, "digits", "async")
    assert kept == {0: pytest.approx(0.95), 1: pytest.approx(0.95)}
    without = [one for one in records if one.case.block == 0 or one.case.settings["straggler"] == "1"]
    assert set(convergence.kept(without, "digits", "async")) == {0}
    bound = [row for row in convergence.rows(records) if row.bound is not None]
    assert [(row.bound, len(row.values)) for row in bound] == [(0.95, 2), (0.95, 2)]


def test_a_target_that_is_not_reached_is_said():
    records = [trained(case, loss=3.9) for case in convergence.cases(blocks=1)]
    until = [row for row in convergence.rows(records) if "until loss" in row.what]
    assert len(until) == 16
    assert all(row.note == "not reached in 1 of 1" and not row.values for row in until)


def test_every_line_runs_once_per_block_and_blocks_begin_differently():
    for module in (convergence, compression):
        cases = module.cases(blocks=2)
        keys = [{**case.settings, "rate": case.nic_bytes_per_s, "block": case.block} for case in cases]
        assert len({msgspec.json.encode(key) for key in keys}) == len(keys)
        first, second = ([one for one in cases if one.block == block] for block in range(2))
        assert len(first) == len(second)
        assert first[0].settings != second[0].settings


def test_both_figures_are_drawn_also_where_lines_are_missing(tmp_path):
    for module, draw in ((convergence, convergence_loss), (compression, compression_cost)):
        records = [trained(case) for case in module.cases(blocks=2)]
        for some in (records, records[3:10], records[:1]):
            assert all(path.stat().st_size for path in draw(loaded(module.NAME, some), tmp_path))


def test_bytes_and_time_of_a_codec_are_per_step_and_against_none_of_the_same_rate():
    records = [trained(case) for case in compression.cases(blocks=1)]
    assert compression.step_nbytes(records[0]) == 2 << 14
    assert compression.step_seconds(records[0]) == pytest.approx(0.15)
    ratios = [row for row in compression.rows(records) if ", none / " in row.what]
    assert len(ratios) == 2 * 4 * 3
    assert all(row.values == (1.0,) for row in ratios)


def test_only_byteps_learns():
    with pytest.raises(ValueError, match="contender 'ddp' is none of this benchmark"):
        learning.contender("ddp")
