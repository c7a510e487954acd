"""The figure of a switch that sums: points beside theory, losses told apart, failures shown as gaps."""

import pytest
from matplotlib.figure import Figure
from synthetic import failed, loaded, made

from byteps.theory import TCP_PAYLOAD_FRACTION
from experiments import agenda
from experiments.figures import aggregation

NBYTES = 2**22


def launches(contender, over, rate=6.25e6, **changes):
    """All numbers of workers; `over`: time over W/B."""
    seconds = over * NBYTES / rate / TCP_PAYLOAD_FRACTION
    fields = {"nbytes": NBYTES, "nic_bytes_per_s": rate, "experiment": "aggregation", **changes}
    return [made(contender, seconds, n=n, block=block, **fields) for n in aggregation.WORKERS for block in range(2)]


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    def draw(records, *expected) -> Figure:
        saved: list[Figure] = []

        def keep(figure, _path, *, metadata, **_):
            figure.caption = metadata.get("Description") or metadata["Subject"]
            saved.append(figure)

        monkeypatch.setattr("matplotlib.figure.Figure.savefig", keep)
        aggregation.aggregation_time(loaded("aggregation", records, *expected), tmp_path)
        return saved[0]

    return draw


def points(axes):
    return {
        round(float(y), 6) for line in axes.lines if line.get_marker() not in ("None", "") for y in line.get_ydata()
    }


def labels(figure):
    return {text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()}


def test_a_panel_for_each_rate_and_a_line_for_each_loss(drawn):
    records = [
        *launches("switch-sum", 1.0, settings={"loss": "0"}),
        *launches("switch-sum", 1.5, settings={"loss": "0.01"}),
        *launches("schedule", 1.75, settings={"scheme": "ring"}),
        *launches("switch-sum", 1.1, rate=3.125e6, settings={"loss": "0"}),
    ]
    figure = drawn(records)
    slow, fast = figure.axes
    assert points(slow) == {1.1}
    assert points(fast) == {1.0, 1.5, 1.75}
    assert {
        "A switch that sums, nothing lost",
        "A switch that sums, 1 % lost",
        "Ring, our executor",
        "ring: 2(n-1)/n",
    } <= labels(figure)
    assert "Emulated: 4 MiB" in figure.caption
    assert "2 per point" in figure.caption


def test_a_failure_is_a_gap_with_its_reason(drawn):
    records = launches("switch-sum", 1.0, settings={"loss": "0"})
    records += [
        failed("schedule", settings={"scheme": "ring"}, n=8, nbytes=NBYTES, nic_bytes_per_s=6.25e6),
    ]
    figure = drawn(records)
    assert "Gaps: Ring, our executor at n = 8 failed." in figure.caption


def test_without_records_theory_is_drawn_and_what_is_missing_is_named(drawn):
    figure = drawn([], "switch-sum")
    assert len(figure.axes) == 1
    assert "no records yet" in figure.caption
    assert "A switch that sums" in figure.caption


def test_the_experiment_runs_what_the_figure_shows():
    cases = agenda.cases_of(agenda.load("aggregation"), "sweep")
    assert {case.n for case in cases} == set(aggregation.WORKERS)
    assert {case.settings["loss"] for case in cases if case.contender == "switch-sum"} == set(aggregation._LOSSES)
    assert {case.k for case in cases if case.contender == "schedule-servers"} == {1}
    assert {case.nic_bytes_per_s * 8e-6 for case in cases} == {25.0, 50.0}
