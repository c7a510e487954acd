"""A worker's trace: what is recorded, what survives a kill, and what is derived from it."""

import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.errors import StartError
from byteps.settings import Steps
from byteps.trace import PUSH_PULL, QUEUED, WAIT, StepTimes, Trace, join_files, path_of, prepare_files, read, step_times
from byteps.trace import table as table_of

ALWAYS = Steps(0, 1000)


def transfer(trace: Trace, name: str, nbytes: int = 400) -> None:
    """One push_pull of two partitions from the call to the last answer."""
    span = trace.submitted(name, nbytes)
    if span is not None:
        span.leaves()
        span.leaves()
        span.answered()


def recorded(path: Path, rank: int = 0) -> list[dict]:
    return [event for event in read(path_of(path, rank)) if event["ph"] == "X"]


@given(count=st.integers(0, 12), first=st.integers(0, 12), length=st.integers(1, 12))
def test_only_the_steps_of_the_window_are_recorded(tmp_path_factory, count, first, length):
    path = tmp_path_factory.mktemp("trace") / "out.json"
    trace = Trace(path, 0, Steps(first, first + length))
    for _ in range(count):
        trace.gradient()
        transfer(trace, "weight")
        trace.waited("weight", time.monotonic_ns())
        trace.step()
    trace.close()
    wanted = set(range(first, first + length)) & set(range(count))
    for kind in ("step", "compute", WAIT, QUEUED, PUSH_PULL):
        assert {event["args"]["step"] for event in recorded(path) if event["cat"] == kind} == wanted
    assert [times.step for times in step_times(recorded(path))] == sorted(wanted)


def test_an_optimiser_inside_another_makes_one_step_of_the_two(tmp_path):
    trace = Trace(tmp_path / "out.json", 0, ALWAYS)
    for _ in range(3):
        transfer(trace, "weight")
        trace.step()
        trace.step()
    trace.close()
    assert [times.step for times in step_times(recorded(tmp_path / "out.json"))] == [0, 1, 2]


def test_a_push_pull_is_queued_until_its_first_partition_leaves_and_tensors_have_rows_of_their_own(tmp_path):
    trace = Trace(tmp_path / "out.json", 3, ALWAYS)
    for name in ("weight", "bias", "weight"):
        transfer(trace, name)
    trace.close()
    events = recorded(tmp_path / "out.json", 3)
    assert [(event["name"], event["cat"]) for event in events] == [
        (name, kind) for name in ("weight", "bias", "weight") for kind in (QUEUED, PUSH_PULL)
    ]
    assert {event["pid"] for event in events} == {3}
    for queued, pushed in zip(events[::2], events[1::2], strict=True):
        assert queued["ts"] + queued["dur"] == pytest.approx(pushed["ts"], abs=0.002)
        assert queued["tid"] == pushed["tid"]
    assert len({(event["name"], event["tid"]) for event in events}) == 2
    names = {e["tid"]: e["args"]["name"] for e in read(path_of(tmp_path / "out.json", 3)) if e["name"] == "thread_name"}
    assert {event["tid"]: event["name"] for event in events}.items() <= names.items()


def test_a_file_cut_anywhere_gives_the_events_of_its_whole_lines(tmp_path):
    path = path_of(tmp_path / "out.json", 0)
    trace = Trace(tmp_path / "out.json", 0, ALWAYS)
    for number in range(4):
        transfer(trace, f"weight {number}")
        trace.step()
    trace.close()
    data, events = path.read_bytes(), list(read(path))
    assert json.loads(data) == events  # plain JSON once it is complete
    for cut in range(2, len(data), 7):
        path.write_bytes(data[:cut])
        found = list(read(path))
        assert found == events[: len(found)]
        assert len(found) >= data[:cut].count(b"},\n")


def test_what_is_recorded_is_in_the_file_when_the_step_ends(tmp_path):
    trace = Trace(tmp_path / "out.json", 0, ALWAYS)
    transfer(trace, "weight")
    trace.step()
    assert {event["cat"] for event in recorded(tmp_path / "out.json")} == {QUEUED, PUSH_PULL, "step"}
    trace.close()


