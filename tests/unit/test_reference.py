"""What stays of a run when it becomes the reference run."""

import pytest
from simulations import answer, of_experiment

from experiments import agenda, analysis, errors, record, reference, report


@pytest.fixture(autouse=True)
def _only_simulations(monkeypatch):
    monkeypatch.setattr(analysis, "current_simulations", lambda _: None)
    monkeypatch.setattr(report, "experiments", tuple)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda _, path, **__: path.write_bytes(b""))


def test_simulations_are_kept_with_the_moment_since_when_they_stand(tmp_path):
    number = next(one for one in errors.published() if one.figure == "Fig 12")
    days = ("2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04")
    for day, factor in zip(days, (2.0, 1.0, 1.0, 1.0), strict=True):
        (one,) = answer(number, factor, record_started_at=day)
        record.append(tmp_path / "raw" / "fig12.sim.jsonl", one)
    reference.keep(tmp_path)
    kept = analysis.load(tmp_path, "fig12", sources=("reference",)).simulated
    assert [one.started_at for one in kept] == ["2026-01-02", "2026-01-04"]


def test_a_reference_of_simulations_stays_where_nothing_new_was_simulated(tmp_path):
    old = of_experiment("fig4")
    for one in old:
        record.append(tmp_path / "reference" / "fig4.sim.jsonl", one)
    reference.keep(tmp_path)
    assert analysis.load(tmp_path, "fig4").simulated == old


def test_figures_of_what_does_not_run_here_and_of_no_records_are_drawn_too(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.figures.COMPUTED", (lambda folder: [folder / "limits.png"],))
    written = {path.name for path in reference.keep(tmp_path)}
    assert {"fig13_speedup.png", "fig14_topology.png", "scale_models.png", "limits.png"} <= written
    assert set(report.simulated_only()) <= set(agenda.simulations())
