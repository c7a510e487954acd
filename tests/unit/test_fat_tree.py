"""Laws of the emulated Fat-Tree's text: links, paths, addresses and routes, walked as a packet would."""

import ipaddress
import re
from functools import cache
from itertools import permutations
from pathlib import Path

import pytest

from scripts import fat_tree, lab
from scripts.fat_tree import FatTreeSpec
from scripts.fat_tree_lab import why_no_fat_tree

PREFIX = lab.run_prefix(123, 456, "c0ffee")
RATE = 50e6 / 8
TREE = fat_tree.fat_tree(4, RATE, beside=("scheduler",))


@cache
def lines(spec_ports: int, tool: str) -> tuple[tuple[str, str], ...]:
    spec = fat_tree.fat_tree(spec_ports, RATE, beside=("scheduler",))
    return tuple(
        (batch.namespace.removeprefix(f"{PREFIX}-"), line)
        for stage in fat_tree.additions(spec, PREFIX)
        for batch in stage
        if batch.tool == tool
        for line in batch.lines
    )


@cache
def routes(ports: int) -> dict[str, list[tuple[ipaddress.IPv4Network, tuple[str, ...]]]]:
    """By router: networks, and the devices towards them."""
    found: dict[str, list[tuple[ipaddress.IPv4Network, tuple[str, ...]]]] = {}
    for space, line in lines(ports, "ip"):
        if line.startswith("route add "):
            found.setdefault(space, []).append(
                (ipaddress.IPv4Network(line.split()[2]), tuple(re.findall(r"dev (\S+)", line)))
            )
    return found


def paths(spec: FatTreeSpec, src: int, dst: int) -> list[tuple[str, ...]]:
    """All ways of a packet, as routers in a row, by the longest prefix that fits."""
    neighbour = {(one.lower, one.lower_device): one.upper for one in spec.cables}
    neighbour |= {(one.upper, one.upper_device): one.lower for one in spec.cables}
    address = ipaddress.IPv4Address(spec.hosts.hosts[dst].address)
    open_ways, ended = [(spec.edges[spec.hosts.wiring[src][0]],)], []
    while open_ways:
        way = open_ways.pop()
        assert len(way) <= 5, way
        fitting = [(net.prefixlen, devices) for net, devices in routes(spec.ports)[way[-1]] if address in net]
        for device in max(fitting)[1]:
            if device == fat_tree.TO_HOSTS:
                assert way[-1] == spec.edges[spec.hosts.wiring[dst][0]]
                ended.append(way)
            else:
                open_ways.append((*way, neighbour[way[-1], device]))
    return ended


@pytest.mark.parametrize("ports", [2, 4, 6])
def test_there_are_as_many_hosts_switches_and_links_as_a_fat_tree_has(ports: int) -> None:
    spec = fat_tree.fat_tree(ports, RATE)
    assert len(spec.hosts.hosts) == ports**3 // 4
    assert len(spec.routers) == 5 * ports**2 // 4
    assert len(spec.cables) == ports**3 // 2
    for router in spec.routers:
        used = sum(router in (one.lower, one.upper) for one in spec.cables)
        on_bridge = [edge for (edge,) in spec.hosts.wiring].count(spec.edges.index(router)) if "edge" in router else 0
        assert used + on_bridge == ports, router


@pytest.mark.parametrize("ports", [2, 4])
def test_every_pair_has_all_equal_paths_and_no_other(ports: int) -> None:
    spec = fat_tree.fat_tree(ports, RATE, beside=("scheduler",))
    half = ports // 2
    for src, dst in permutations(range(ports**3 // 4), 2):
        found = paths(spec, src, dst)
        edges, pods = src // half != dst // half, src // half**2 != dst // half**2
        assert len(set(found)) == len(found) == (half**2 if pods else half if edges else 1)
        assert {len(way) for way in found} == {5 if pods else 3 if edges else 1}


def test_hosts_beside_the_tree_are_reached_from_everywhere() -> None:
    for src in range(16):
        assert {way[-1] for way in paths(TREE, src, 16)} == {"edge0"}


def test_every_end_of_every_link_between_routers_has_its_rate_and_its_address() -> None:
    ends = {(one.lower, one.lower_device) for one in TREE.cables}
    ends |= {(one.upper, one.upper_device) for one in TREE.cables}
    shaped = {(space, line.split()[3]): line for space, line in lines(4, "tc")}
    assert set(shaped) == ends
    assert all(f" tbf rate {RATE * 8:.0f}bit " in line for line in shaped.values())
    added = [line.split()[2] for _, line in lines(4, "ip") if line.startswith("addr add")]
    assert len(set(added)) == len(added) == 2 * len(TREE.cables) + len(TREE.edges)
    hosts = {f"{host.address}/32" for host in TREE.hosts.hosts}
    assert not hosts & set(added)


def test_no_two_routers_hash_alike_and_all_hash_ports() -> None:
    seeds = [line.split()[1] for _, line in lines(4, "sh") if line.endswith("hash_seed")]
    assert len(set(seeds)) == len(seeds) == len(TREE.routers)
    assert "0" not in seeds  # which would be the machine's own
    fields = {int(line.split()[1]) for _, line in lines(4, "sh") if line.endswith("hash_fields")}
    assert fields == {0x01 | 0x02 | 0x04 | 0x10 | 0x20}


def test_an_odd_number_of_ports_is_refused() -> None:
    with pytest.raises(ValueError, match="3 ports; use an even number"):
        fat_tree.fat_tree(3, RATE)


def test_what_is_too_fast_for_the_machine_is_named() -> None:
    assert TREE.overload(2) == ""
    assert "49 links of 49 Gbit/s in sum" in fat_tree.fat_tree(4, 125e6, beside=("scheduler",)).overload(2)


def test_a_kernel_without_seeds_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "fib_multipath_hash_fields").touch()
    assert "no fib_multipath_hash_seed; an emulated Fat-Tree needs Linux 6.11" in why_no_fat_tree(tmp_path)
    (tmp_path / "fib_multipath_hash_seed").touch()
    assert why_no_fat_tree(tmp_path) == ""
