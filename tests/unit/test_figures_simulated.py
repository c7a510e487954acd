"""Figures of simulated results are drawn from any records: all, some, none; a mark means a provenance."""

from dataclasses import replace

import matplotlib.pyplot as plt
import pytest
from simulations import DAY, answer, in_the_lab, of_experiment, simulated
from synthetic import figure_12, loaded, made, replayed

from experiments import errors, figures
from experiments.analysis import Loaded
from experiments.figures import sheet
from experiments.figures.fig4 import fig4_simulated
from experiments.figures.fig14 import fig14_topology
from experiments.figures.predicted import fig12_predicted
from experiments.figures.simulated import SIMULATED, beside_the_paper, simulated_text
from experiments.figures.simulated import of_experiment as points_of
from experiments.predictions import compare

BEFORE, AFTER = "2025-12-31T00:00:00Z", DAY  # made-up launches are of the first day of 2026


def run(experiment: str, simulations: tuple = (), records: list | None = None) -> Loaded:
    return replace(loaded(experiment, records or []), simulated=simulations)


@pytest.fixture
def texts(monkeypatch):
    """What every figure says: captions, labels; nothing is written."""
    found: list[str] = []

    def note(figure, path, *, metadata, **_):
        found.append(
            "\n".join([*(text.get_text() for text in figure.findobj(plt.Text)), *filter(None, metadata.values())])
        )
        path.write_bytes(b"")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", note)
    return found


@pytest.mark.parametrize("experiment", figures.SIMULATED)
def test_every_simulated_figure_is_written(experiment, tmp_path):
    paths = figures.draw(run(experiment, of_experiment(experiment)), tmp_path)
    assert paths
    assert all(path.stat().st_size > 1000 for path in paths)


@pytest.mark.parametrize("experiment", figures.SIMULATED)
def test_what_was_not_simulated_is_named_with_the_command(experiment, tmp_path, texts):
    figures.draw(run(experiment), tmp_path)
    assert f"python -m experiments run {experiment} --on sim" in texts[-1].replace("\n", " ")
    assert "not simulated" not in texts[-1]  # not at every single point


@pytest.mark.parametrize("experiment", figures.SIMULATED)
def test_single_points_that_were_not_simulated_are_gaps(experiment, tmp_path, texts):
    some = of_experiment(experiment)[2:]
    figures.draw(run(experiment, some), tmp_path)
    caption = texts[-1].replace("\n", " ")
    assert "Gaps: " in caption
    assert "not simulated" in caption


def drawn(points, **changes):
    """Lines and legend of one panel."""
    with sheet.sheet("test") as page:
        (axes,) = page.panels
        beside_the_paper(page, axes, points, lambda one: float(one.wanted.k), **changes)
        return list(axes.lines), page.legend.sections


def test_crosses_are_the_papers_and_are_not_joined_and_diamonds_are_open_and_joined_by_a_broken_line():
    points = [one for one in points_of(run("fig12", of_experiment("fig12"))) if one.number.line == "BytePS"]
    (crosses, diamonds), legend = drawn(points)
    assert (crosses.get_marker(), crosses.get_linestyle()) == (sheet.PAPER_MARK, "None")
    assert (diamonds.get_marker(), diamonds.get_markerfacecolor()) == ("D", "none")
    assert diamonds.get_linestyle() == "--"
    assert list(crosses.get_ydata()) == pytest.approx(list(diamonds.get_ydata()))
    assert {section: [label for _, label in entries] for section, entries in legend.items()} == {
        "Paper": ["BytePS"],
        SIMULATED: ["BytePS"],
    }


def test_throughput_is_drawn_over_linear_scaling():
    points = [one for one in points_of(run("fig4", of_experiment("fig4"))) if one.number.line == "BytePS"]
    (_, diamonds), _ = drawn(points)
    assert list(diamonds.get_ydata()) == pytest.approx([one.number.value / 6144 for one in points])


def test_figure_4_has_the_same_systems_emulated_on_as_many_machines(tmp_path, texts):
    def launch(name, n):
        return replayed(name, 1.1, "vgg16@fig4", n=n, k=0, experiment="fig4")

    simulations = of_experiment("fig4")
    fig4_simulated(run("fig4", simulations, [launch("byteps", 2), launch("ddp", 4)]), tmp_path)
    assert "Emulated" not in texts[-1]
    fig4_simulated(run("fig4", simulations, [launch("byteps", 4), launch("ddp", 4)]), tmp_path)
    assert "Emulated" in texts[-1]
    assert "DDP" not in texts[-1]


def test_the_planners_choice_has_a_place_of_its_own_where_it_was_simulated(tmp_path, texts):
    fig14_topology(run("fig14", of_experiment("fig14")), tmp_path)
    assert "planned\nby BytePS" not in texts[-1]
    own = simulated(
        "byteps", 1.0, settings={"machine": "nvlink", "local": "planned"}, experiment="fig14", workload="gpt2"
    )
    fig14_topology(run("fig14", (*of_experiment("fig14"), own)), tmp_path)
    assert "planned\nby BytePS" in texts[-1]


def test_emulated_and_simulated_points_of_figure_12_say_whether_the_simulation_was_there_first(tmp_path, texts):
    launches = figure_12()
    fig12_predicted(run("fig12", in_the_lab(launches, started_at=BEFORE), launches), tmp_path)
    assert "all points are predictions" in texts[-1].replace("\n", " ")
    fig12_predicted(run("fig12", in_the_lab(launches, started_at=AFTER), launches), tmp_path)
    assert "nothing here is a prediction" in texts[-1].replace("\n", " ")
    mixed = (*in_the_lab(launches[:1], started_at=BEFORE), *in_the_lab(launches[1:], started_at=AFTER))
    fig12_predicted(run("fig12", mixed, launches), tmp_path)
    assert "and so no predictions: BytePS k = 1, BytePS k = 2" in texts[-1].replace("\n", " ")


def test_without_a_case_that_has_both_nothing_is_compared(tmp_path):
    assert fig12_predicted(run("fig12", of_experiment("fig12"), figure_12()), tmp_path) == []
    assert fig12_predicted(run("fig12", (), figure_12()), tmp_path) == []


def test_the_caption_says_on_what_the_constants_were_fitted():
    number = errors.published()[0]
    text = simulated_text(run("fig4", tuple(answer(number))), "on some machines.")
    assert "systems.toml" in text
    assert "16 GPUs" in text


def test_the_speed_of_the_simulation_is_what_errors_are_of():
    (one,) = compare([launch := made("byteps", 2.0)], in_the_lab([launch], 0.5))
    assert one.error == pytest.approx(1.0)
    assert one.goodput(one.simulated_seconds) == pytest.approx(2 * one.goodput(one.emulated_seconds))


@pytest.fixture(autouse=True)
def _no_figure_is_left_open():
    yield
    assert plt.get_fignums() == []