def test_computation_ends_with_the_last_gradient_and_hidden_waiting_is_derived(tmp_path):
    """As with DDP, which waits where no Python sees it: from the last gradient to the last answer."""
    trace = Trace(tmp_path / "out.json", 0, ALWAYS)
    trace.gradient(hidden=True)
    span = trace.submitted("first", 4)
    trace.gradient(hidden=True)
    assert span is not None
    span.leaves()
    time.sleep(0.02)
    span.answered()
    trace.step()
    trace.close()
    events = {event["name"]: event for event in recorded(tmp_path / "out.json") if event["cat"] != QUEUED}
    forward, backward, wait = events["forward"], events["backward"], events["gradients"]
    assert forward["ts"] + forward["dur"] == pytest.approx(backward["ts"], abs=0.002)
    assert backward["ts"] + backward["dur"] == pytest.approx(wait["ts"], abs=0.002)
    assert wait["ts"] + wait["dur"] == pytest.approx(events["first"]["ts"] + events["first"]["dur"], abs=0.002)
    assert wait["dur"] >= 20_000


def test_a_thread_in_the_background_that_waits_exposes_nothing(tmp_path):
    trace = Trace(tmp_path / "out.json", 0, ALWAYS)
    trace.waited("mine", time.monotonic_ns())
    thread = threading.Thread(target=trace.waited, args=("not mine", time.monotonic_ns()))
    thread.start()
    thread.join()
    trace.close()
    assert [event["name"] for event in recorded(tmp_path / "out.json") if event["cat"] == WAIT] == ["mine"]


def test_workers_are_joined_even_if_one_was_cut_off_and_one_never_came(tmp_path):
    path = tmp_path / "out.json"
    path_of(path, 1).write_text('[\n{"name":"of an earlier job"},\n')
    prepare_files(path, 3)
    for rank in (0, 2):
        trace = Trace(path, rank, ALWAYS)
        transfer(trace, f"of {rank}")
        trace.close()
    late = path_of(path, 2)
    late.write_bytes(late.read_bytes()[:-60])
    join_files(path, 3)
    events = json.loads(path.read_text())
    assert [event["name"] for event in events if event.get("cat") == QUEUED] == ["of 0", "of 2"]
    assert not list(tmp_path.glob("out.rank*"))


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(StartError, match=r"cannot write the trace to '.*nowhere/out.json': No such file"):
        prepare_files(tmp_path / "nowhere" / "out.json", 2)
    with pytest.raises(StartError, match=r"nowhere/out.rank1.json"):
        Trace(tmp_path / "nowhere" / "out.json", 1, ALWAYS)


INTERVALS = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 100)), min_size=1, max_size=10)


def events_of(intervals: list[tuple[int, int]], shift: int = 0, kind: str = PUSH_PULL) -> list[dict]:
    common = {"ph": "X", "pid": 0, "name": "t", "args": {"step": 0}}
    step = {**common, "cat": "step", "ts": shift, "dur": 1100}
    return [step, *({**common, "cat": kind, "ts": shift + ts, "dur": dur} for ts, dur in intervals)]


@given(INTERVALS, st.integers(0, 10**6))
def test_communication_is_the_union_of_push_pulls_wherever_they_lie(intervals, shift):
    covered = {moment for ts, dur in intervals for moment in range(ts, ts + dur)}
    (times,) = step_times(events_of(intervals, shift))
    assert times.communication == pytest.approx(len(covered) * 1e-6)
    (times,) = step_times(events_of(intervals, shift, WAIT))
    assert times.exposed == pytest.approx(len(covered) * 1e-6)
    assert times.seconds == pytest.approx(1100e-6)


def test_overlap_is_the_share_of_communication_that_nobody_waited_for():
    def overlap(communication: float, exposed: float) -> float:
        return StepTimes(rank=0, step=0, seconds=1.0, communication=communication, exposed=exposed).overlap

    assert [overlap(0.4, 0.1), overlap(0.4, 0.4), overlap(0.4, 0.5), overlap(0.0, 0.0)] == [0.75, 0.0, 0.0, 1.0]
    line = table_of([StepTimes(rank=2, step=5, seconds=1.0, communication=0.4, exposed=0.1)]).splitlines()[1]
    assert line.split() == ["2", "1", "1000.00", "400.00", "100.00", "75%"]
