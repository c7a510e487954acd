"""Figures of theory: what is drawn is what is computed, in the colours of the contenders, as lines without points."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from synthetic import failed, loaded, made

from byteps import theory
from experiments import limits
from experiments.figures import unequal, winners
from experiments.figures.limits import limits_nic, limits_racks
from experiments.lines import colour_of


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved, before they are closed, and how often; nothing is laid out or written."""
    figures = []

    def keep(figure, path, *, metadata, **_):
        path.write_bytes(b"")
        figures.append(
            {
                "panels": [
                    [(line.get_color(), line.get_xdata(), line.get_ydata(), line.get_marker()) for line in axes.lines]
                    for axes in figure.axes
                ],
                "titles": [axes.get_title() for axes in figure.axes],
                "words": [[text.get_text() for text in axes.texts] for axes in figure.axes],
                "legend": [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()],
                "caption": metadata.get("Description", ""),
            }
        )

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", keep)
    yield figures
    assert plt.get_fignums() == []


def adder(block=0):
    settings = {"dtype": "fp32", "cores": "all"}
    return made("cpu-adder", 0.1, n=1, nbytes=10**9, settings=settings, block=block, experiment="fig9b")


COMPUTED = (limits_racks, winners.limits_map, winners.limits_price, unequal.unequal_nics, unequal.placement_balance)


@pytest.mark.parametrize("one", COMPUTED, ids=lambda one: one.__name__)
def test_theory_is_drawn_as_png_and_pdf_and_as_lines_without_points(one, drawn, tmp_path, monkeypatch):
    monkeypatch.setattr(winners, "RATES", np.array([10.0, 100.0, 800.0]))
    monkeypatch.setattr(winners, "DEMANDS", np.array([10.0, 1e3, 1e4]))
    paths = one(tmp_path)
    assert [path.name for path in paths] == [f"{one.__name__}.png", f"{one.__name__}.pdf"]
    assert {marker for panel in drawn[0]["panels"] for _, _, _, marker in panel} <= {"None"}
    assert len(drawn[0]["caption"]) > 100


def test_at_100_gbit_nothing_but_nics_limits_and_ring_and_byteps_keep_their_colours(drawn, tmp_path):
    limits_nic(loaded("fig9b", [adder()]), tmp_path)
    for k, panel in zip((0, 16, 32), drawn[0]["panels"], strict=True):
        for colour, xs, ys, _ in panel:
            scheme = {colour_of("byteps"): k, colour_of("gloo-ring"): 0}[colour]
            below = np.array(ys)[np.array(xs) <= 76]  # the measured adder: 80 Gbit/s
            assert below == pytest.approx([theory.goodput(32, scheme, 1.0)] * len(below))
    assert "BytePS, 2 cores, test" in drawn[0]["legend"]
    assert "adder 80 Gbit/s" in drawn[0]["caption"]


@pytest.mark.parametrize("records", [[], [failed("cpu-adder", settings={"dtype": "fp32", "cores": "all"})]])
def test_without_a_measured_adder_the_figure_says_so(records, drawn, tmp_path):
    limits_nic(loaded("fig9b", records), tmp_path)
    assert "no record of its adder yet" in drawn[0]["caption"]
    assert not any("test" in label for label in drawn[0]["legend"])


def test_every_scheme_has_a_line_in_every_panel_of_the_racks(drawn, tmp_path):
    limits_racks(tmp_path)
    assert [len(panel) for panel in drawn[0]["panels"]] == [7] * 4
    labels = {scheme.label for scheme in limits.SCHEMES.values()} - {limits.SCHEMES["staged ring"].label}
    assert labels <= set(drawn[0]["legend"])


def test_areas_of_the_map_are_named_where_they_are(drawn, tmp_path, monkeypatch):
    monkeypatch.setattr(winners, "RATES", np.geomspace(10, 800, 9))
    monkeypatch.setattr(winners, "DEMANDS", np.geomspace(10, 10_000, 9))
    winners.limits_map(tmp_path)
    words = dict(zip(drawn[0]["titles"], drawn[0]["words"], strict=True))
    assert {"hidden", "ring"} <= set(words["k = 0, uplinks 4 : 1"])
    assert {"hidden", "BytePS"} <= set(words["k = 32, uplinks 1 : 1"])
    assert {"hidden", "BytePS, both ways"} <= set(words["k = 16, uplinks 4 : 1"])
    assert "BytePS, both ways" not in words["k = 16, uplinks 1 : 1"]


def test_a_cell_inside_of_an_area_is_found():
    mask = np.zeros((7, 9), dtype=bool)
    mask[1:6, 2:7] = True
    assert winners._inside(mask) == (3, 4)


def test_cpu_machines_that_cost_too_much_are_not_worth_it_anywhere(drawn, tmp_path, monkeypatch):
    monkeypatch.setattr(winners, "RATES", np.geomspace(10, 800, 9))
    monkeypatch.setattr(winners, "DEMANDS", np.geomspace(10, 10_000, 9))
    winners.limits_price(tmp_path, limits.Prices(gpu_machine=1.0, cpu_machine=100.0, source="test"))
    winners.limits_price(tmp_path, limits.Prices(gpu_machine=1.0, cpu_machine=0.0, source="test"))
    dear, gifts = drawn[0]["words"], drawn[2]["words"]
    assert all("none" in words and "k = n" not in words for words in dear)
    assert all("k = n" in words for words in gifts)


def test_the_programme_is_never_above_the_scaled_rule_in_the_figure(drawn, tmp_path):
    unequal.unequal_nics(tmp_path)
    for panel in drawn[0]["panels"]:
        rule, exact = (np.array(ys) for colour, _, ys, _ in panel if colour == colour_of("byteps"))
        assert (exact <= rule * (1 + 1e-6)).all()
        assert exact[[0, -1]] == pytest.approx(rule[[0, -1]])
        assert (exact[1:-1] < rule[1:-1]).all()
