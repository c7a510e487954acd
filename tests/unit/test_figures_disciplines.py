"""Queue disciplines, simulated when the figure is drawn, and emulated where there are records."""

import pytest
from matplotlib.figure import Figure
from synthetic import failed, loaded, made

from byteps import communication, theory
from byteps.partition import auto_partition_bytes
from experiments import agenda
from experiments.figures import disciplines

ROUNDS = disciplines.NBYTES / disciplines.PARTITION_NBYTES / disciplines.N


def launches(factor: float, k: int, credit: str, blocks: int = 2):
    seconds = factor * theory.byteps_seconds(disciplines.NBYTES, 8, k, 25e6 * theory.TCP_PAYLOAD_FRACTION)
    return [
        made("byteps", seconds, k=k, settings={"credit": credit}, block=block, experiment="disciplines")
        for block in range(blocks)
    ]


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    def draw(records) -> Figure:
        saved: list[Figure] = []

        def keep(figure, _path, *, metadata, **_):
            figure.caption = metadata.get("Description") or metadata["Subject"]
            saved.append(figure)

        monkeypatch.setattr("matplotlib.figure.Figure.savefig", keep)
        disciplines.disciplines_time(loaded("disciplines", records, "byteps"), tmp_path)
        return saved[0]

    return draw


def test_without_cpu_machines_no_discipline_is_slower_than_another():
    times = [
        disciplines.simulated(0, name, credit) for name in disciplines.WINDOWS for credit in disciplines.CREDITS
    ] + [disciplines.simulated(0, disciplines.FAIR_SHARE)]
    assert times == pytest.approx([1.0] * len(times), rel=1e-6)


@pytest.mark.parametrize("k", [2, 8])
def test_everything_at_once_moves_no_pull_before_the_pushes_end(k):
    assert disciplines.simulated(k, disciplines.FAIR_SHARE) == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("discipline", disciplines.WINDOWS)
def test_the_default_window_is_one_round_above_the_optimum_and_a_window_of_one_round_never_overlaps(discipline):
    assert disciplines.simulated(8, discipline, disciplines.DEFAULT_CREDIT) == pytest.approx(1 + 1 / ROUNDS, rel=1e-6)
    assert disciplines.simulated(8, discipline, 8 * disciplines.PARTITION_NBYTES) == pytest.approx(2.0, rel=1e-6)


def test_where_shares_differ_connections_are_worth_a_weight():
    """Without one, small shares are through early and large ones hold everything up."""
    alike, weighted = (
        disciplines.simulated(2, name, disciplines.DEFAULT_CREDIT)
        for name in ("one order, connections alike", "one order, connections weighted")
    )
    assert 1 < weighted < 1.03 < 1.1 < alike


def test_what_is_simulated_is_what_the_experiment_runs_and_byteps_chooses():
    experiment = agenda.load("disciplines")
    cases = agenda.cases_of(experiment, "sweep")
    assert {(case.n, case.nbytes) for case in cases} == {(disciplines.N, disciplines.NBYTES)}
    assert {case.k for case in cases} == set(disciplines.KS)
    assert {disciplines.credit_bytes(case.settings["credit"]) for case in cases} <= set(disciplines.CREDITS)
    (rate,) = {case.nic_bytes_per_s for case in cases}
    assert auto_partition_bytes(disciplines.NBYTES, rate) == disciplines.PARTITION_NBYTES
    chosen = communication.CommunicationService(
        credit_bytes=0, completed=lambda _: None, lost=lambda _: None, violated=lambda *_: None
    )
    chosen.tune(disciplines.PARTITION_NBYTES)
    assert chosen._pipeline.credit_bytes == disciplines.DEFAULT_CREDIT


def test_emulated_points_stand_at_their_credit_beside_simulated_ones(drawn):
    records = launches(1.1, 2, "auto") + launches(1.3, 2, "16MiB") + [*launches(1.5, 2, "4MiB", blocks=1)]
    records += [made("byteps", 9.0, k=2, nbytes=2**26), failed("byteps", k=8, settings={"credit": "auto"})]
    figure = drawn(records)
    emulated = [line for line in figure.axes[1].lines if line.get_markerfacecolor() not in ("none", "white")]
    points = {(x, round(float(y), 6)) for line in emulated for x, y in zip(*line.get_data(), strict=True) if y != 1.0}
    assert points == {(disciplines.DEFAULT_CREDIT, 1.1), (2**24, 1.3), (2**22, 1.5)}
    assert "at 1.75 MiB in flight failed" in figure.caption


def test_it_is_drawn_without_records(drawn):
    figure = drawn([])
    assert [axes.get_title() for axes in figure.axes] == ["k = 0", "k = 2", "k = 8"]
    assert all(len(axes.lines) == 1 + 1 + len(disciplines.WINDOWS) for axes in figure.axes)
