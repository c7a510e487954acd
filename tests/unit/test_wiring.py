"""Wiring: whom a node is connected with, and to whom it hands what is for others."""

import pytest

from baselines.wiring import shape, wire
from byteps.schedules import levels, served


def test_on_a_star_everybody_is_a_neighbour() -> None:
    for one in wire(served.mesh(3), "star"):
        others = set(range(3)) - {one.node}
        assert one.neighbours == dict.fromkeys(others, 0)
        assert one.next_node == {other: other for other in others}


def test_on_bcube_neighbours_differ_in_one_digit_and_every_message_arrives_by_them() -> None:
    wired = wire(served.mesh(9), "bcube:3x2")
    for one in wired:
        for peer, nic in one.neighbours.items():
            digits = [(one.node // 3**level % 3, peer // 3**level % 3) for level in range(2)]
            assert [level for level, (mine, theirs) in enumerate(digits) if mine != theirs] == [nic]
        for dst in set(range(9)) - {one.node}:
            here, hops = one.node, 0
            while here != dst:
                following = wired[here].next_node[dst]
                assert following in wired[here].neighbours
                here, hops = following, hops + 1
            assert hops <= 2


def test_who_has_no_message_to_relay_is_connected_with_its_own_peers_alone() -> None:
    for one in wire(levels.bml(3, 2), "bcube:3x2"):
        assert len(one.neighbours) == 4
        assert one.next_node == {peer: peer for peer in one.neighbours}


@pytest.mark.parametrize("network", ["ring", "bcube:3", "bcube:1x2", "bcube:axb"])
def test_networks_that_make_no_sense_are_refused(network: str) -> None:
    with pytest.raises(ValueError, match="such as bcube:3x2"):
        shape(network)


def test_a_schedule_for_another_number_of_hosts_is_refused() -> None:
    with pytest.raises(ValueError, match="has 4 nodes; network bcube:3x2 has 9 hosts"):
        wire(served.mesh(4), "bcube:3x2")
