"""What the report says of the simulation, and the verdicts on it."""

from dataclasses import replace

import pytest
from simulations import DAY, everything, in_the_lab, of_experiment
from synthetic import figure_12, loaded, made

from baselines.launch import ROOT
from experiments import analysis, errors, fit, record, report, systems
from experiments.document import markdown
from experiments.metrics import METRICS
from experiments.tables import errors as tables

BEFORE, AFTER = "2025-12-31T00:00:00Z", DAY  # made-up launches are of the first day of 2026
EXPERIMENTS = ("fig4", "fig12", "fig13", "fig14", "scale")
PAPER, EMULATION = "simulation-predicts-the-paper", "simulation-predicts-the-emulation"


@pytest.fixture(autouse=True)
def _made_up_records_count(monkeypatch):
    monkeypatch.setattr(analysis, "current_hashes", lambda _: None)
    monkeypatch.setattr(analysis, "current_simulations", lambda _: None)


def runs(factor: float = 1.0) -> list[analysis.Loaded]:
    return [replace(loaded(name, []), simulated=of_experiment(name, factor)) for name in EXPERIMENTS]


def lab(factor: float, started_at: str) -> analysis.Loaded:
    """Figure 12 with Horovod, and its simulation."""
    launches = figure_12() + [made("horovod", 5.0, nbytes=2**26, block=block) for block in (0, 1)]
    return replace(loaded("fig12", launches), simulated=in_the_lab(launches, factor, started_at))


def verdicts(*some: analysis.Loaded) -> dict[str, tuple[str, str]]:
    found = report.judge_all(report.load_claims(report.CLAIMS), some)
    return {one.claim.id: (one.word, one.reason) for one in found if one.claim.provenance == "simulated"}


@pytest.mark.parametrize(("factor", "word"), [(1.0, "reproduced"), (0.91, "reproduced"), (0.89, "not reproduced")])
def test_the_claim_about_the_paper_is_about_the_median_error(factor, word):
    assert verdicts(*runs(factor))[PAPER][0] == word


def test_a_simulation_of_only_some_numbers_is_inconclusive():
    word, reason = verdicts(*(one for one in runs() if one.experiment != "fig14"))[PAPER]
    assert word == "inconclusive"
    assert "--on sim" in reason


def test_one_missing_number_of_a_system_leaves_it_without_a_median():
    some = [one for one in everything() if not (one.case.experiment == "scale" and one.case.n == 32)]
    assert METRICS["held_out_error"](some) == {}
    assert set(METRICS["held_out_error"](everything())) == set(errors.SYSTEMS.values())


def test_fitted_numbers_single_machines_and_figure_4_do_not_enter_the_median():
    rest = [number for number in errors.published() if number.use != "held out" or number.figure == "Fig 4"]
    assert rest
    wrong = [one for one in everything(3.0) if one.case.experiment in ("fig4", "fig12") or one.case.n <= 2]
    right = [one for one in everything() if one.case_hash not in {other.case_hash for other in wrong}]
    assert METRICS["held_out_error"]([*right, *wrong])["All-reduce"] == pytest.approx([0.0])


@pytest.mark.parametrize(("factor", "word"), [(1.04, "reproduced"), (0.94, "not reproduced")])
def test_the_claim_about_the_emulation_is_about_predictions(factor, word):
    assert verdicts(lab(factor, BEFORE))[EMULATION][0] == word


def test_what_was_simulated_after_the_launches_claims_nothing():
    word, reason = verdicts(lab(1.0, AFTER))[EMULATION]
    assert word == "inconclusive"
    assert "simulated before" in reason


def test_without_any_simulation_the_claims_are_inconclusive_and_not_untestable():
    assert {word for word, _ in verdicts(loaded("fig12", figure_12())).values()} == {"inconclusive"}


def test_claims_about_the_emulation_see_no_simulated_record():
    found = report.judge_all(report.load_claims(report.CLAIMS), [lab(0.1, BEFORE)])
    assert {one.word for one in found if one.claim.id == "byteps-near-optimal"} == {"reproduced"}


