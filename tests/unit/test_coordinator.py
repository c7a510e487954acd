"""How a job ends, and that its first cause stands, as conversations with the scheduler."""

import pytest
from conversations import Job, sent, verdict

from byteps.coordinator import Exit, Refuse
from byteps.wire import (
    Declare,
    Finish,
    Go,
    Goodbye,
    Heartbeat,
    Lost,
    Violation,
)


def test_the_job_is_over_when_every_worker_has_left():
    job = Job().running()
    job.say(1, Goodbye(outstanding=0))
    assert job.hang_up(1) == []
    steps = job.say(0, Goodbye(outstanding=0))
    assert set(sent(steps, Finish)) == {0, 1, 10, 20, 21}
    assert steps[-1] == Exit(0)
    for member in (0, 10, 20, 21):
        assert job.hang_up(member) == []
    (refusal,) = job.register(5, "worker")
    assert isinstance(refusal, Refuse)


def test_the_first_cause_stands():
    job = Job().running()
    steps = job.hang_up(21)
    assert verdict(steps) == (
        "peer_lost",
        "lost summation service of worker 1: it left the scheduler without goodbye",
    )
    assert job.say(10, Lost(peer="worker 1")) == []
    assert job.hang_up(1) == []
    assert job.say(0, Violation(text="nonsense")) == []
    assert job.wait(100) == []


def test_a_death_is_also_seen_by_peers():
    job = Job().running()
    assert verdict(job.say(10, Lost(peer="worker 0"))) == (
        "peer_lost",
        "lost worker 0: it left server 0 without goodbye",
    )


def test_a_connection_closed_by_somebody_who_left_is_no_death():
    job = Job().running()
    job.say(0, Goodbye(outstanding=0))
    assert job.say(10, Lost(peer="worker 0")) == []


def test_silence_is_death_by_heartbeat():
    job = Job(heartbeat_seconds=30).running()
    job.wait(20)
    for member in (0, 10, 20, 21):
        job.say(member, Heartbeat())
    assert job.wait(9) == []
    assert verdict(job.wait(2)) == ("peer_lost", "lost worker 1: not heard of for 31 s")


@pytest.mark.parametrize(
    "goodbye, text",
    [
        (Goodbye(outstanding=3), "worker 1 left with 3 tensor(s) outstanding"),
        (Goodbye(outstanding=3, error="ValueError: boom"), "worker 1 ended with ValueError: boom"),
    ],
)
def test_leaving_out_of_order_ends_the_job(goodbye, text):
    assert verdict(Job().running().say(1, goodbye)) == ("peer_lost", text)


def test_a_violation_ends_the_job():
    assert verdict(Job().running().say(10, Violation(text="server 0 refused a frame"))) == (
        "mismatch",
        "server 0 refused a frame",
    )
    kind, text = verdict(Job().running().say(0, Go()))
    assert (kind, text) == ("mismatch", "worker 0 sent an unexpected Go")


def test_a_declaration_before_the_plan_is_out_of_order():
    job = Job()
    job.register(0, "worker", 0)
    assert verdict(job.say(0, Declare(specs=(), barrier=False)))[1] == "worker 0 sent an unexpected Declare"
