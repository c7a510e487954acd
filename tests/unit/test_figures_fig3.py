"""The cluster's trace redrawn."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from experiments import paper
from experiments.figures.fig3 import fig3_cluster


@pytest.fixture
def drawn(tmp_path, monkeypatch) -> Figure:
    """The figure as it is saved."""
    saved: list[Figure] = []

    def keep(figure, _path, *, metadata, **_):
        figure.caption = metadata.get("Description") or metadata["Subject"]
        saved.append(figure)

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", keep)
    assert [path.name for path in fig3_cluster(tmp_path)] == ["fig3_cluster.png", "fig3_cluster.pdf"]
    return saved[0]


def test_both_series_and_the_idle_nics_have_91_days_each(drawn):
    distributed, cpu, idle = ([float(y) for y in line.get_ydata()] for line in drawn.axes[0].lines)
    assert distributed == paper.fig3().distributed
    assert cpu == paper.fig3().cpu_utilisation
    assert [one + other for one, other in zip(distributed, idle, strict=True)] == pytest.approx([100.0] * 91)


def test_the_means_are_in_the_caption_and_the_paper_is_cited(drawn):
    caption = " ".join(drawn.caption.split())
    for text in ("69.5 % in the mean (55 to 80 %)", "30.5 % in the mean (20 to 45 %)", "20.7 %", "k = 0.44 n"):
        assert text in caption
    assert paper.fig3().citation in caption


def test_it_is_drawn_into_the_folder_and_closed(tmp_path):
    assert all(path.stat().st_size > 1000 for path in fig3_cluster(tmp_path))
    assert plt.get_fignums() == []
