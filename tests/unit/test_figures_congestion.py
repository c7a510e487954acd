"""The figure of congestion controls and queues, from records that are whole, few, failed or missing."""

import msgspec
import pytest
from synthetic import PAYLOAD_RATE, counters, failed, loaded, made, not_run

from byteps import theory
from experiments.captions import Caption
from experiments.figures import congestion, disciplines
from experiments.record import NicBytes, Record

QUEUES = ("64KiB", "1MiB")


@pytest.fixture(autouse=True)
def _known_simulations(monkeypatch):
    """To simulate takes seconds, and is tested with the disciplines."""
    monkeypatch.setattr(
        disciplines, "simulated", lambda k, name, credit: 2.0 if name == disciplines.FAIR_SHARE else 1.25
    )


def launch(control: str, queue: str, of_optimum: float, **changes: object) -> Record:
    contender = str(changes.pop("contender", "byteps"))
    k = 0 if contender == "gloo-ring" else 2
    seconds = theory.byteps_seconds(2**24, 8, k, PAYLOAD_RATE) / of_optimum
    return made(
        contender, seconds, k=k, settings={"congestion": control, "queue": queue}, experiment="congestion", **changes
    )


def whole(controls: tuple[str, ...] = congestion.CONTROLS) -> list[Record]:
    return [
        one
        for control in controls
        for queue in QUEUES
        for one in (
            launch(control, queue, 0.95),
            launch(control, queue, 0.6, contender="schedule-servers"),
            launch(control, queue, 0.9, contender="gloo-ring"),
        )
    ]


def drawn(records, tmp_path, monkeypatch, *expected):
    """The panels' titles, the lines' values, and what is said."""
    seen = {}

    def save(page, folder, name, caption):
        seen["titles"] = [axes.get_title() for axes in page.panels if axes.get_title()]
        seen["points"] = {round(float(y), 3) for line in page.panels[0].lines for y in line.get_ydata()}
        seen["labels"] = {label for entries in page.legend.sections.values() for _, label in entries}
        seen["caption"] = Caption(title=page.title, lines=tuple(caption)).lines
        return [folder / f"{name}.png"]

    monkeypatch.setattr("experiments.figures.sheet.Sheet.save", save)
    congestion.congestion_queues(loaded("congestion", records, *expected), tmp_path)
    return seen


def test_every_discipline_has_a_line_and_every_control_a_panel(tmp_path, monkeypatch):
    seen = drawn(whole(), tmp_path, monkeypatch)
    assert seen["titles"] == ["cubic", "reno", "bbr"]
    assert {0.95, 0.6, 0.9, 1.0} <= seen["points"]
    assert {"BytePS, n=1", f"{congestion.ALL_AT_ONCE}, n=1", "Ring all-reduce (gloo), n=1"} <= seen["labels"]


def test_a_flow_level_model_is_drawn_beside_launches_of_its_case(tmp_path, monkeypatch):
    seen = drawn(whole(), tmp_path, monkeypatch)
    assert f"{disciplines.FAIR_SHARE}, flows alone" in seen["labels"]
    assert {0.5, 0.8} <= seen["points"]


def test_a_kernel_without_a_control_is_said(tmp_path, monkeypatch):
    gone = not_run("byteps", experiment="congestion", settings={"congestion": "bbr", "queue": "1MiB"})
    gone = msgspec.structs.replace(gone, error="not run: this kernel has no congestion control bbr; as root: modprobe")
    seen = drawn([*whole(("cubic",)), gone], tmp_path, monkeypatch)
    assert seen["titles"] == ["cubic"]
    assert "Not run: this kernel has no congestion control bbr; as root: modprobe." in seen["caption"]


@pytest.mark.parametrize("records", [[], [failed("byteps", k=2, experiment="congestion")]])
def test_without_a_usable_launch_there_are_empty_panels(records, tmp_path, monkeypatch):
    assert drawn(records, tmp_path, monkeypatch)["titles"] == list(congestion.CONTROLS)


def test_a_failed_launch_is_a_gap_with_its_network(tmp_path, monkeypatch):
    broken = failed("byteps", k=2, experiment="congestion", settings={"congestion": "bbr", "queue": "64KiB"})
    seen = drawn([*whole(("cubic",)), broken], tmp_path, monkeypatch)
    assert any("bbr 64 KiB failed" in line for line in seen["caption"])


def test_losses_are_counted_over_all_hosts_per_iteration():
    before, after = counters(0), msgspec.structs.replace(counters(0), dropped_packets=6)
    nics = {host: NicBytes(before=before, after=after) for host in ("gpu0", "cpu0")}
    one = made("byteps", 1.0, record_nics=nics, iterations=3)
    assert congestion.lost_per_iteration(one) == 4.0


def test_it_is_drawn_on_paper(tmp_path):
    (png, pdf) = congestion.congestion_queues(loaded("congestion", whole()), tmp_path)
    assert png.stat().st_size > 1000
    assert pdf.stat().st_size > 1000
