"""The inside of machines as it really comes up: frames take the right links, at the right rates, and are counted."""

from pathlib import Path

import pytest

from experiments import inside, record, run
from experiments.progress import display
from experiments.record import Case, Record


def case(scheme: str, nic: float) -> Case:
    return Case(
        experiment="inside",
        tier="smoke",
        contender="schedule-servers",
        settings={"network": "inside", "scheme": f"inside:{scheme}"},
        n=8,
        k=4,
        nic_bytes_per_s=nic,
        nbytes=1 << 20,
        warmups=1,
        iterations=2,
        block=0,
    )


PCIE = [case(f"pcie-only/{way}", 90e6 / 8) for way in ("ring", "cpu-assisted")]
NVLINK = [case("nvlink/root=2", 45e6 / 8)]


@pytest.fixture(scope="module", params=[PCIE, NVLINK], ids=["pcie-only", "nvlink"])
def launched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    cases: list[Case] = request.param
    kept: list[Record] = []
    folder: Path = tmp_path_factory.mktemp("inside")
    with display(cases, 0.0) as show, inside.open_stage(cases, 64) as stage:
        run.run_on(stage, [[one] for one in cases], folder, kept.append, show)
    return kept


def test_sums_are_right_and_links_are_as_fast_as_they_should_be(launched: list[Record]) -> None:
    for one in launched:
        assert one.error == ""
        assert one.correct
        assert "killed at the end" not in one.facts
        assert isinstance(one.calibration_before, record.Calibration)
        assert one.calibration_before.greatest_fraction < 1.01


def test_every_link_carries_what_the_formulas_say(launched: list[Record]) -> None:
    for one in launched:
        for count in inside.link_counts(one):
            assert count.counted == pytest.approx(count.expected, abs=0.02), (one.case.settings, count.link)
