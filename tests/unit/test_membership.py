"""How a job comes together, as conversations with the scheduler."""

import pytest
from conversations import LOCAL, Job, sent, spec, verdict

from byteps.assign import Shares
from byteps.coordinator import Log, Refuse
from byteps.wire import (
    Declare,
    Go,
    Goodbye,
    Heartbeat,
    Notice,
    Plan,
    Ready,
    StartServices,
    Table,
)


def test_a_job_with_as_many_servers_as_workers_needs_no_services():
    job = Job(workers=2, servers=2)
    assert job.register(10, "server") == []
    assert job.register(0, "worker", 0) == []
    assert job.register(11, "server") == []
    steps = job.register(1, "worker", 1)
    plans = sent(steps, Plan)
    assert {member: plan.rank for member, plan in plans.items()} == {0: 0, 1: 1, 10: -1, 11: -1}
    assert [service.share for service in plans[0].services] == [0, 0, 0.5, 0.5]
    assert job.say(0, Ready()) == []
    assert set(sent(job.say(1, Ready()), Go)) == {0, 1, 10, 11}


def test_workers_with_a_share_start_their_services_before_the_plan():
    job = Job(workers=2, servers=0)
    job.register(0, "worker", 0)
    steps = job.register(1, "worker", 1)
    assert {member: message.rank for member, message in sent(steps, StartServices).items()} == {0: 0, 1: 1}
    assert job.register(20, "service", 0) == []
    plan = sent(job.register(21, "service", 1), Plan)[0]
    assert [service.name for service in plan.services] == [
        "summation service of worker 0",
        "summation service of worker 1",
    ]
    assert [service.worker for service in plan.services] == [0, 1]


def test_ranks_are_given_to_those_that_asked_for_none():
    job = Job(workers=3, servers=3)
    for number in range(3):
        job.register(10 + number, "server")
    job.register(0, "worker")
    job.register(1, "worker", 0)
    plans = sent(job.register(2, "worker"), Plan)
    assert {member: plans[member].rank for member in (0, 1, 2)} == {0: 1, 1: 0, 2: 2}


def test_servers_keep_their_numbers_whatever_the_order_of_arrival():
    job = Job(workers=2, servers=2)
    job.register(11, "server", 1)
    job.register(10, "server", 0)
    job.register(0, "worker", 0)
    plan = sent(job.register(1, "worker", 1), Plan)[0]
    assert [(service.name, service.address) for service in plan.services[2:]] == [
        ("server 0", "127.0.0.1:7010"),
        ("server 1", "127.0.0.1:7011"),
    ]


def test_a_server_of_several_processes_is_complete_when_all_are_here():
    job = Job(workers=2, servers=2)
    for process in (1, 0):
        job.register(10 + process, "server", 0, machine="a", process=process, processes=2)
    job.register(0, "worker", 0)
    job.register(1, "worker", 1)
    assert job.register(12, "server", 1, machine="b", process=0, processes=2) == []
    plan = sent(job.register(13, "server", 1, machine="b", process=1, processes=2), Plan)[0]
    assert [service.name for service in plan.services[2:]] == [
        "server 0 (process 1 of 2)",
        "server 0 (process 2 of 2)",
        "server 1 (process 1 of 2)",
        "server 1 (process 2 of 2)",
    ]
    assert [service.share for service in plan.services[2:]] == [0.25] * 4


def test_unequal_nics_are_planned_for():
    job = Job(workers=4, servers=2)
    job.register(10, "server", 0, nic_bytes_per_s=1e9)
    job.register(11, "server", 1, nic_bytes_per_s=3e9)
    steps = [step for rank in range(4) for step in job.register(rank, "worker", rank, nic_bytes_per_s=1e9)]
    for rank in sent(steps, StartServices):
        steps += job.register(20 + rank, "service", rank)
    shares = [service.share for service in sent(steps, Plan)[0].services]
    assert sum(shares) == pytest.approx(1)
    assert shares[5] > 1.5 * shares[4]


def test_the_paper_s_hash_needs_every_service_that_it_may_name_whatever_the_nics():
    job = Job(workers=4, servers=2, placement="hash")
    rates = [1e9, 4e9, 4e9, 4e9]  # the programme would give the first none
    for number in range(2):
        job.register(10 + number, "server", number, nic_bytes_per_s=4e9)
    steps = [
        step for rank, rate in enumerate(rates) for step in job.register(rank, "worker", rank, nic_bytes_per_s=rate)
    ]
    assert set(sent(steps, StartServices)) == {0, 1, 2, 3}


def test_a_plans_shares_are_followed_whatever_the_nics():
    planned = Shares(gpu=(0.0, 0.75), cpu=(0.0, 0.25), notice="shares are those planned for my.toml")
    job = Job(workers=2, servers=2, planned=planned, partition=64)
    for number in range(2):
        job.register(10 + number, "server", number, nic_bytes_per_s=1e9)
    job.register(1, "worker", 1, nic_bytes_per_s=9e9)
    steps = job.register(0, "worker", 0, nic_bytes_per_s=1e9)
    assert Log("shares are those planned for my.toml") in steps
    assert set(sent(steps, StartServices)) == {1}
    steps = job.register(21, "service", 1)
    assert [service.share for service in sent(steps, Plan)[0].services] == [0, 0.75, 0, 0.25]
    for rank in range(2):
        job.say(rank, Ready())
    (entry,) = sent(job.say(0, Declare(specs=(spec("w", (16 * 8,)),), barrier=False)), Table)[0].entries
    assert sorted(entry.owners) == [1] * 6 + [3] * 2


