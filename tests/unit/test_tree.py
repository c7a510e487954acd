"""Laws of the text that joins an emulated cluster's switches into a tree."""

import re

import pytest

from scripts import lab, tree
from scripts.lab import LabSpec, star
from scripts.tree import TreeSpec, Trunk

PREFIX = lab.run_prefix(123, 456, "c0ffee")
MBIT = 1e6 / 8


def hosts(*bridges: int) -> LabSpec:
    flat = star({f"gpu{i}": 100 * MBIT for i in range(len(bridges))})
    return LabSpec(hosts=flat.hosts, prefix_len=flat.prefix_len, wiring=tuple((bridge,) for bridge in bridges))


def trunk(a: int, b: int, mbit: float = 90) -> Trunk:
    return Trunk(name=f"{a}-{b}", a=a, b=b, bytes_per_s=mbit * MBIT)


SPEC = TreeSpec(
    hosts=hosts(1, 1, 2),
    trunks=(trunk(1, 0), trunk(2, 0, 45)),
    fabrics=({"gpu0": 600 * MBIT, "gpu1": 600 * MBIT},),
)


def lines(spec: TreeSpec, tool: str) -> list[tuple[str, str]]:
    return [
        (batch.namespace, line)
        for stage in tree.additions(spec, PREFIX)
        for batch in stage
        if batch.tool == tool
        for line in batch.lines
    ]


def test_every_trunk_and_fabric_link_is_shaped_on_both_ends() -> None:
    switch = lab.switch_namespace(PREFIX)
    shaped = {}
    for namespace, line in lines(SPEC, "tc"):
        match = re.fullmatch(r"qdisc replace dev (\S+) root tbf rate (\d+)bit burst \d+ limit \d+", line)
        assert match
        shaped[namespace, match[1]] = int(match[2])
    gpus = [lab.host_namespace(PREFIX, name) for name in ("gpu0", "gpu1")]
    assert shaped == {
        **{(switch, tree.trunk_port(0, end)): 90_000_000 for end in "ab"},
        **{(switch, tree.trunk_port(1, end)): 45_000_000 for end in "ab"},
        **{(switch, tree.fabric_port(index)): 600_000_000 for index in range(2)},
        **{(gpu, tree.FABRIC_NIC): 600_000_000 for gpu in gpus},
    }


def test_only_bridges_without_hosts_are_made_anew() -> None:
    made = [line.split()[2] for _, line in lines(SPEC, "ip") if "type bridge" in line]
    assert made == ["br0", "nvbr0"]


def test_each_end_of_a_trunk_is_on_its_bridge() -> None:
    masters = {
        match[1]: match[2]
        for _, line in lines(SPEC, "ip")
        if (match := re.match(r"link set (t\d[ab]) master (\S+) ", line))
    }
    assert masters == {"t0a": "br1", "t0b": "br0", "t1a": "br2", "t1b": "br0"}


def test_hosts_of_a_fabric_reach_each_other_over_it_and_nobody_else() -> None:
    routes = [(namespace, line) for namespace, line in lines(SPEC, "ip") if line.startswith("route ")]
    inside = [lab.host_namespace(PREFIX, name) for name in SPEC.hosts.names]
    addresses = [SPEC.hosts.address(name) for name in SPEC.hosts.names]
    assert [(namespace, line.split()[2]) for namespace, line in routes] == [
        (inside[0], f"{addresses[1]}/32"),
        (inside[1], f"{addresses[0]}/32"),
    ]
    assert all(f"dev {tree.FABRIC_NIC} " in line and line.endswith(" congctl cubic") for _, line in routes)


def test_a_circle_of_switches_is_refused() -> None:
    with pytest.raises(ValueError, match="circle"):
        TreeSpec(hosts=hosts(1, 2), trunks=(trunk(1, 2), trunk(2, 1)))


@pytest.mark.parametrize("trunks", [(), (trunk(1, 0),)])
def test_switches_that_are_not_joined_are_refused(trunks: tuple[Trunk, ...]) -> None:
    with pytest.raises(ValueError, match="not one tree"):
        TreeSpec(hosts=hosts(1, 2), trunks=trunks)


@pytest.mark.parametrize("fabrics", [({"gpu0": 1e6}, {"gpu0": 1e6}), ({"gpu9": 1e6},)])
def test_fabrics_of_unknown_hosts_or_twice_the_same_are_refused(fabrics: tuple[dict[str, float], ...]) -> None:
    with pytest.raises(ValueError, match="one fabric at most"):
        TreeSpec(hosts=hosts(0, 0), trunks=(), fabrics=fabrics)


def test_a_lab_counts_all_its_links_before_it_is_called_too_much() -> None:
    many = TreeSpec(hosts=hosts(0, 0), trunks=(), fabrics=({"gpu0": 0.6e9, "gpu1": 0.6e9},))
    assert "2 cores" in many.overload(2)
    assert many.overload(4) == ""
