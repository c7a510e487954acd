"""byteps.torch.ddp_hook in real jobs.  The checks are in programs/torch_ddp.py and torch_quarrel.py."""

import re

import pytest
from jobs import Roles, errors, launch

from byteps.trace import read, step_times

pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("workers, servers", [(1, 1), (2, 1), (3, 2), (4, 1)])
def test_ddp_with_the_hook_trains_as_one_process_with_all_samples(workers, servers):
    result = launch("torch_ddp.py", "hook", workers=workers, servers=servers, seconds=110)
    assert result.code == 0, result.output
    assert result.output.count("all right") == workers


def test_a_rank_killed_in_its_backward_pass_is_named_on_all_others(tmp_path):
    with Roles(tmp_path, workers=3, servers=1) as job:
        job.everybody("torch_quarrel.py", "hook", "killed in DDP")
        codes = job.wait()
    verdicts = {text for rank in (0, 1) for text in errors(job.output(f"worker {rank}"))}
    (verdict,) = verdicts
    assert re.match(r"PeerLostError: lost worker 2: ", verdict), verdict
    assert codes["worker 2"] == -9
    assert {code for name, code in codes.items() if name != "worker 2"} == {1}


@pytest.mark.parametrize("way, bucket", [("hook", "DDP/bucket "), ("backend", "world: all_reduce SUM #")])
def test_a_trace_shows_buckets_and_what_the_backward_pass_waits_for(tmp_path, way, bucket):
    trace = tmp_path / "out.json"
    result = launch("traced.py", "4", "leave", way, workers=2, servers=1, BYTEPS_TRACE=str(trace))
    assert result.code == 0, result.output
    events = list(read(trace))
    times = [one for one in step_times(events) if one.step > 1]  # buckets are made anew after the first
    assert [(one.rank, one.step) for one in times] == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert all(0 < one.exposed <= one.seconds and one.communication > 0 for one in times)
    sent = [
        e for e in events if e.get("cat") == "push_pull" and e["args"]["step"] == 3 and e["name"].startswith(bucket)
    ]
    assert sum(e["args"]["bytes"] for e in sent) == 2 * 4 * (300 * 700 + 700 + 700 * 3 + 3)
    if way == "hook":
        assert {e["name"] for e in events if e.get("cat") == "compute"} == {"forward", "backward"}
