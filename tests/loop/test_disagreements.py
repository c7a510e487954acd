"""Workers that do not agree: one identical, named error on every rank and server within seconds."""

import re

import pytest
from jobs import Roles, errors


def verdicts(job: Roles) -> set[str]:
    """What all workers said about the end of the job; every later call must say the same."""
    found = set()
    for rank in range(job.workers):
        said = errors(job.output(f"worker {rank}"))
        if job.processes[f"worker {rank}"].returncode:
            assert len(said) >= 2, job.report(f"worker {rank} did not say why")
        found |= set(said)
    return found


def texts(text: str) -> set[str]:
    """The wordings that are right: either side may have been the first to declare."""
    found = {text, text.replace("rank A", "rank 0"), text.replace("rank A", "rank 1")}
    if match := re.fullmatch(r"(.*: )rank A has (.*), rank 2 has (.*)", text):
        what, theirs, odd = match.groups()
        found.add(f"{what}rank 2 has {theirs}, and now has {odd}")
        found |= {f"{what}rank 2 has {odd}, rank {rank} has {theirs}" for rank in (0, 1)}
    return found


def run(tmp_path, what: str, **environment: str) -> Roles:
    with Roles(tmp_path, workers=3, servers=1, **environment) as job:
        job.everybody("quarrel.py", what)
        job.codes = job.wait()
    return job


@pytest.mark.parametrize(
    "what, part, text",
    [
        (
            "shape",
            "shape",
            "tensor 'fc.weight': rank A has shape (5, 3) float32 sum, rank 2 has shape (3, 5) float32 sum",
        ),
        ("dtype", "type", "tensor 'fc.weight': rank A has shape (10,) float32 sum, rank 2 has shape (10,) float64 sum"),
        (
            "op",
            "operation",
            "tensor 'fc.weight': rank A has shape (10,) float32 sum, rank 2 has shape (10,) float32 average",
        ),
        (
            "codec",
            "codec",
            "tensor 'fc.weight': rank A has shape (10,) float32 sum by codec topk:0.2, rank 2 has shape (10,) float32 "
            "sum by codec topk:0.1",
        ),
        (
            "later shape",
            "shape",
            "tensor 'agreed': rank A has shape (10,) float32 sum, rank 2 has shape (11,) float32 sum",
        ),
        ("names", "", "declare(): the name sets differ: 'c' is declared by rank 2, not by rank 0, 1"),
    ],
)
def test_a_mismatch_is_one_text_everywhere_and_final(tmp_path, what, part, text):
    job = run(tmp_path, what)
    (verdict,) = verdicts(job)
    kind, _, said = verdict.partition(": ")
    assert kind == "MismatchError"
    advice = f" ({part} of a name must stay the same on every rank and in every call)" if part else ""
    assert said.endswith(advice)
    assert said.removesuffix(advice) in texts(text)
    assert all(code == 1 for code in job.codes.values()), job.codes
    assert said in job.output("server 0")
    assert said in job.output("scheduler")
    waited = [float(re.search(r"^after ([\d.]+) s", job.output(f"worker {rank}"), re.M)[1]) for rank in range(3)]
    assert max(waited) < 5


def test_a_stall_is_a_line_first_and_an_error_later(tmp_path):
    job = run(tmp_path, "stall", BYTEPS_STALL_WARNING="1", BYTEPS_STALL_TIMEOUT="3")
    (verdict,) = verdicts(job)
    assert re.fullmatch(
        r"StallError: stalled: tensor 'half' waits for rank 2 for \d+ s; ready: rank 0, 1; the limit is 3 s "
        r"\(BYTEPS_STALL_TIMEOUT\)",
        verdict,
    )
    for name in job.processes:
        assert "stall: tensor 'half' waits for rank 2" in job.output(name), name
    assert all(code == 1 for code in job.codes.values()), job.codes


def test_a_barrier_that_a_rank_never_reaches_is_a_stall(tmp_path):
    job = run(tmp_path, "barrier", BYTEPS_STALL_WARNING="1", BYTEPS_STALL_TIMEOUT="3")
    (verdict,) = verdicts(job)
    assert verdict.startswith("StallError: stalled: declare() waits for rank 2")
    assert "stall: declare() waits for rank 2" in job.output("worker 2")


@pytest.mark.parametrize(
    "what, verdict",
    [
        ("outstanding", "PeerLostError: worker 2 left with 1 tensor(s) outstanding"),
        ("absent", "StallError: rank 2 left (shutdown) while tensor 'half' needs its contribution"),
        ("absent from the barrier", "StallError: rank 2 left (shutdown) while declare() needs its contribution"),
    ],
)
def test_leaving_while_others_need_a_rank_is_an_error_on_them(tmp_path, what, verdict):
    job = run(tmp_path, what)
    (said,) = verdicts(job)
    assert said.startswith(verdict)
    assert {name: code for name, code in job.codes.items() if name != "worker 2"} == {
        name: 1 for name in job.codes if name != "worker 2"
    }
