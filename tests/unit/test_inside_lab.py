"""Machines as emulated trees, and what is read out of their records."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from baselines import contenders
from byteps.machine_file import preset
from byteps.machine_network import network_of
from byteps.scheduled import link_loads
from byteps.schedules import inside as schedules
from byteps.schedules.inside import Machines, reduced
from experiments import inside
from experiments.agenda import cases_of, load
from experiments.analysis import Loaded
from experiments.figures.fig14_emulated import fig14_emulated
from experiments.inside_results import ways
from experiments.record import HEADER_BYTES, Case, Fidelity, NicBytes, NicCounters, OracleCheck, Record
from experiments.run import blank_record
from experiments.tables.inside import bytes_on_links, speeds
from scripts.leftovers import LabError

MACHINES = [("pcie-only", 1), ("pcie-only", 2), ("pcie-only", 4), ("nvlink", 1), ("nvlink", 2)]
NOTHING = NicCounters(
    tx_bytes=0, rx_bytes=0, tx_packets=0, rx_packets=0, tx_wire_bytes=0, rx_wire_bytes=0, dropped_packets=0
)


def machines(name: str, per_switch: int, servers: int = 0) -> Machines:
    return Machines(topology=reduced(preset(name), per_switch), count=2, servers=servers)


def case(scheme: str, *, n: int = 8, k: int = 4, nic: float = 90e6 / 8, block: int = 0) -> Case:
    return Case(
        experiment="inside",
        tier="smoke",
        contender="schedule-servers",
        settings={"network": "inside", "scheme": f"inside:{scheme}"},
        n=n,
        k=k,
        nic_bytes_per_s=nic,
        nbytes=1 << 20,
        warmups=1,
        iterations=2,
        block=block,
    )


def record(of: Case, seconds: float, *, extra: float = 0.0) -> Record:
    """As the kernel would count if every link carried `extra` of the tensor more than it should."""
    one, way = inside.machines_of(of)
    loads = link_loads(schedules.schedule(one, way), network_of(one))
    sent, received = Counter[str](), Counter[str]()
    for link in network_of(one).link_names:
        name, is_sent = inside._counter_of(one, link)
        nbytes = round((loads.get(link, 0.0) + extra) * of.nbytes * of.iterations)
        (sent if is_sent else received)[name] = nbytes  # of a NIC twice the same
    nics = {
        name: NicBytes(
            before=NOTHING,
            after=msgspec.structs.replace(
                NOTHING,
                tx_bytes=sent[name] + 3 * HEADER_BYTES,
                tx_packets=3,
                rx_bytes=received[name] + 2 * HEADER_BYTES,
                rx_packets=2,
            ),
        )
        for name in {*sent, *received}
    }
    return msgspec.structs.replace(
        blank_record(of, contenders.get("schedule-servers"), "emulated"),
        seconds=[seconds] * of.iterations,
        nics=nics,
        oracle=OracleCheck(max_error=0.0, tolerance=0.0, checked=1, passed=True),
        fidelity=Fidelity(verdict="good"),
    )


@pytest.mark.parametrize(("name", "per_switch"), MACHINES)
def test_every_link_of_the_machines_is_there_at_its_rate(name: str, per_switch: int) -> None:
    one = machines(name, per_switch)
    tree = inside.tree_of(one, 1000)
    rates = dict(zip((tree.link_of(i) for i in range(len(tree.hosts.hosts))), tree.hosts.hosts, strict=True))
    found = {link: host.nic_bytes_per_s for link, host in rates.items()}
    found |= {trunk.name: trunk.bytes_per_s for trunk in tree.trunks}
    for m in range(2):
        for link in one.topology.links:
            if link.kind == "nvlink":
                gpu = f"gpu{one.node(m, link.a)}"
                assert tree.fabrics[m][gpu] == pytest.approx(link.bytes_per_s / 1000)
            elif link.a == one.nic:
                assert found[f"m{m}.{one.nic}"] == pytest.approx(90e9 / 8 / 1000)
            else:
                assert found[f"m{m}.{link.a}-{link.b}"] == pytest.approx(link.bytes_per_s / 1000)


@pytest.mark.parametrize(("name", "per_switch"), MACHINES)
@pytest.mark.parametrize("servers", [0, 2])
def test_a_calibration_never_has_two_flows_in_one_direction_of_a_link(name: str, per_switch: int, servers: int) -> None:
    one = machines(name, per_switch, servers)
    order = inside.around(one)
    assert sorted(order) == list(range(one.num_nodes))
    used = Counter(link for a, b in zip(order, [*order[1:], order[0]], strict=True) for link in one.way(a, b))
    assert max(used.values()) == 1
    nics = {f"m{m}.{one.nic}.{end}" for m in range(2) for end in ("out", "in")}
    assert nics <= set(used)


def test_memories_are_never_the_slowest_link() -> None:
    tree = inside.tree_of(machines("pcie-only", 2), 1000)
    memory = tree.hosts.host("cpu0").nic_bytes_per_s
    assert memory >= max(trunk.bytes_per_s for trunk in tree.trunks)


def test_a_machine_with_unknown_rates_is_not_emulated() -> None:
    topology = preset("pcie-only")
    links = tuple(
        type(link)(a=link.a, b=link.b, kind=link.kind, bytes_per_s=0.0 if link.kind == "socket" else link.bytes_per_s)
        for link in topology.links
    )
    blind = type(topology)(name="blind", nodes=topology.nodes, links=links, source="")
    with pytest.raises(ValueError, match="not known"):
        inside.tree_of(Machines(topology=blind, count=2), 1000)


def test_cases_of_different_machines_are_refused_in_one_lab() -> None:
    with (
        pytest.raises(LabError, match="different machines"),
        inside.open_stage([case("pcie-only/ring"), case("nvlink/ring")], 2),
    ):
        pass


def test_a_lab_that_the_cores_cannot_carry_is_refused() -> None:
    with pytest.raises(LabError, match="cores can emulate"), inside.open_stage([case("nvlink/ring")], 1):
        pass


@pytest.mark.parametrize("tier", ["smoke", "sweep"])
def test_every_case_of_the_experiment_can_be_built_and_carried_by_two_cores(tier: str) -> None:
    for one in cases_of(load("inside"), tier):  # type: ignore[arg-type]
        found, way = inside.machines_of(one)
        assert inside.is_inside(one)
        assert schedules.schedule(found, way).num_workers == one.n
        assert inside.tree_of(found, inside.slower(one)).overload(2) == ""


def test_links_are_slower_by_what_the_nic_is() -> None:
    assert inside.slower(case("nvlink/ring", nic=45e6 / 8)) == pytest.approx(2000)


@pytest.mark.parametrize("scheme", ["pcie-only/cpu-assisted", "nvlink/root=2", "nvlink/ring"])
def test_counted_bytes_are_compared_link_by_link(scheme: str) -> None:
    of = case(scheme)
    for extra in (0.0, 0.01):
        counts = inside.link_counts(record(of, 1.0, extra=extra))
        assert len({count.link for count in counts}) == len(counts)
        for count in counts:
            assert count.counted == pytest.approx(count.expected + extra, abs=1e-4)


def test_simulated_time_grows_as_links_get_slower() -> None:
    fast, slow = (inside.simulated_seconds(case("pcie-only/ring", nic=nic)) for nic in (90e6 / 8, 45e6 / 8))
    assert slow == pytest.approx(2 * fast)


def test_speeds_are_over_the_ring_of_the_same_block() -> None:
    records = [
        record(case("pcie-only/ring", block=0), 2.0),
        record(case("pcie-only/ring", block=1), 4.0),
        record(case("pcie-only/cpu-assisted", block=0), 1.0),
        record(case("pcie-only/cpu-assisted", block=1), 1.0),
        record(case("nvlink/root=2", nic=45e6 / 8), 1.0),
    ]
    ring, assisted = ways(records)
    assert ring.speeds == (1.0, 1.0)
    assert assisted.speeds == (2.0, 4.0)
    assert assisted.by_bandwidth == pytest.approx((1.75 / 90) / (1.5 / 105))
    assert assisted.worst_share < 1e-4


def test_figure_and_tables_show_every_way(tmp_path: Path) -> None:
    nic = 45e6 / 8
    records = [
        record(case("pcie-only/ring"), 2.0),
        record(case("pcie-only/cpu-assisted"), 1.5, extra=0.002),
        *(record(case(f"nvlink/{way}", nic=nic), 1.0) for way in ("ring", "root=0", "root=2", "root=all")),
    ]
    loaded = Loaded(experiment="inside", tier="smoke", source="raw", records=records, attempts=records, bad=[])
    assert [path.exists() for path in fig14_emulated(loaded, tmp_path)] == [True, True]
    text = str(speeds(loaded))
    assert all(way in text for way in ("ring", "cpu-assisted", "root=0", "root=2", "root=all", "1.333"))
    assert "0.20%" in str(bytes_on_links(loaded))


def test_the_figure_is_drawn_without_records_too(tmp_path: Path) -> None:
    nothing = Loaded(experiment="inside", tier="", source="none", records=[], attempts=[], bad=[])
    assert all(path.exists() for path in fig14_emulated(nothing, tmp_path))