def test_every_figure_and_line_has_a_row_and_fitted_ones_stand_apart():
    text = str(tables.by_line(errors.points(everything(1.05))))
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines()[2:]]
    assert {row[0] for row in rows} == {number.figure for number in errors.published()}
    assert {row[4] for row in rows} == {"5.0%"}
    assert ["Fig 15", "All-reduce", "fitted", "3"] in [row[:4] for row in rows]
    assert ["Fig 15", "All-reduce", "held out", "12"] in [row[:4] for row in rows]


def test_a_figure_that_was_not_simulated_says_how_to():
    text = str(tables.by_line(errors.points(of_experiment("fig12"))))
    assert "python -m experiments run fig13 --on sim" in text


def test_errors_above_15_percent_are_listed_with_what_is_known_of_them():
    assert tables.big_errors(errors.points(everything(1.14))) == []
    listing, _, notes = tables.big_errors(errors.points(everything(1.16)))
    rows = listing.rows
    assert len(rows) == len(errors.published())
    (ugatit,) = [row for row in rows if "All-reduce" in row and "UGATIT, 256 GPUs" in row]
    assert "slower than computation and sums" in notes.lines[int(ugatit[-1]) - 1]
    assert any("not explained" in reason for reason in notes.lines)


def test_emulated_launches_say_whether_they_were_predicted():
    text = "\n".join(map(str, tables.against_emulation([lab(1.25, BEFORE)])))
    assert text.count("-20.0% [-20.0%, -20.0%]") == 7
    assert text.count("before") == 7
    assert "after" not in text.replace("after the", "")
    assert tables.against_emulation([loaded("fig12", figure_12())]) == []


def test_the_report_has_the_section_with_and_without_simulations(tmp_path):
    text = markdown(report.compose(tmp_path)[0])
    assert "## How good is the simulation" in text
    assert "Nothing is simulated yet: run `python -m experiments run all --on sim`" in text
    assert "**0.404 < 0.567**" in text  # UGATIT's all-reduce on 256 GPUs
    for name in EXPERIMENTS:
        for one in of_experiment(name, 1.2):
            record.append(tmp_path / "raw" / analysis.SIMULATED.format(name), one)
    text = markdown(report.compose(tmp_path)[0])
    assert "Nothing is simulated" not in text
    assert "| Fig 13a" in text
    assert "+20.0%" in text


def test_the_report_can_be_written_from_the_reference_run_alone():
    text = markdown(report.compose(ROOT / "results", sources=("reference",))[0])
    assert "## How good is the simulation" in text


def test_fitted_models_show_their_errors_with_and_without_them():
    def line(where, name, with_it, without):
        return fit.Line(
            system="BytePS",
            figure="Fig 15",
            line=name,
            where=where,
            paper=1.0,
            fitted_error=with_it,
            left_out_error=without,
        )

    lines = [
        line("VGG-16, 16 GPUs", "BytePS, k = 0", 0.02, -0.04),
        line("UGATIT, 16 GPUs", "BytePS, k = 0", 0.10, 0.20),
        line("UGATIT, 16 GPUs", "All-reduce", -0.30, 0.40),
        line("k = 3", "BytePS", 0.9, None),  # of Figure 12, which has no model
    ]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in str(tables.cross_validation(lines)).splitlines()]
    assert rows[0] == ["fitted (left out)", "BytePS, k = 0", "All-reduce"]
    assert rows[2:] == [
        ["VGG-16, 16 GPUs", "+2.0% (-4.0%)", "-"],
        ["UGATIT, 16 GPUs", "+10.0% (+20.0%)", "-30.0% (+40.0%)"],
        ["median of absolute errors", "6.0% (12.0%)", "30.0% (40.0%)"],
    ]


def test_every_constant_is_told_with_its_source():
    known = systems.load()
    text = str(tables.constants(known))
    assert f"`byteps.network_fraction`                    | {known.byteps.network_fraction.value:.4g}" in text
    assert known.parameter_server.tensor_seconds["MXNet"].source in text
