"""Laws of the text that builds the emulated cluster."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.theory import TCP_PAYLOAD_FRACTION
from scripts import lab
from scripts.calibrate import Calibration, Flow, ring
from scripts.fidelity import Fidelity, idle_share, wait_share
from scripts.lab import Host, LabSpec, bcube, overload, shaping, star

PREFIX = lab.run_prefix(123, 456, "c0ffee")
rates = st.floats(min_value=1e3, max_value=125e9)
host_rates = st.lists(rates, min_size=1, max_size=20).map(lambda values: {f"gpu{i}": r for i, r in enumerate(values)})


def lines(spec: LabSpec, tool: str) -> list[tuple[str, str]]:
    """Namespace and line, in order."""
    batches = [batch for stage in lab.bring_up(spec, PREFIX) for batch in stage if batch.tool == tool]
    return [(batch.namespace, line) for batch in batches for line in batch.lines]


@given(rates)
def test_burst_holds_the_largest_packet(rate: float) -> None:
    bucket = shaping(rate)
    assert bucket.burst_bytes > bucket.largest_packet_bytes
    assert bucket.limit_bytes > bucket.burst_bytes


@pytest.mark.parametrize(
    "bytes_per_s, expected",
    [(12.5e6, (32768, 2**20, 16384)), (25e6, (32768, 2**20, 16384)), (625e6, (625000, 6250000, 0))],
)
def test_shaping_is_what_was_measured_to_be_good(bytes_per_s: float, expected: tuple[int, int, int]) -> None:
    bucket = shaping(bytes_per_s)
    assert (bucket.burst_bytes, bucket.limit_bytes, bucket.gso_max_bytes) == expected


@given(host_rates, st.integers(1, 3))
def test_both_directions_of_every_nic_are_shaped_alike(hosts: dict[str, float], nics: int) -> None:
    spec = star(hosts, nics=nics)
    shaped = {
        (namespace, match[1]): match[2]
        for namespace, line in lines(spec, "tc")
        if (match := re.fullmatch(r"qdisc replace dev (\S+) root (tbf .*)", line))
    }
    assert len(shaped) == 2 * len(hosts) * nics
    for i, host, nic in ((i, host, nic) for i, host in enumerate(spec.hosts) for nic in range(nics)):
        inside = shaped[lab.host_namespace(PREFIX, host.name), lab.device(nic)]
        assert shaped[lab.switch_namespace(PREFIX), lab.port(i, nic)] == inside
        bits = float(re.search(r"rate (\S+)bit ", inside)[1])  # type: ignore[index]
        assert bits == pytest.approx(host.nic_bytes_per_s * 8, abs=0.5)


@given(host_rates)
def test_every_up_has_its_down(hosts: dict[str, float]) -> None:
    spec = star(hosts)
    added = [line.removeprefix("netns add ") for _, line in lines(spec, "ip") if line.startswith("netns add ")]
    assert lab.bring_down(added).lines == tuple(f"netns del {name}" for name in added)
    assert added == list(lab.namespaces(spec, PREFIX))
    touched = {batch.namespace for stage in lab.bring_up(spec, PREFIX) for batch in stage}
    assert touched == {"", *added}


@given(host_rates)
def test_nothing_but_names_is_made_outside_the_namespaces_of_the_run(hosts: dict[str, float]) -> None:
    outside = [line for tool in ("ip", "tc", "sh") for namespace, line in lines(star(hosts), tool) if not namespace]
    assert all(line.startswith(f"netns add {PREFIX}-") for line in outside)


@given(host_rates)
def test_every_route_chooses_the_congestion_control(hosts: dict[str, float]) -> None:
    routes = [line for _, line in lines(star(hosts), "ip") if line.startswith("route ")]
    assert len(routes) >= len(hosts)
    assert all(line.endswith(" congctl cubic") for line in routes)


@given(host_rates)
def test_lo_is_up_in_every_namespace(hosts: dict[str, float]) -> None:
    spec = star(hosts)
    assert {namespace for namespace, line in lines(spec, "ip") if line == "link set lo up"} == set(
        lab.namespaces(spec, PREFIX)
    )


def test_small_gso_packets_are_set_on_both_ends_of_a_slow_link_only() -> None:
    limited = [line for _, line in lines(star({"slow": 25e6, "fast": 125e6}), "ip") if "gso_max_size" in line]
    assert limited == ["link set p0 master br0 gso_max_size 16384 up", "link set eth0 gso_max_size 16384 up"]


def test_addresses_follow_the_order_of_the_hosts() -> None:
    spec = star({"gpu0": 1e6, "cpu0": 2e6}, subnet="10.9.0.0/24")
    assert [(host.name, host.address) for host in spec.hosts] == [("gpu0", "10.9.0.1"), ("cpu0", "10.9.0.2")]
    assert spec.address("cpu0") == "10.9.0.2"
    assert spec.expected_bytes_per_s("cpu0") == 2e6 * TCP_PAYLOAD_FRACTION


def test_the_switch_has_the_last_address_of_the_subnet_where_all_hosts_are_on_it() -> None:
    spec = star({"gpu0": 1e6}, subnet="10.9.0.0/24")
    assert spec.address(lab.SWITCH) == "10.9.0.254"
    assert (lab.switch_namespace(PREFIX), "addr add 10.9.0.254/24 dev br0") in lines(spec, "ip")
    with pytest.raises(ValueError, match="hosts of this lab are on different switches"):
        bcube(2, 2, 1e6).address(lab.SWITCH)
    with pytest.raises(ValueError, match=r"254 hosts and a switch do not fit into 10.9.0.0/24"):
        star({f"gpu{i}": 1e6 for i in range(254)}, subnet="10.9.0.0/24")


def test_every_nic_has_a_network_of_its_own_with_a_switch_of_its_own() -> None:
    spec = star({"a": 1e6, "b": 1e6}, nics=3)
    addresses = {(host.name, nic): spec.address(host.name, nic) for host in spec.hosts for nic in range(3)}
    assert addresses["a", 0] == spec.address("a") == "10.77.0.1"
    assert [addresses["b", nic] for nic in range(3)] == ["10.77.0.2", "10.78.0.2", "10.79.0.2"]
    inside = [line for namespace, line in lines(spec, "ip") if namespace == lab.host_namespace(PREFIX, "b")]
    for nic in range(3):
        assert f"addr add 10.{77 + nic}.0.2/16 dev eth{nic}" in inside
    masters = [line.split()[2:5:2] for _, line in lines(spec, "ip") if " master " in line]
    assert sorted(masters) == sorted([lab.port(i, nic), f"br{nic}"] for i in range(2) for nic in range(3))
    assert "12 Gbit/s" in overload(star({f"h{i}": 125e6 for i in range(6)}, nics=2), num_cores=2)


def test_names_of_a_run_are_recognised_and_foreign_ones_are_not() -> None:
    assert lab.creator_of(lab.host_namespace(PREFIX, "gpu-0")) == (123, 456)
    assert lab.creator_of(lab.switch_namespace(PREFIX)) == (123, 456)
    for foreign in ("vpn", "byteps", "byteps-123", "byteps-x-1-a-gpu0", "byteps-1-2-zz-gpu0", f"my-{PREFIX}-gpu0"):
        assert lab.creator_of(foreign) is None


@pytest.mark.parametrize("name", ["", "switch", "a b", "a;b", "a/b", "-a", "a--b", "netns\ndel"])
def test_a_host_name_that_could_be_more_than_a_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="host name"):
        star({name: 25e6})


def test_mistakes_in_a_description_are_named() -> None:
    with pytest.raises(ValueError, match=r"gpu9.*it has gpu0"):
        star({"gpu0": 25e6}).host("gpu9")
    with pytest.raises(ValueError, match=r"nic_bytes_per_s = 0\.2"):
        star({"gpu0": 0.2})
    with pytest.raises(ValueError, match="at least one host"):
        star({})
    with pytest.raises(ValueError, match="larger subnet"):
        star({f"h{i}": 25e6 for i in range(3)}, subnet="10.0.0.0/30")
    twice = Host(name="a", address="10.0.0.1", nic_bytes_per_s=25e6)
    with pytest.raises(ValueError, match="used twice: a"):
        LabSpec(hosts=(twice, twice))


def test_more_than_4_gbit_per_core_is_too_much() -> None:
    assert overload(star({f"h{i}": 125e6 for i in range(8)}), num_cores=2) == ""
    assert "9 Gbit/s" in overload(star({f"h{i}": 125e6 for i in range(9)}), num_cores=2)
    assert overload(star({f"h{i}": 125e6 for i in range(9)}), num_cores=3) == ""


@given(host_rates.filter(lambda hosts: len(hosts) > 1))
def test_calibration_loads_every_nic_once_each_way(hosts: dict[str, float]) -> None:
    flows = ring(star(hosts))
    assert sorted(src for src, _ in flows) == sorted(dst for _, dst in flows) == sorted(hosts)
    assert all(src != dst for src, dst in flows)


def test_one_flow_out_of_bounds_makes_a_calibration_unfaithful() -> None:
    def calibration(*ratios: float) -> Calibration:
        flows = [Flow(src="a", dst="b", bytes_per_s=r * 100, expected_bytes_per_s=100.0) for r in ratios]
        return Calibration(seconds=2.0, flows=tuple(flows))

    assert calibration(0.97, 1.0, 1.005).faithful
    assert not calibration(1.0, 0.969).faithful
    assert not calibration(1.0, 1.006).faithful
    assert calibration(1.0, 0.9).worst.ratio == pytest.approx(0.9)
    assert "a -> b" in calibration(1.0, 0.9).describe()


@pytest.mark.parametrize(
    "p99, verdict", [(0.003, "good"), (0.0031, "suspect"), (0.01, "suspect"), (0.011, "cpu-bound")]
)
def test_the_canary_decides(p99: float, verdict: str) -> None:
    fidelity = Fidelity(
        wall_seconds=1.0, lateness_p50_seconds=0.0, lateness_p99_seconds=p99, run_queue_wait_share=0.0, idle_share=0.5
    )
    assert fidelity.verdict == verdict


def test_run_queue_wait_is_that_of_the_worst_thread() -> None:
    assert wait_share({(1, 1): 5 * 10**8}, {(1, 1): 10**9, (1, 2): 10**8}, 2.0) == 0.25
    assert wait_share({}, {}, 2.0) == 0.0


def test_idle_share_is_of_all_cores() -> None:
    assert idle_share(idle_ticks=200, ticks_per_s=100, num_cores=2, wall_seconds=2.0) == 0.5
    assert idle_share(idle_ticks=401, ticks_per_s=100, num_cores=2, wall_seconds=2.0) == 1.0


def test_hosts_of_bcube_share_a_switch_where_they_differ_in_one_digit() -> None:
    spec = bcube(3, 2, 12.5e6)
    assert len(spec.hosts) == 9
    for level in range(2):
        for a in range(9):
            for b in range(9):
                digits = [(a // 3**position % 3, b // 3**position % 3) for position in range(2)]
                differ = [position for position, (one, other) in enumerate(digits) if one != other]
                same = spec.switch_of(a, level) == spec.switch_of(b, level)
                assert same == (differ in ([], [level]))
    assert len({spec.switch_of(host, level) for host in range(9) for level in range(2)}) == 6


def test_wiring_must_name_a_switch_for_every_nic() -> None:
    with pytest.raises(ValueError, match="give 9 hosts 2 switches each"):
        dataclasses.replace(bcube(3, 2, 12.5e6), wiring=((0, 1),))


def test_ports_of_bcube_are_on_the_switches_of_its_wiring() -> None:
    spec = bcube(3, 2, 12.5e6)
    masters = dict(re.findall(r"link set (\S+) master (\S+)", "\n".join(line for _, line in lines(spec, "ip"))))
    assert masters == {lab.port(host, nic): f"br{spec.switch_of(host, nic)}" for host in range(9) for nic in range(2)}
