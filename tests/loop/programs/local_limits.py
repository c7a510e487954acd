"""What workers that are summed on their machine cannot do, in words, and what they can; run as every worker."""

import os
import sys

import numpy as np
import torch

import byteps
import byteps.torch as bps
from byteps.session import current
from byteps.wire import Op, TensorSpec

ROUNDS = 25
byteps.init()
rank, size = byteps.rank(), byteps.size()
together = sys.argv[1] == "together"


def refused(call, *words: str) -> None:
    try:
        call()
    except byteps.errors.BytePSError as error:
        said = str(error)
    else:
        said = "it was not refused"
    for word in (*words, "start without --local-size, or with BYTEPS_LOCAL_REDUCTION=0"):
        assert word in said, said


def codecs_keep_what_they_do_not_send() -> None:
    """What is late arrives: the answers' mean comes as near to the sum as the rounds allow, and is one for all."""
    gradients = [np.random.default_rng(of).standard_normal(100_000).astype(np.float32) for of in range(size)]
    want = np.sum(gradients, axis=0)
    for codec in ("topk:0.1", "onebit"):
        total = np.zeros_like(want)
        for _ in range(ROUNDS):
            answer = byteps.push_pull(gradients[rank], f"by {codec}", op="sum", codec=codec)
            total += answer
            same = byteps.push_pull(answer.view(np.int32).astype(np.int64), f"bits by {codec}", op="sum")
            assert np.array_equal(same, size * answer.view(np.int32).astype(np.int64))
        late = float(np.linalg.norm(total / ROUNDS - want) / np.linalg.norm(want))
        assert late < 0.25, f"{codec}: {late:.3f} of the sum is late after {ROUNDS} rounds"


def halves_train() -> None:
    model = torch.nn.Linear(3, 1)
    bps.broadcast_parameters(model.state_dict())
    before = model.weight.detach().clone()
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), compression=bps.Compression.fp16
    )
    model(torch.full((1, 3), float(rank))).sum().backward()
    optimizer.step()
    assert torch.allclose(before - model.weight.detach(), torch.full((1, 3), (size - 1) / 2), atol=1e-2)


def own_pace() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), [("weight", parameter)], mode="async")
    byteps.SharedArray(np.zeros(3, np.float32), "shared")


def a_child_is_not_in_the_job() -> None:
    child = os.fork()
    if child == 0:
        try:
            byteps.push_pull(np.ones(4), "forked", op="sum")
        except byteps.errors.BytePSError as error:
            os._exit(0 if "not initialised in this process" in str(error) else 4)
        os._exit(3)
    assert os.waitpid(child, 0)[1] == 0


if together:
    parameter = torch.nn.Parameter(torch.zeros(3))
    sgd = torch.optim.SGD([parameter], lr=1.0)
    refused(lambda: bps.DistributedOptimizer(sgd, [("weight", parameter)], mode="async"), "asynchronous training")
    refused(lambda: byteps.SharedArray(np.zeros(3, np.float32), "shared"), "'shared", "shared arrays")
    some = TensorSpec(name="some", shape=(3,), dtype="float32", op=Op.SUM, members=(0, 2))
    refused(lambda: current().worker.declare([some]), "'some' is of rank 0, 2 only")
    codecs_keep_what_they_do_not_send()
else:
    own_pace()
halves_train()
a_child_is_not_in_the_job()
assert np.array_equal(byteps.push_pull(np.ones(100_000), "later", op="sum"), np.full(100_000, size))
byteps.shutdown()
print("right", flush=True)
