"""Tensors, barriers and stalls, as conversations with the scheduler."""

import pytest
from conversations import Job, sent, spec, verdict

from byteps.coordinator import Log, Send
from byteps.wire import (
    Declare,
    Departed,
    Failed,
    Goodbye,
    Notice,
    Op,
    Table,
    TensorSpec,
    Waiting,
)


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


# ---- tensors of some ranks ----

PAIR = TensorSpec(name="pair", shape=(10,), dtype="float32", op=Op.SUM, members=(0, 2))


def test_a_tensor_of_some_ranks_waits_for_those_alone():
    job = Job(workers=3).running()
    job.say(2, Declare(specs=(PAIR,), barrier=False))
    text = "stall: tensor 'pair' waits for rank 0 for 11 s; ready: rank 2"
    assert job.say(20, Waiting(number=0, seconds=11, ready=(2,)))[0] == Log(text)
    job.say(1, Goodbye(outstanding=0))  # it is none of its members
    assert job.say(20, Waiting(number=0, seconds=12, ready=(2,))) == []
    job.say(0, Goodbye(outstanding=0))
    kind, text = verdict(job.say(20, Waiting(number=0, seconds=13, ready=(2,))))
    assert kind == "stall"
    assert text.startswith("rank 0 left (shutdown) while tensor 'pair' needs its contribution; ")


def test_ranks_that_disagree_about_the_members_are_told():
    job = Job(workers=3).running()
    job.say(2, Declare(specs=(PAIR,), barrier=False))
    assert verdict(job.say(0, Declare(specs=(spec("pair"),), barrier=False))) == (
        "mismatch",
        "tensor 'pair': rank 2 has shape (10,) float32 sum of rank 0, 2, rank 0 has shape (10,) float32 sum "
        "(members of a name must stay the same on every rank and in every call)",
    )


def test_a_rank_that_is_no_member_may_not_declare():
    job = Job(workers=3).running()
    assert verdict(job.say(1, Declare(specs=(PAIR,), barrier=False))) == (
        "mismatch",
        "tensor 'pair': rank 1 has shape (10,) float32 sum of rank 0, 2",
    )


WEIGHTS = TensorSpec(name="weights", shape=(10,), dtype="float32", op=Op.ADD, staleness=2)


def test_weights_wait_for_ranks_that_are_behind_and_not_at_once_in_vain_for_one_that_left():
    """Who leaves holds nobody back; its service's word may have crossed the news."""
    job = Job(workers=3).running()
    job.say(2, Declare(specs=(WEIGHTS,), barrier=False))
    job.say(0, Goodbye(outstanding=0))
    assert job.say(20, Waiting(number=0, seconds=1, ready=(2,))) == []
    text = "stall: tensor 'weights' waits for rank 1 for 11 s; ready: rank 0, 2"
    assert job.say(20, Waiting(number=0, seconds=11, ready=(0, 2)))[0] == Log(text)
    assert verdict(job.say(20, Waiting(number=0, seconds=61, ready=(0, 2))))[0] == "stall"


def test_ranks_that_disagree_about_the_staleness_are_told():
    job = Job().running()
    job.say(1, Declare(specs=(WEIGHTS,), barrier=False))
    other = TensorSpec(name="weights", shape=(10,), dtype="float32", op=Op.ADD)
    assert verdict(job.say(0, Declare(specs=(other,), barrier=False))) == (
        "mismatch",
        "tensor 'weights': rank 1 has shape (10,) float32 add within 2 clocks, rank 0 has shape (10,) float32 add "
        "(staleness of a name must stay the same on every rank and in every call)",
    )
