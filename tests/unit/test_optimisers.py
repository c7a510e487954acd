"""Optimisers in a summation service: against torch.optim, and through a server process."""

import subprocess
import sys

import msgspec
import numpy as np
import pytest
from synthetic import loaded

from byteps.wire import Op
from experiments import optimiser, optimisers
from experiments.figures.fig9a import fig9a_optimisers

NUMEL = optimisers._CHUNK + 100


def gradients(rounds):
    rng = np.random.default_rng(1)
    return [rng.standard_normal(NUMEL).astype(np.float32) for _ in range(rounds)]


def make(name):
    return optimisers.service(name, 1, lambda message: pytest.fail(str(message)))


@pytest.mark.parametrize("name", optimisers.UPDATES)
def test_updates_are_those_of_torch(name):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    first, *others = gradients(6)
    weights = torch.from_numpy(first.astype(np.float64)).requires_grad_()
    theirs = {
        "sgd": lambda: torch.optim.SGD([weights], lr=optimisers.LR),
        "momentum": lambda: torch.optim.SGD([weights], lr=optimisers.LR, momentum=optimisers.MOMENTUM),
        "rmsprop": lambda: torch.optim.RMSprop([weights], lr=optimisers.LR, alpha=optimisers.ALPHA),
        "adam": lambda: torch.optim.Adam([weights], lr=optimisers.LR, betas=optimisers.BETAS),
    }[name]()
    service = make(name)
    answer = service.finish(7, first.copy(), Op.SUM, 1, first.dtype)
    assert np.array_equal(answer, first)
    for one in others:
        weights.grad = torch.from_numpy(one.astype(np.float64))
        theirs.step()
        answer = service.finish(7, one.copy(), Op.SUM, 1, one.dtype)
        np.testing.assert_allclose(answer, weights.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_partitions_have_states_of_their_own():
    first, second, step = gradients(3)
    service, alone = make("momentum"), make("momentum")
    for key, start in ((0, first), (1, second)):
        service.finish(key, start.copy(), Op.SUM, 1, start.dtype)
    alone.finish(1, second.copy(), Op.SUM, 1, second.dtype)
    for _ in range(3):
        service.finish(0, step.copy(), Op.SUM, 1, step.dtype)
    one, other = (them.finish(1, step.copy(), Op.SUM, 1, step.dtype) for them in (service, alone))
    assert np.array_equal(one, other)


def test_an_average_is_divided_before_the_update():
    first, step = gradients(2)
    service, alone = make("sgd"), make("sgd")
    for them in (service, alone):
        them.finish(0, first.copy(), Op.SUM, 1, first.dtype)
    averaged = service.finish(0, step * 4, Op.AVERAGE, 4, step.dtype)
    assert np.array_equal(averaged, alone.finish(0, step.copy(), Op.SUM, 1, step.dtype))


def test_the_benchmark_measures_every_optimiser_and_draws_it(tmp_path):
    said = []
    records = optimiser.execute(optimiser.cases(blocks=1, iterations=2, nbytes=5_000_000), tmp_path, said.append)
    assert [one.case.settings["optimiser"] for one in records] == list(optimiser.OPTIMISERS)
    assert all(one.verified for one in records), [one.error or one.oracle for one in records]
    assert len(said) == len(records)
    assert all(row.values for row in optimiser.rows(records))
    assert len(fig9a_optimisers(loaded("optimiser", records), tmp_path)) == 2


def test_a_wrong_answer_is_seen():
    numel = 3000
    right = optimiser.gradient(numel, 0) - np.float32(optimisers.LR) * optimiser.gradient(numel, 1)
    assert optimiser._check("sgd", right, 2).passed
    assert not optimiser._check("sgd", right + 0.01, 2).passed
    assert not optimiser._check("momentum", right, 3).passed


def test_a_server_that_dies_is_an_error_of_the_launch(monkeypatch):
    real = subprocess.Popen

    def broken(command, **options):
        return real([sys.executable, "-c", "raise SystemExit(3)"], **options)

    monkeypatch.setattr(optimiser.subprocess, "Popen", broken)
    one = optimiser.measure(optimiser.cases(blocks=1, iterations=1, nbytes=10_000)[0])
    assert "the server left" in one.error
    assert "exit code 3" in one.error


def test_unknown_optimisers_are_named():
    case = optimiser.cases(blocks=1)[0]
    with pytest.raises(ValueError, match="optimiser 'lamb' is none; use one of none, sgd"):
        optimiser.measure(msgspec.structs.replace(case, settings={"optimiser": "lamb"}))
