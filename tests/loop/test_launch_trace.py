"""`byteps launch --trace`: one file of all workers, whichever way the job ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import (
    MARKER,
    PATIENCE_SECONDS,
    PROGRAMS,
    Roles,
    launch_command,
    marked_processes,
    plain_environment,
    wait_until,
)

from byteps.trace import path_of, read, step_times

PARAMETERS = {"0.weight", "0.bias", "2.weight", "2.bias"}


def command(trace: Path, steps: int, *then: str, options: tuple[str, ...] = (), workers: int = 2) -> list[str]:
    words = launch_command(workers, 1, [sys.executable, str(PROGRAMS / "traced.py"), str(steps), *(then or ("leave",))])
    return [*words[:4], "--trace", str(trace), *options, *words[4:]]


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = plain_environment({"PYTHONPATH": str(Path.cwd())})
    return subprocess.run(
        words, env=environment, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


@pytest.mark.parametrize("workers", [1, 3])
def test_every_worker_every_step_of_the_window_and_every_tensor_is_in_one_file(tmp_path, workers):
    done = run(command(Path("out.json"), 6, options=("--trace-steps", "2:5"), workers=workers), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    events = json.loads((tmp_path / "out.json").read_text())
    times = step_times(events)
    if workers == 1:  # alone it sums nothing
        assert times == []
        return
    assert [(one.rank, one.step) for one in times] == [(rank, step) for rank in range(workers) for step in (2, 3, 4)]
    transfers = [event for event in events if event.get("cat") == "push_pull"]
    found = sorted((event["pid"], event["args"]["step"], event["name"]) for event in transfers)
    assert found == sorted((rank, step, name) for rank in range(workers) for step in (2, 3, 4) for name in PARAMETERS)
    assert {e["args"]["bytes"] for e in transfers if e["name"] == "0.weight"} == {4 * 300 * 700}
    for one in times:
        assert 0 < one.exposed < one.seconds
        assert 0 < one.communication < one.seconds
    # One clock: a tensor's sum needs every worker's part, so on no worker is it there before the last one has sent it.
    for step in (2, 3, 4):
        same = [e for e in transfers if e["args"]["step"] == step and e["name"] == "0.weight"]
        assert max(event["ts"] for event in same) < min(event["ts"] + event["dur"] for event in same)
    words = [sys.executable, "-m", "byteps.trace", str(tmp_path / "out.json")]
    lines = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [[str(rank), "3"] for rank in range(workers)]


@pytest.mark.parametrize("way", ["optimizer", "crossing"])
def test_with_the_optimizer_the_trace_shows_computation_and_where_it_waits(tmp_path, way):
    done = run(command(tmp_path / "out.json", 4, "leave", way), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [event for event in json.loads((tmp_path / "out.json").read_text()) if event["ph"] == "X"]
    inside_forward = 0
    for rank, step in [(rank, step) for rank in (0, 1) for step in (1, 2, 3)]:
        mine = [event for event in events if (event["pid"], event["args"]["step"]) == (rank, step)]
        rows = {event["name"]: (event["ts"], event["ts"] + event["dur"]) for event in mine if event["cat"] == "compute"}
        whole = next((event["ts"], event["ts"] + event["dur"]) for event in mine if event["cat"] == "step")
        (begin, first), (again, last) = rows["forward"], rows["backward"]
        assert (begin, first) == pytest.approx((whole[0], again), abs=0.01)
        assert begin < first < last < whole[1]
        submitted = {event["name"]: event["ts"] for event in mine if event["cat"] == "queued"}
        assert {f"optimizer 0/{name}" for name in PARAMETERS} <= set(submitted)
        assert min(submitted.values()) < last  # the last layer's gradient leaves before the first layer's is there
        inside_forward += sum(begin <= event["ts"] < first for event in mine if event["cat"] == "wait")
    assert (inside_forward > 0) == (way == "crossing")


def test_a_killed_worker_leaves_its_events(tmp_path):
    done = run(command(tmp_path / "out.json", 3, "die"), tmp_path)
    assert done.returncode == 128 + signal.SIGKILL, done.stdout + done.stderr
    events = json.loads((tmp_path / "out.json").read_text())
    assert [(one.rank, one.step) for one in step_times(events)] == [
        (rank, step) for rank in (0, 1) for step in (0, 1, 2)
    ]


def test_a_killed_launcher_leaves_the_files_of_its_workers(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        words = command(tmp_path / "out.json", 3, "hang")
        process = subprocess.Popen(words, env=plain_environment({}), stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: (tmp_path / "log").read_text().count("stepped") == 2, "both workers to have stepped")
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
    wait_until(lambda: not marked_processes(os.environ[MARKER]), "all processes to be gone")
    for rank in range(2):
        assert [one.step for one in step_times(read(path_of(tmp_path / "out.json", rank)))] == [0, 1, 2]


def test_on_a_cluster_every_worker_writes_its_own_file(tmp_path):
    with Roles(tmp_path, workers=2, servers=0, BYTEPS_TRACE=str(tmp_path / "out.json")) as job:
        job.everybody("traced.py", "2", "leave")
        assert set(job.wait().values()) == {0}, job.report("a role failed")
    for rank in range(2):
        events = json.loads(path_of(tmp_path / "out.json", rank).read_text())
        assert [(one.rank, one.step) for one in step_times(events)] == [(rank, 0), (rank, 1)]


def test_a_trace_that_cannot_be_written_is_one_line(tmp_path):
    done = run(command(tmp_path / "nowhere" / "out.json", 1), tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("byteps: cannot write the trace to")
    assert len(done.stderr.splitlines()) == 1
