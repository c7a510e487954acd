"""The training whose loss is followed: synchronously it is one process's training; in every mode it learns."""

import msgspec
import pytest

from experiments import convergence, curves, learning, record

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")


def trained(tmp_path, mode, **settings):
    """Two workers and one server on this machine."""
    case, *_ = convergence.cases(blocks=1, tasks=["digits"], modes=[mode])
    chosen = {**case.settings, "pace": "0.0", "straggler": "1", **settings}
    here = msgspec.structs.replace(case, nic_bytes_per_s=0.0, n=2, k=1, settings=chosen)
    said = []
    (one,) = learning.execute([here], tmp_path, said.append)
    assert one.correct, one.error or one.oracle
    assert "loss 2.3" in said[0]
    assert record.read(tmp_path / "convergence.jsonl")[0] == [one]
    return one


def test_synchronous_workers_have_the_losses_of_one_process(tmp_path):
    from experiments import learner

    one = trained(tmp_path, "bsp", steps="60", seconds="30")
    assert curves.steps(one) == [60, 60]
    task = learner.digits_task()
    model = task.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learner.LEARNING_RATE)
    losses = []
    for step in range(61):
        losses.append(learner.loss_of(model, task.held_out).item())
        parts = [task.batch(rank, step) for rank in range(2)]
        optimizer.zero_grad()
        learner.loss_of(model, tuple(map(torch.cat, zip(*parts, strict=True)))).backward()
        optimizer.step()
    points = curves.points(one)
    assert [point.loss for point in points] == pytest.approx([losses[point.step] for point in points], rel=0.02)
    assert points[-1].loss < points[0].loss / 2


def test_asynchronous_workers_end_with_the_same_weights_and_the_straggler_makes_fewer_steps(tmp_path):
    one = trained(tmp_path, "async", pace="0.02", straggler="3", seconds="1.5")
    fast, slow = curves.steps(one)
    assert 0 < slow < fast
    points = curves.points(one)
    assert points[-1].loss < points[0].loss
