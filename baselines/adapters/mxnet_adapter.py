"""MXNet's KVStore: every tensor is one key or, if large, several, pushed and pulled in place.

In place and without copies: MXNet sees the driver's arrays themselves.  On a CPU its KVStore uses the pushed array as
its receive buffer anyway; naming it as the output, too, saves the copy that would follow.  So an array has to be
refilled before the next round, which the driver does.  Calls return at once; MXNet's engine runs them in order of
priority and blocks in `wait_to_read` without spinning.

`dist_sync` has no optimizer, so that a server answers with the sum of the round.  `dist_async` needs one; SGD with a
learning rate of -1 adds.  What a `wait` returns then is whatever has arrived, which cannot be checked.  When all ranks
are done, `settle` asks again and takes off the sum of the rounds before.
"""

import os
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from baselines.session import Array, Tensor

_VARIABLES = (
    "MXNET_KVSTORE_BIGARRAY_BOUND",
    "MXNET_KVSTORE_SLICE_THRESHOLD",
    "OMP_NUM_THREADS",
    "DMLC_PS_VAN_TYPE",
    "DMLC_PS_WATER_MARK",
)

# A message costs the same however small a replay's tensors are: keys are not scaled below this.
LEAST_KEY_NBYTES = 4096


class Session:
    """A worker of a job that is up."""

    def __init__(self, store: Any, *, keys: int, split_nbytes: int, at_once: bool) -> None:
        self._store = store
        self._keys = keys
        self._split_nbytes = split_nbytes
        self._at_once = at_once  # push and pull in one message and its answer
        self._next_key = 0

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        """Keys are new for every workload, and rising: P3 derives the places of its slices from their order."""
        self._gradients = list(gradients)
        self._priorities = [tensor.priority for tensor in tensors]
        self._pieces: list[tuple[list[int], list[Any]]] = []
        for gradient in gradients:
            pieces = [_in_place(part) for part in np.array_split(gradient, self._number_of_keys(gradient))]
            self._pieces.append((list(range(self._next_key, self._next_key + len(pieces))), pieces))
            self._next_key += len(pieces)
        self._store.init(
            [key for keys, _ in self._pieces for key in keys], [one for _, arrays in self._pieces for one in arrays]
        )

    def _number_of_keys(self, gradient: Array) -> int:
        if gradient.nbytes < self._split_nbytes:
            return 1
        return max(1, min(self._keys, gradient.nbytes // LEAST_KEY_NBYTES))

    def submit(self, index: int) -> None:
        keys, arrays = self._pieces[index]
        priority = self._priorities[index]
        if self._at_once:
            self._store.pushpull(keys, arrays, out=arrays, priority=priority)
        else:
            self._store.push(keys, arrays, priority=priority)
            self._store.pull(keys, out=arrays, priority=priority)

    def wait(self, index: int) -> Array:
        """In place."""
        for array in self._pieces[index][1]:
            array.wait_to_read()
        return self._gradients[index]

    def facts(self) -> dict[str, str]:
        knobs = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        return {
            "mxnet": mx.__version__,
            "numpy": np.__version__,
            "store": self._store.type,
            "keys": f"{self._keys} for tensors of {self._split_nbytes} bytes or more",
            "call": "pushpull" if self._at_once else "push+pull",
            **knobs,
        }

    def close(self) -> None:
        """MXNet leaves the job when its store is freed: a barrier, then rank 0 stops the servers."""
        self._pieces = []
        self._store = None


class AsyncSession(Session):
    """A worker whose sums are what has arrived by then, of this round and all before it."""

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        if any(tensor.dtype != "float32" for tensor in tensors):
            raise ValueError("dist_async adds up all rounds, which float16 cannot hold exactly; use float32")
        self._settled = [np.zeros_like(gradient) for gradient in gradients]
        for gradient in gradients:
            gradient[:] = 0  # those of rank 0 are the weights to which all will add
        super().declare(tensors, gradients)

    def settle(self, index: int) -> Array:
        """The sum of the round that all ranks have finished; untimed, once per tensor and round."""
        keys, arrays = self._pieces[index]
        self._store.pull(keys, out=arrays)
        total = self.wait(index)
        before, self._settled[index] = self._settled[index], total.copy()
        total -= before
        return total

    def facts(self) -> dict[str, str]:
        check = "once all ranks are done, by another pull, which the NIC's counters include"
        return {**super().facts(), "optimizer": "SGD, learning rate -1", "check": check}


def _in_place(array: Array) -> Any:
    """MXNet's view of the array.  It marks what it is given as read-only, so it is given a view of its own."""
    return mx.nd.from_numpy(array[:], zero_copy=True)


def start(*, rank: int, size: int, settings: dict[str, str]) -> Session:
    store = mx.kv.create(settings["store"])
    if store.num_workers != size:
        raise RuntimeError(f"MXNet says {store.num_workers} workers, the orchestrator {size}")
    kind = Session
    if store.type == "dist_async":
        kind = AsyncSession
        if store.rank == 0:  # MXNet numbers the workers itself
            store.set_optimizer(mx.optimizer.create("sgd", learning_rate=-1.0))
        store._barrier()
    return kind(
        store,
        keys=int(settings["keys"]),
        split_nbytes=int(settings["split"]),
        at_once=settings["call"] == "pushpull",
    )
