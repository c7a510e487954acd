"""What is made of launches of transports: cases, plans, rows, and the figure."""

import json

import pytest
from synthetic import HOST, loaded
from test_record import make_record

from baselines.launch import Launch, Machine
from experiments import bench, transports
from experiments.carriers import Place
from experiments.carriers.memory import num_slots
from experiments.carriers.program import ENDS
from experiments.figures.transports import transports_cost
from experiments.record import Case, Record
from experiments.transports import CARRIERS, LARGE, SMALL

SECONDS = {"socket": 0.1, "shm-write": 0.02, "shm-slots": 0.03, "grpc-stream": 0.4}


def launch(case: Case, seconds: float) -> Record:
    return make_record(
        case, seconds=[seconds] * case.iterations, cpu_seconds=6 * seconds, provenance="measured", host=HOST
    )


def records(blocks: int = 2, carriers: tuple[str, ...] = tuple(CARRIERS)) -> list[Record]:
    """Every block is slower than the one before, for all alike."""
    return [
        launch(case, SECONDS.get(case.contender, 0.2) * (1 + case.block))
        for case in transports.cases(blocks=blocks, carriers=carriers)
    ]


def test_every_transport_has_both_ends():
    assert set(CARRIERS) == set(ENDS)


@pytest.mark.parametrize("nbytes, message, count", [(10, 4, 3), (8, 4, 2), (3, 4, 1)])
def test_messages_cover_the_tensor_in_order(nbytes, message, count):
    messages = Place(address="", port=1, nbytes=nbytes, message_nbytes=message).messages
    assert len(messages) == count
    assert [start for start, _ in messages] == [0, *(end for _, end in messages[:-1])]
    assert messages[-1][1] == nbytes


@pytest.mark.parametrize("message, slots", [(SMALL, 64), (LARGE, 4), (1 << 30, 2)])
def test_slots_are_few_and_never_one(message, slots):
    assert num_slots(Place(address="", port=1, nbytes=1 << 30, message_nbytes=message)) == slots


def test_a_block_has_every_transport_once_per_size_and_begins_with_another():
    cases = transports.cases(blocks=3)
    blocks = [[case for case in cases if case.block == block] for block in range(3)]
    for block in blocks:
        assert len({(case.contender, case.settings["message"]) for case in block}) == len(block) == 2 * len(CARRIERS)
    assert len({block[0].contender for block in blocks}) == 3


def test_the_ends_run_where_their_transport_lives():
    machine = Machine(host="gpu0", address="127.0.0.1", interface="lo")
    one = Launch(
        gpu_machines=(machine,),
        cpu_machines=(machine,),
        scheduler=machine,
        nic_bytes_per_s=0.0,
        nbytes=100,
        settings={"message": "10"},
        secret="",
        port=5,
    )
    for name, carrier in CARRIERS.items():
        plan = transports.contender(name).plan
        assert plan is not None
        sender, receiver = plan(one)
        assert (sender.rank, receiver.rank) == (0, 1)
        assert (".peers/transports" in sender.argv[0]) == (carrier.environment is not None)
        assert json.loads(receiver.argv[-1])["message_nbytes"] == 10


def test_ratios_are_taken_within_blocks():
    found = records()
    assert transports.ratios(found, "shm-write", "socket", LARGE) == pytest.approx((5.0, 5.0))
    assert transports.ratios(found[:1], "shm-write", "socket", LARGE) == ()


def test_rows_have_goodput_cost_ratios_and_what_was_published():
    rows = {row.what: row for row in transports.rows(records())}
    assert rows["TCP socket, 4 MiB: goodput"].values == pytest.approx((256 * 2**20 / 1e8, 256 * 2**20 / 2e8))
    assert rows["TCP socket, 4 MiB: core-seconds per GiB"].values == pytest.approx((0.8, 1.6))
    assert rows["gRPC, a stream, 64 KiB: goodput / TCP socket"].values == pytest.approx((0.25, 0.25))
    assert rows["shared memory in place / gRPC, a stream, 4 MiB"].values == pytest.approx((20, 20))
    assert all(row.verdict == "" for row in rows.values())


def test_a_transport_that_did_not_run_says_why(monkeypatch):
    monkeypatch.setattr("baselines.environments.Environment.version", lambda _: "not installed")
    rows = {row.what: row for row in transports.rows(records(carriers=("socket",)))}
    assert (
        rows["UCX over TCP, 4 MiB: goodput"].note == "not run: UCX is not installed; install it with: make transports"
    )
    assert rows["UCX over TCP, 4 MiB: goodput"].values == ()


def test_the_benchmark_is_in_the_table():
    benchmark = bench.BENCHMARKS["transports"]
    assert {case.tier for case in benchmark.smoke()} == {"smoke"}
    assert {case.experiment for case in benchmark.cases()} == {benchmark.experiment}


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_the_figure_is_drawn_from_any_number_of_launches(blocks, tmp_path):
    paths = transports_cost(loaded("transports", records(blocks)), tmp_path)
    assert all(path.stat().st_size > 1000 for path in paths)
