"""Where hosts relay whole messages: the time of a mesh on BCube, and what relays leave as it is."""

import pytest

from byteps.network import Network, bcube, star
from byteps.relayed import simulate_relayed
from byteps.schedule import Schedule
from byteps.scheduled import simulate
from byteps.schedules import costs, levels, passed, served
from byteps.symbolic import check

RATE, NBYTES = 12.5e6, float(8 << 20)
BCUBE = bcube(3, 2, RATE)
BOUND = costs.mesh_on_bcube(3, 2).seconds(NBYTES, RATE)


@pytest.mark.parametrize(
    ("schedule", "network"),
    [
        (served.mesh(4, pieces=3), star([RATE] * 4)),
        (passed.ring(4), star([RATE] * 4)),
        (levels.bml(3, 2), BCUBE),
        (passed.bcube_rings(3, 2), BCUBE),
    ],
    ids=lambda one: one.name,
)
def test_without_relays_it_is_the_other_simulation(schedule: Schedule, network: Network) -> None:
    (expected,) = simulate([(schedule, NBYTES)], network)
    assert simulate_relayed(schedule, NBYTES, network) == pytest.approx(expected)


def test_a_relayed_message_takes_as_many_times_as_it_has_hops() -> None:
    schedule = served.served("one owner", 2, 4, [3], [1.0])  # worker 0: two hops from node 3; worker 1: one
    there_and_back = 2 * 2 * NBYTES / RATE
    assert simulate_relayed(schedule, NBYTES, bcube(2, 2, RATE)) >= there_and_back


def test_a_relayed_mesh_on_bcube_is_within_5_percent_of_its_bound() -> None:
    schedule = served.relayed_mesh(9)
    check(schedule)
    seconds = simulate_relayed(schedule, NBYTES, BCUBE)
    assert BOUND <= seconds <= BOUND / 0.95
    assert seconds == pytest.approx(BOUND * (1 + 1 / (3 * 16)))


@pytest.mark.parametrize("pieces", [1, 8, 32])
def test_a_mesh_with_one_piece_ahead_stands_still_while_hosts_relay(pieces: int) -> None:
    """The lab measured 0.74 to 0.80."""
    assert 0.70 < BOUND / simulate_relayed(served.mesh(9, pieces=pieces), NBYTES, BCUBE) < 0.80


def test_more_pieces_are_never_slower_and_half_the_rate_is_half_the_speed() -> None:
    times = [simulate_relayed(served.relayed_mesh(9, pieces=pieces), NBYTES, BCUBE) for pieces in (2, 4, 8)]
    assert times == sorted(times, reverse=True)
    slower = simulate_relayed(served.relayed_mesh(9, pieces=8), NBYTES, bcube(3, 2, RATE / 2))
    assert slower == pytest.approx(2 * times[-1])


def test_a_network_with_too_few_hosts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mesh has 10 nodes; BCube\(3,2\) has 9 hosts, give it as many or more"):
        simulate_relayed(served.mesh(10), NBYTES, BCUBE)


def test_a_piece_ahead_must_be_one_or_more() -> None:
    with pytest.raises(ValueError, match="0 pieces ahead; use 1 or more"):
        served.served("none ahead", 2, 2, [0, 1], [0.5, 0.5], ahead=0)
