"""Training loops as people write them, in real jobs: right, or one clear error on every rank.

The cases are in programs/*_cases.py: few jobs, many cases in each.
"""

import re

import pytest
from jobs import PROGRAMS, Roles, errors, launch


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program, workers", [("naming_cases.py", 3), ("loop_cases.py", 2), ("job_cases.py", 3)])
def test_training_loops_are_right_or_refused_alike(program, workers):
    result = launch(program, workers=workers, servers=1, seconds=240)
    assert result.code == 0, result.output
    cases = re.findall(r"^@case\ndef (\w+)", (PROGRAMS / program).read_text(), re.MULTILINE)
    assert cases
    for case in cases:
        assert result.output.count(f"{case} right") == workers, case
    told = [re.findall(rf"\[worker {rank}\] case said (.*)", result.output) for rank in range(workers)]
    assert all(texts == told[0] for texts in told)


VERDICTS = {
    "another layer": r"MismatchError: declare\(\): the name sets differ: 'optimizer 0/2.bias' is declared by rank 1, "
    r"not by rank 0; 'optimizer 0/2.weight' is declared by rank 1, not by rank 0$",
    "shape": r"MismatchError: tensor 'optimizer 0/0.bias': (.*shape \((4|5),\) float32 average){2}",
    "not distributed": r"StallError: stalled: declare\(\) waits for rank 1 for \d+ s; ready: rank 0",
    "fewer batches": r"StallError: rank 1 left \(shutdown\) while tensor 'optimizer 0[^']+' needs its contribution",
    "dropped gradients": r"MismatchError: optimizer 0: ranks are not at the same point: rank 0 after 2 steps is at "
    r"step\(\) or synchronize\(\), rank 1 after 2 steps is at zero_grad\(\) before step\(\), with gradients under way",
}


@pytest.mark.parametrize("what", VERDICTS)
def test_a_rank_that_trains_otherwise_is_one_named_error_on_all_that_need_it(tmp_path, what):
    limits = {"BYTEPS_STALL_WARNING": "1", "BYTEPS_STALL_TIMEOUT": "4"}
    with Roles(tmp_path, workers=2, servers=1, **limits) as job:
        job.everybody("odd_rank.py", what)
        waiting = [f"worker {rank}" for rank in range(2)]
        if what in ("not distributed", "fewer batches"):
            waiting.remove("worker 1")
        codes = job.wait(*waiting)
        said = {verdict for name in waiting for verdict in errors(job.output(name))}
        assert set(codes.values()) == {1}, job.report("some went on")
    (verdict,) = said
    assert re.match(VERDICTS[what], verdict), verdict