def test_progress_names_what_is_missing_from_5_seconds_on():
    job = Job(workers=3, servers=2)
    job.register(0, "worker", 1)
    assert job.wait(4.9) == []
    job.say(0, Heartbeat())
    steps = job.wait(0.2)
    text = "1 of 3 workers and 0 of 2 servers registered, missing rank 0, 2, missing 2 server(s), waiting 5 s of 120 s"
    assert next(step.text for step in steps if isinstance(step, Log)).startswith(text)
    assert sent(steps, Notice)[0].text.startswith(text)
    assert job.wait(1) == []


def test_the_start_fails_after_its_limit_naming_what_is_missing():
    job = Job(workers=2, servers=0, start_seconds=20)
    job.register(0, "worker")
    job.wait(19)
    assert verdict(job.wait(2)) == (
        "start",
        "the job did not start within 20 s: 1 of 2 workers and 0 of 0 servers registered, missing 1 worker(s)",
    )
    assert job.wait(1) == []
    assert [type(step) for step in job.register(1, "worker")] == [Refuse]


def test_missing_services_and_connections_are_named():
    job = Job(workers=2, servers=0)
    job.register(0, "worker", 0)
    job.register(1, "worker", 1)
    job.register(20, "service", 0)
    assert "the summation service of worker 1 has not registered yet" in job.wait(6)[0].text
    job.register(21, "service", 1)
    job.say(0, Ready())
    assert "worker 1 is not connected to every summation service yet" in job.wait(10)[0].text


@pytest.mark.parametrize(
    "fields, text",
    [
        (
            {"num_workers": 4},
            "a worker at 127.0.0.1 is configured for 4 workers and 1 servers, the scheduler for 2 and 1",
        ),
        ({"num_servers": 0}, "a worker at 127.0.0.1 is configured for 2 workers and 0 servers"),
        ({"version": "2"}, "a worker at 127.0.0.1 runs version 2, the scheduler 1; install the same"),
    ],
)
def test_a_wrong_configuration_fails_the_start_but_not_a_job_that_runs(fields, text):
    job = Job()
    job.register(0, "worker", 0)
    steps = job.register(5, "worker", 1, **fields)
    assert steps[0].message.text.startswith(text)
    assert verdict(steps)[1].startswith(text)
    assert job.coordinator.awaited == 1  # the server is still on its way

    job = Job().running()
    (refusal,) = job.register(5, "worker", 1, **fields)
    assert isinstance(refusal, Refuse)
    assert refusal.message.text.startswith(text)
    assert job.hang_up(5) == []


def test_a_rank_or_number_claimed_twice_fails_the_start():
    job = Job(workers=3, servers=2)
    job.register(0, "worker", 0)
    kind, text = verdict(job.register(1, "worker", 0, host="10.0.0.2"))
    assert (kind, text) == (
        "start",
        "two workers claim rank 0, one at 127.0.0.1 and one at 10.0.0.2; give each its own DMLC_WORKER_ID",
    )
    job = Job(workers=3, servers=2)
    job.register(10, "server", 1)
    assert verdict(job.register(11, "server", 1))[1].startswith("two servers claim number 1")


def test_surplus_roles_are_refused_and_nobody_else_notices():
    job = Job(workers=2, servers=1)
    job.register(10, "server")
    job.register(0, "worker")
    for member, role in ((11, "server"), (12, "server")):
        (refusal,) = job.register(member, role)
        assert isinstance(refusal, Refuse)
        assert "one too many" in refusal.message.text
    job = Job().running()
    for member, role in ((5, "worker"), (6, "server"), (7, "service")):
        (refusal,) = job.register(member, role, 0)
        assert isinstance(refusal, Refuse), role
        assert job.hang_up(member) == []
    assert job.coordinator.failure is None


def test_whoever_does_not_register_first_is_refused():
    assert [type(step) for step in Job().say(0, Ready())] == [Refuse]
    assert [type(step) for step in Job().register(0, "king")] == [Refuse]


def test_a_loopback_address_is_an_error_only_if_somebody_is_elsewhere():
    def job(worker_host: str, server_host: str) -> list[object]:
        job = Job(workers=2, servers=2)
        job.register(10, "server", 0, host=server_host)
        job.register(11, "server", 1, host="10.0.0.9")
        job.register(0, "worker", 0, host=worker_host)
        return job.register(1, "worker", 1, host=worker_host)

    assert sent(job("10.0.0.1", "10.0.0.2"), Plan)
    kind, text = verdict(job("10.0.0.1", LOCAL))
    assert kind == "start"
    assert text.startswith(
        "server 0 listens on 127.0.0.1:7010, which is a loopback address, but server 1 is on 10.0.0.9; "
    )
    assert "DMLC_NODE_HOST" in text


def test_leaving_before_the_start_fails_it():
    job = Job()
    job.register(0, "worker", 0)
    assert verdict(job.say(0, Goodbye(outstanding=0))) == ("start", "worker 0 left before the job started")
