"""The scheduler's decisions as conversations: events in, steps out."""

import pytest

from byteps.coordinator import Coordinator, Exit, Log, Refuse, Send
from byteps.settings import Settings
from byteps.wire import (
    Declare,
    Departed,
    Failed,
    Finish,
    Go,
    Goodbye,
    Heartbeat,
    Lost,
    Notice,
    Op,
    Plan,
    Ready,
    Register,
    StartServices,
    Table,
    TensorSpec,
    Violation,
    Waiting,
)

LOCAL = "127.0.0.1"


class Job:
    """A coordinator and a clock; members are addressed by their connection numbers."""

    def __init__(self, workers: int = 2, servers: int = 1, **settings: object) -> None:
        self.settings = Settings(num_workers=workers, num_servers=servers, **settings)
        self.coordinator = Coordinator(settings=self.settings, job="job", version="1", started=0.0)
        self.now = 0.0

    def say(self, member: int, message: object, host: str = LOCAL) -> list[object]:
        return list(self.coordinator.message(member, host, message, self.now))

    def wait(self, seconds: float) -> list[object]:
        self.now += seconds
        return list(self.coordinator.tick(self.now))

    def hang_up(self, member: int) -> list[object]:
        return list(self.coordinator.disconnected(member))

    def register(self, member: int, role: str, rank: int = -1, host: str = LOCAL, **fields: object) -> list[object]:
        values = {
            "role": role,
            "rank": rank,
            "num_workers": self.settings.num_workers,
            "num_servers": self.settings.num_servers,
            "version": "1",
            "machine": f"machine {member}" if role == "server" else "",
            "address": "" if role == "worker" else f"{host}:{7000 + member}",
            "local": host == LOCAL,
        }
        return self.say(member, Register(**values | fields), host)

    def running(self) -> "Job":
        """Workers are connections 0 to n-1, servers 10 and on, the workers' own services 20 and on."""
        for number in range(self.settings.num_servers):
            assert self.register(10 + number, "server", number) == []
        steps = [step for rank in range(self.settings.num_workers) for step in self.register(rank, "worker", rank)]
        for step in steps:
            if isinstance(step, Send) and isinstance(step.message, StartServices):
                steps += self.register(20 + step.message.rank, "service", step.message.rank)
        assert any(isinstance(step, Send) and isinstance(step.message, Plan) for step in steps)
        steps = [step for rank in range(self.settings.num_workers) for step in self.say(rank, Ready())]
        assert sent(steps, Go)
        return self


def sent(steps: list[object], kind: type) -> dict[int, object]:
    """Messages of this kind by member."""
    return {step.member: step.message for step in steps if isinstance(step, Send) and isinstance(step.message, kind)}


def verdict(steps: list[object]) -> tuple[str, str]:
    """Kind and text of the failure that these steps tell everybody."""
    (failed,) = {(message.kind, message.text) for message in sent(steps, Failed).values()}
    assert Log(failed[1]) in steps
    assert steps[-1] == Exit(1)
    return failed


def spec(name: str, shape: tuple[int, ...] = (10,), dtype: str = "float32", op: Op = Op.SUM) -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype=dtype, op=op)


# ---- the start ----


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


# ---- tensors ----


def test_a_new_tensor_is_registered_with_everybody_once():
    job = Job().running()
    tables = sent(job.say(0, Declare(specs=(spec("b"), spec("a")), barrier=False)), Table)
    assert set(tables) == {0, 1}
    assert [(entry.spec.name, entry.number) for entry in tables[1].entries] == [("a", 0), ("b", 1)]
    # Nothing new, but the second worker must hear that its batch is done.
    assert job.say(1, Declare(specs=(spec("b"), spec("a")), barrier=False)) == [
        Send(1, Table(entries=(), barrier=False))
    ]
    tables = sent(job.say(1, Declare(specs=(spec("c"), spec("a")), barrier=False)), Table)
    assert [(entry.spec.name, entry.number) for entry in tables[0].entries] == [("c", 2)]


@pytest.mark.parametrize(
    "other, theirs, part",
    [
        (spec("w", (2, 5)), "shape (2, 5) float32 sum", "shape"),
        (spec("w", dtype="float64"), "shape (10,) float64 sum", "type"),
        (spec("w", op=Op.AVERAGE), "shape (10,) float32 average", "operation"),
        (spec("w", (2, 5), op=Op.AVERAGE), "shape (2, 5) float32 average", "shape and operation"),
    ],
)
@pytest.mark.parametrize("barrier", [True, False])
def test_a_contradiction_names_both_ranks_and_both_declarations(other, theirs, part, barrier):
    job = Job().running()
    job.say(1, Declare(specs=(spec("w"),), barrier=barrier))
    steps = job.say(0, Declare(specs=(spec("v"), other), barrier=barrier))
    advice = f"({part} of a name must stay the same on every rank and in every call)"
    said = f"tensor 'w': rank 1 has shape (10,) float32 sum, rank 0 has {theirs} {advice}"
    assert verdict(steps) == ("mismatch", said)
    assert set(sent(steps, Failed)) == {0, 1, 10, 20, 21}


