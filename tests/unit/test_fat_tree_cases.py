"""Cases on an emulated Fat-Tree: the lab they get, and what records of them say."""

import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from synthetic import PAYLOAD_RATE, loaded, made, made_case

from baselines.wiring import fat_tree_ports
from byteps.network import fat_tree as simulated_tree
from experiments import agenda, fat_tree, networks
from experiments.figures.fat_tree import schemes_fat_tree
from experiments.record import HEADER_BYTES, NicBytes, NicCounters
from experiments.tables import fat_tree as tables
from scripts.leftovers import LabError

NBYTES = 2**20
TREE = {"network": "fat-tree:4"}


def nic(sent: float) -> NicBytes:
    """So many tensors sent in each of three iterations."""
    zero = dict.fromkeys(NicCounters.__struct_fields__, 0)
    total = round(3 * sent * NBYTES) + HEADER_BYTES
    return NicBytes(before=NicCounters(**zero), after=NicCounters(**{**zero, "tx_bytes": total, "tx_packets": 1}))


def test_the_simulated_tree_has_the_same_hosts_on_the_same_switches() -> None:
    spec = fat_tree.tree_of([made_case("schedule", n=16, settings=TREE)])
    simulated = simulated_tree(4, 1.0)
    for a in range(16):
        for b in set(range(16)) - {a}:
            same = spec.hosts.wiring[a] == spec.hosts.wiring[b]
            assert (len(simulated.way(a, b)) == 2) == same
    assert len(simulated.link_names) == 2 * (16 + len(spec.cables))


def test_congestion_and_queue_of_a_case_hold_there_too() -> None:
    spec = fat_tree.tree_of([made_case("schedule", n=16, settings={**TREE, "congestion": "reno", "queue": "64KiB"})])
    assert (spec.hosts.congestion_control, spec.hosts.queue_bytes) == ("reno", 65536)


@pytest.mark.parametrize("change", [{"n": 17}, {"n": 8, "k": 1}])
def test_more_machines_than_the_tree_has_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(LabError, match="it has 16 hosts, all of them GPU machines"):
        fat_tree.tree_of([made_case("schedule", settings=TREE, **change)])


@pytest.mark.parametrize("network", ["fat-tree", "fat-tree:3", "fat-tree:x", "fat-tree:0"])
def test_a_tree_that_there_is_not_is_refused(network: str) -> None:
    with pytest.raises(ValueError, match=re.escape("such as fat-tree:4")):
        fat_tree_ports(network)


def test_a_kernel_that_cannot_is_a_reason_of_these_cases_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "why_no_fat_tree", lambda: "too old")
    cases = [made_case("schedule", n=16, settings=TREE), made_case("schedule", n=16)]
    assert networks.impossible(cases) == {"too old": [cases[0]]}


def test_a_ring_in_order_never_collides_and_one_at_random_does() -> None:
    assert fat_tree.simulated("ring", 16, 4) == pytest.approx([1.875] * len(fat_tree.SEEDS))
    assert min(fat_tree.simulated("shuffled-ring:1", 16, 4)) > 2.5


def test_a_line_has_times_and_the_busiest_link_of_each_launch() -> None:
    settings = {**TREE, "scheme": "ring"}
    records = [
        made(
            "schedule",
            2.0 * NBYTES / PAYLOAD_RATE,
            n=16,
            nbytes=NBYTES,
            block=block,
            settings=settings,
            record_nics={"gpu0": nic(1.875), "edge0-agg1": nic(1.9 + block)},
        )
        for block in range(2)
    ]
    (name, line), *others = fat_tree.lines([*records, made("schedule", 1.0, n=16)]).items()
    assert (name, others) == ("ring in order (16)", [])
    assert line.times == pytest.approx([2.0, 2.0])
    assert line.busiest == pytest.approx([1.9, 2.9], abs=1e-5)
    assert line.formula == pytest.approx(1.875)
    (row,) = tables.emulated(loaded("fat_tree", records)).rows
    assert row[:3] == ("ring in order (16)", "1.875", "1.875 (1.875 to 1.875)")


def test_launches_are_drawn_beside_the_simulations_of_all_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Figure] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: saved.append(figure))
    settings = {**TREE, "scheme": "ring"}
    fields = {"n": 16, "nbytes": NBYTES, "settings": settings, "record_nics": {"gpu0": nic(1.875)}}
    records = [made("schedule", 2.0 * NBYTES / PAYLOAD_RATE, block=block, **fields) for block in range(3)]
    schemes_fat_tree(loaded("fat_tree", records), tmp_path)
    (axes,) = saved[0].axes
    assert [len(line.get_xdata()) for line in axes.lines] == [1, len(fat_tree.SEEDS), 3]


def test_the_experiment_fits_its_tree() -> None:
    for tier in ("smoke", "sweep"):
        cases = agenda.cases_of(agenda.load("fat_tree"), tier)  # type: ignore[arg-type]
        assert {networks.wiring_of(case) for case in cases} == {"fat-tree:4"}
        assert fat_tree.tree_of(cases).overload(2) == ""
