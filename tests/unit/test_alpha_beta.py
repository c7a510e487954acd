"""The cost of an all-reduce from its times: exact ones are found again, and the bucket's burst is accounted for."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from synthetic import PAYLOAD_RATE, RATE, loaded, made

from byteps.merge import AlphaBeta, fitted
from experiments import agenda, alpha_beta
from experiments.figures.alpha_beta import schemes_alpha_beta
from experiments.record import LATENCY_FACT, Record
from experiments.tables import alpha_beta as tables
from scripts.lab import shaping

SIZES = [1024 * 4**i for i in range(7)]
COST = AlphaBeta(startup_seconds=3e-3, seconds_per_byte=1.5 / PAYLOAD_RATE)
BURST_SECONDS = shaping(RATE).burst_bytes / RATE


def launches(contender: str = "schedule", cost: AlphaBeta = COST, n: int = 4) -> list[Record]:
    """As a lab would show them: without the time of a burst."""
    found = []
    for nbytes in SIZES:
        seconds = cost.seconds(nbytes)
        seconds -= min(2 * (n - 1) / n * nbytes / PAYLOAD_RATE, BURST_SECONDS)
        found.append(made(contender, seconds, n=n, nbytes=nbytes, record_facts={LATENCY_FACT: "1e-05"}))
    return found


@given(st.floats(1e-6, 1.0), st.floats(1e-12, 1e-3))
def test_exact_times_give_their_constants_back(startup: float, per_byte: float) -> None:
    cost = AlphaBeta(startup_seconds=startup, seconds_per_byte=per_byte)
    found = fitted([(nbytes, cost.seconds(nbytes)) for nbytes in (1, 1e3, 1e5, 1e7)])
    for nbytes in (1, 1e3, 1e5, 1e7):
        assert found.seconds(nbytes) == pytest.approx(cost.seconds(nbytes), rel=1e-6)


@given(st.lists(st.tuples(st.integers(1, 10**8), st.floats(1e-6, 1e3)), min_size=2, max_size=20))
def test_no_term_is_negative_and_no_other_scale_fits_better(times: list[tuple[float, float]]) -> None:
    if len({nbytes for nbytes, _ in times}) < 2:
        return
    found = fitted(times)
    assert min(found.startup_seconds, found.seconds_per_byte) >= 0

    def misfit(factor: float) -> float:
        return sum((factor * found.seconds(nbytes) / seconds - 1) ** 2 for nbytes, seconds in times)

    assert misfit(1.0) <= min(misfit(0.99), misfit(1.01)) + 1e-9


def test_falling_times_are_start_ups_alone() -> None:
    assert fitted([(1, 1.0), (100, 0.5)]).seconds_per_byte == 0
    assert fitted([(1, 1e-9), (100, 1.0)]).startup_seconds == 0


@pytest.mark.parametrize("times", [[], [(5, 1.0)], [(5, 1.0), (5, 2.0)], [(5, 0.0), (6, 1.0)]])
def test_one_size_or_no_time_is_refused(times: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="give at least two sizes, all times above 0"):
        fitted(times)


def test_the_burst_of_an_idle_link_is_no_part_of_the_cost() -> None:
    (fit,) = alpha_beta.fits(launches())
    assert fit.cost.startup_seconds == pytest.approx(COST.startup_seconds, rel=1e-6)
    assert fit.cost.seconds_per_byte == pytest.approx(COST.seconds_per_byte, rel=1e-6)
    assert fit.formula.startup_seconds == pytest.approx(2 * 3 * 1e-5)
    assert fit.formula.seconds_per_byte == pytest.approx(COST.seconds_per_byte)
    assert fit.worst == pytest.approx(0, abs=1e-6)


def test_sizes_between_a_burst_and_what_is_shaped_are_left_out() -> None:
    records = launches()
    for index in (3, 4):
        records[index] = msgspec.structs.replace(records[index], seconds=[1.0])
    (fit,) = alpha_beta.fits(records)
    assert fit.cost.startup_seconds == pytest.approx(COST.startup_seconds, rel=1e-6)
    assert [nbytes for nbytes, _ in fit.fitted] == [2**10, 2**12, 2**14, 2**20, 2**22]
    assert [nbytes for nbytes, _ in fit.left_out] == [2**16, 2**18]


def test_real_links_have_no_bucket() -> None:
    records = [
        msgspec.structs.replace(one, provenance="measured", seconds=[COST.seconds(one.case.nbytes)])
        for one in launches()
    ]
    (fit,) = alpha_beta.fits(records)
    assert fit.cost.startup_seconds == pytest.approx(COST.startup_seconds, rel=1e-6)
    assert (len(fit.fitted), fit.left_out) == (len(SIZES), ())


def test_both_sides_of_the_fit_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Figure] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: saved.append(figure))
    schemes_alpha_beta(loaded("alpha_beta", launches()), tmp_path)
    (axes,) = saved[0].axes
    line, fitted_marks, left_out = axes.lines
    assert list(line.get_ydata())[-1] == pytest.approx(COST.seconds(SIZES[-1]))
    assert len(fitted_marks.get_xdata()) == len(SIZES) - 2
    assert (len(left_out.get_xdata()), left_out.get_markerfacecolor()) == (2, "white")


def test_every_contender_and_number_of_workers_has_its_own_fit_and_single_sizes_have_none() -> None:
    records = [*launches("gloo-ring"), *launches(n=2), *launches(n=8)[3:6], *launches()]
    assert [(one.contender, one.n) for one in alpha_beta.fits(records)] == [
        ("gloo-ring", 4),
        ("schedule", 2),
        ("schedule", 4),
    ]


def test_the_rule_with_these_constants_is_no_slower_than_both_fixed_ways() -> None:
    for startup in (1e-5, 1e-3, 1e-2):
        cost = AlphaBeta(startup_seconds=startup, seconds_per_byte=COST.seconds_per_byte)
        (fit,) = alpha_beta.fits(launches(cost=cost))
        found = alpha_beta.merging(fit)
        assert found.merged >= max(found.layerwise, found.single) * (1 - 1e-9)
        assert 1 <= found.groups <= 161


def test_tables_have_a_row_for_each_fit() -> None:
    run = loaded("alpha_beta", [*launches("gloo-ring"), *launches()])
    for table in (tables.costs(run), tables.plans(run)):
        assert [row[1] for row in table.rows] == ["4", "4"]


def test_the_experiment_has_several_sizes_for_every_fit() -> None:
    for tier in ("smoke", "sweep"):
        cases = agenda.cases_of(agenda.load("alpha_beta"), tier)  # type: ignore[arg-type]
        assert {case.contender for case in cases} == {"gloo-ring", "schedule"}
        for n in {case.n for case in cases}:
            assert len({case.nbytes for case in cases if case.n == n}) >= 3
