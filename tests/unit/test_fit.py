"""The fit: on which numbers, that it finds constants which are there, and that it asks for none that are not."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from experiments import errors, fit, systems
from experiments.fit import STAGES, Point
from experiments.record import Case
from experiments.systems import Systems

CONSTANTS = systems.load()
POINTS = fit.points()
Model = Callable[[Systems, Case], float]


def stage_of(system: str, figure: str) -> fit.Stage:
    return next(one for one in STAGES if one.system == system and figure in one.figures)


def times(model: Model) -> fit.Times:
    return lambda tasks: [model(constants, case) for constants, case in tasks]


def measured(some: Sequence[Point], truth: Systems, model: Model, noise: float = 0.0) -> list[Point]:
    """Points of a world in which the model and these constants are true, but for some noise."""
    return [
        Point(number=one.number, case=one.case, seconds=model(truth, one.case) * math.exp(noise * (-1) ** index))
        for index, one in enumerate(some)
    ]


def all_reduce(constants: Systems, case: Case) -> float:
    """Not the simulation: a formula with both constants in it."""
    ours = constants.all_reduce
    return case.nbytes / 1e10 / ours.network_fraction.value + (1 + case.nbytes % 7) * ours.negotiation_seconds.value


def test_only_figure_12_and_16_gpus_are_fitted_on() -> None:
    assert {one.number.use for one in POINTS} == {"fitted"}
    for one in POINTS:
        wanted = one.number.wanted
        assert (wanted.experiment == "fig12" and wanted.n == 8) or (wanted.experiment == "scale" and wanted.n == 2)
        assert one.case.n == wanted.n
    used = [number for stage in STAGES for number in stage.points(POINTS)]
    assert sum(one.number.system != "Parameter server" for one in used) == 9 + 12 + 1 + 6
    assert {one.number.system for one in POINTS} == set(errors.SYSTEMS.values())


def test_the_points_say_what_the_paper_says() -> None:
    ring = next(one for one in POINTS if one.number.where == "any k")
    assert ring.seconds == pytest.approx(ring.case.nbytes * 8e-9 / 36.0)
    ugatit = next(one for one in POINTS if one.number.wanted.model == "ugatit" and one.number.line == "All-reduce")
    assert ugatit.seconds == pytest.approx(2 * 16 / 18.497, rel=1e-3)  # batch x GPUs / images per second


def test_constants_that_are_there_are_found() -> None:
    stage = stage_of("All-reduce", "Fig 12")
    truth = systems.replaced(
        CONSTANTS, {"all_reduce.network_fraction": (0.6, "truth"), "all_reduce.negotiation_seconds": (3e-3, "truth")}
    )
    some = measured(stage.points(POINTS), truth, all_reduce)
    found = fit.settle(stage, some, CONSTANTS, times(all_reduce)).put(CONSTANTS).all_reduce
    assert found.network_fraction.value == pytest.approx(0.6, rel=1e-3)
    assert found.negotiation_seconds.value == pytest.approx(3e-3, rel=1e-2)
    assert found.network_fraction.source.startswith("fitted on 7 points of Figure 12 and Figures 15 and 16 (16 GPUs); ")
    assert found.cycle_seconds == CONSTANTS.all_reduce.cycle_seconds


def test_a_constant_within_its_standard_error_is_0_and_says_so() -> None:
    stage = stage_of("All-reduce", "Fig 12")
    truth = systems.replaced(
        CONSTANTS, {"all_reduce.network_fraction": (0.6, "truth"), "all_reduce.negotiation_seconds": (5e-4, "truth")}
    )
    some = measured(stage.points(POINTS), truth, all_reduce, noise=0.05)
    start = np.array([one.start for one in stage.parameters])
    (_, value), (_, error) = fit.solve(stage.parameters, some, CONSTANTS, start, times(all_reduce))
    assert 0 < value < error
    found = fit.settle(stage, some, CONSTANTS, times(all_reduce)).put(CONSTANTS).all_reduce
    assert found.negotiation_seconds.value == 0.0
    assert found.negotiation_seconds.source.endswith("they do not ask for it")
    assert found.network_fraction.value == pytest.approx(0.6, rel=0.05)
    assert "standard error" in found.network_fraction.source


def test_the_standard_error_is_that_of_least_squares() -> None:
    """One factor on all points: the standard error of its logarithm is that of a mean."""
    stage = stage_of("Parameter server", "Fig 12")

    def model(constants: Systems, case: Case) -> float:
        return constants.parameter_server.worker_fraction.value

    some = measured(stage.points(POINTS), CONSTANTS, model, noise=0.1)
    (value,), (error,) = fit.solve(stage.parameters[1:], some, CONSTANTS, np.array([1.0]), times(model))
    assert value == pytest.approx(CONSTANTS.parameter_server.worker_fraction.value, rel=0.01)
    assert error / value == pytest.approx(0.1 / math.sqrt(len(some) - 1), rel=0.05)


def test_a_share_of_a_rate_is_at_most_all_of_it() -> None:
    stage = stage_of("BytePS", "Fig 12")
    some = measured(
        stage.points(POINTS),
        CONSTANTS,
        lambda _, case: 0.5 * case.nbytes,
    )
    (value, _), _ = fit.solve(
        stage.parameters,
        some,
        CONSTANTS,
        np.array([0.9, 0.0]),
        times(lambda constants, case: case.nbytes / constants.byteps.network_fraction.value),
    )
    assert value == 1.0


def test_both_files_read_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "systems.toml"
    path.write_text(systems.text(CONSTANTS), encoding="utf-8")
    assert systems.load(path) == CONSTANTS
    lines = fit.load()
    path.write_text(fit.text(lines), encoding="utf-8")
    assert fit.load(path) == lines
    assert fit.load(tmp_path / "none.toml") == []


def test_constants_without_source_and_negative_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "systems.toml"
    text = systems.text(CONSTANTS)
    for old, new in (
        ("value = 4096000", "value = -1"),
        ('source = "BYTEPS_PARTITION_BYTES, documented default"', 'source = ""'),
    ):
        path.write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(ValueError, match=r"systems\.toml: .*0 or more, and a source"):
            systems.load(path)


def test_the_committed_constants_explain_figure_12() -> None:
    """Within 5 %, as `fitted.toml` says."""
    lines = {(one.line, one.where): one for one in fit.load() if one.figure == "Fig 12"}
    assert len(lines) == 18
    for one in POINTS:
        if one.number.figure == "Fig 12":
            error = one.seconds / fit.seconds(CONSTANTS, one.case) - 1
            assert abs(error) < 0.05
            assert error == pytest.approx(lines[one.number.line, one.number.where].fitted_error, abs=2e-3)


def test_every_model_was_left_out_once() -> None:
    training = [one for one in fit.load() if one.figure != "Fig 12"]
    assert len(training) == 22
    assert all(one.left_out_error is not None for one in training)
