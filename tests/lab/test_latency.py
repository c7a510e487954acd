"""The latency of the emulated network is that of a few software switches: far below a millisecond, and not nothing."""

from scripts.lab import star
from scripts.latency import one_way_seconds
from scripts.netns import Lab


def test_a_message_between_two_hosts_takes_microseconds_to_milliseconds() -> None:
    with Lab(star({"a": 25e6, "b": 25e6})) as lab:
        assert 1e-6 < one_way_seconds(lab) < 20e-3
        assert lab.pids() == []
