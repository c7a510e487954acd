"""What users do by mistake: refused in words, or right; and the job goes on."""

import os

import numpy as np
import torch

import byteps
import byteps.torch as bt

byteps.init()
rank, size = byteps.rank(), byteps.size()
ones = np.ones(4, np.float32)


def refused(call, words):
    try:
        call()
    except (byteps.errors.BytePSError, TypeError) as error:
        said = str(error)
    else:
        said = "it was not refused"
    assert words in said, said


refused(lambda: byteps.push_pull(np.arange(5, dtype=">f4"), "foreign", op="sum"), "foreign byte order")
refused(lambda: byteps.declare({"foreign": np.arange(5, dtype=">f4")}), "foreign byte order")
refused(lambda: byteps.push_pull(ones, "flag", average="sum"), "use True or False")
refused(lambda: byteps.push_pull(ones, "\udc80"), "UTF-8")
refused(lambda: byteps.push_pull(ones, b"bytes"), "non-empty str")
refused(lambda: byteps.push_pull(ones, "priority", priority=None), "whole number")
refused(lambda: byteps.push_pull_inplace([1.0, 2.0]), "numpy arrays only")
refused(lambda: bt.push_pull(ones, "numpy"), "takes torch tensors")
assert np.array_equal(byteps.push_pull(ones, np.str_("name"), average=np.False_), size * ones)

parameter = torch.nn.Parameter(torch.full((3,), rank + 1.0))
assert bt.push_pull_inplace(parameter, "parameter", op="sum") is parameter
assert torch.equal(parameter.detach(), torch.full((3,), size * (size + 1) / 2))

# A forked child is not in the job, and its end is not the job's.
child = os.fork()
if child == 0:
    try:
        byteps.push_pull(ones, "name", op="sum")
    except byteps.errors.BytePSError as error:
        os._exit(0 if "not initialised in this process" in str(error) else 4)
    os._exit(3)
assert os.waitpid(child, 0)[1] == 0
assert np.array_equal(byteps.push_pull(ones, "name", op="sum"), size * ones)
print("right", flush=True)
byteps.shutdown()