def test_a_rank_that_changes_its_own_tensor_is_told_so():
    job = Job().running()
    job.say(1, Declare(specs=(spec("w"),), barrier=False))
    _, text = verdict(job.say(1, Declare(specs=(spec("w", (11,)),), barrier=False)))
    assert text.startswith("tensor 'w': rank 1 has shape (10,) float32 sum, and now has shape (11,) float32 sum (shape")


def test_a_barrier_registers_when_all_ranks_are_there():
    job = Job(workers=3).running()
    specs = (spec("a"), spec("b"))
    assert job.say(2, Declare(specs=specs, barrier=True)) == []
    assert job.say(0, Declare(specs=specs[::-1], barrier=True)) == []
    tables = sent(job.say(1, Declare(specs=specs, barrier=True)), Table)
    assert set(tables) == {0, 1, 2}
    assert all(table.barrier for table in tables.values())
    # Again, with nothing new: everybody is released all the same.
    for rank in (0, 1):
        assert job.say(rank, Declare(specs=specs, barrier=True)) == []
    assert sent(job.say(2, Declare(specs=specs, barrier=True)), Table)[0] == Table(entries=(), barrier=True)


def test_name_sets_that_differ_are_listed_by_name_and_rank():
    job = Job(workers=3).running()
    for rank, names in enumerate(("ab", "abc", "bc")):
        steps = job.say(rank, Declare(specs=tuple(map(spec, names)), barrier=True))
    assert verdict(steps) == (
        "mismatch",
        "declare(): the name sets differ: 'a' is declared by rank 0, 1, not by rank 2; "
        "'c' is declared by rank 1, 2, not by rank 0",
    )


def test_a_long_list_of_names_is_cut():
    job = Job().running()
    job.say(0, Declare(specs=(), barrier=True))
    _, text = verdict(job.say(1, Declare(specs=tuple(spec(f"t{i}") for i in range(9)), barrier=True)))
    assert text.endswith("'t4' is declared by rank 1, not by rank 0 and 4 more")


# ---- stalls ----


def test_a_stall_is_a_line_every_warning_interval_and_then_the_end():
    job = Job(workers=3, stall_warn_seconds=10, stall_seconds=60).running()
    job.say(0, Declare(specs=(spec("w"),), barrier=False))

    def waiting(seconds: float) -> list[object]:
        return job.say(20, Waiting(number=0, seconds=seconds, ready=(2, 0)))

    assert waiting(9) == []
    text = "stall: tensor 'w' waits for rank 1 for 10 s; ready: rank 0, 2"
    assert waiting(10.2)[0] == Log(text)
    assert waiting(11) == []
    assert sent(waiting(21), Notice)
    assert waiting(10.5)[0] == Log("stall: tensor 'w' waits for rank 1 for 10 s; ready: rank 0, 2")  # another time
    assert verdict(waiting(60)) == (
        "stall",
        "stalled: tensor 'w' waits for rank 1 for 60 s; ready: rank 0, 2; the limit is 60 s (BYTEPS_STALL_TIMEOUT)",
    )


def test_a_barrier_stalls_like_a_tensor():
    job = Job(heartbeat_seconds=1000).running()
    job.say(1, Declare(specs=(spec("w"),), barrier=True))
    assert job.wait(9) == []
    assert job.wait(2)[0] == Log("stall: declare() waits for rank 0 for 11 s; ready: rank 1")
    assert verdict(job.wait(50))[0] == "stall"


def test_waiting_for_a_tensor_of_a_rank_that_has_left_ends_at_once():
    job = Job().running()
    job.say(0, Declare(specs=(spec("w"),), barrier=False))
    assert sent(job.say(1, Goodbye(outstanding=0)), Departed) == {
        10: Departed(rank=1),
        20: Departed(rank=1),
        21: Departed(rank=1),
    }
    kind, text = verdict(job.say(10, Waiting(number=0, seconds=0.1, ready=(0,))))
    assert kind == "stall"
    assert text.startswith("rank 1 left (shutdown) while tensor 'w' needs its contribution; ")


def test_a_barrier_after_a_rank_has_left_ends_at_once():
    job = Job().running()
    job.say(0, Declare(specs=(spec("w"),), barrier=True))
    assert verdict(job.say(1, Goodbye(outstanding=0)))[0] == "stall"
    job = Job().running()
    job.say(1, Goodbye(outstanding=0))
    job.say(0, Declare(specs=(spec("w"),), barrier=True))
    assert verdict(job.wait(0.5))[0] == "stall"


# ---- the end ----


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
