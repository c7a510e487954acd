"""Optimisers on the CPU of a summation service: what the paper decided against, to measure why (section 5, Figure 9a).

A parameter server sums gradients and updates the weights, too; BytePS splits that, since an update touches far more
memory than a sum (Figure 10).  `OptimiserService` is the summation service with the update put back: the first round
of a partition are its weights, as a parameter server is initialised by its workers, and later rounds are gradients,
answered by the new weights.

Updates go through a partition in pieces that stay in the cache with their scratch space, so that weights and state pass
through memory once, read and written: per element of the gradient SGD moves 2 more, momentum and RMSProp 4, Adam 6.
Formulas and names of the hyperparameters are those of torch.optim; float32.
"""

import contextlib
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from byteps import kernels
from byteps.kernels import Array
from byteps.net import Connection, ConnectionLost, Flusher
from byteps.service import SummationService
from byteps.wire import Message

LR: Final = 0.01
MOMENTUM: Final = 0.9
ALPHA: Final = 0.99
BETAS: Final = (0.9, 0.999)
EPS: Final = 1e-8
_CHUNK: Final = 16384

# weights, gradient, state (one array each), scratch, number of this step from 1; the gradient may be overwritten
Update = Callable[[Array, Array, list[Array], Array, int], None]


def sgd(weights: Array, gradient: Array, state: list[Array], scratch: Array, step: int) -> None:
    """w -= lr g."""
    np.multiply(gradient, LR, out=gradient)
    np.subtract(weights, gradient, out=weights)


def momentum(weights: Array, gradient: Array, state: list[Array], scratch: Array, step: int) -> None:
    """v = mu v + g, w -= lr v."""
    (velocity,) = state
    np.multiply(velocity, MOMENTUM, out=velocity)
    np.add(velocity, gradient, out=velocity)
    np.multiply(velocity, LR, out=gradient)
    np.subtract(weights, gradient, out=weights)


def rmsprop(weights: Array, gradient: Array, state: list[Array], scratch: Array, step: int) -> None:
    """s = alpha s + (1 - alpha) g^2, w -= lr g / (sqrt(s) + eps)."""
    (square,) = state
    _decay(square, gradient, ALPHA, scratch)
    np.sqrt(square, out=scratch)
    np.add(scratch, EPS, out=scratch)
    np.divide(gradient, scratch, out=gradient)
    sgd(weights, gradient, [], scratch, step)


def adam(weights: Array, gradient: Array, state: list[Array], scratch: Array, step: int) -> None:
    """Kingma and Ba 2015, algorithm 1."""
    mean, square = state
    _decay(square, gradient, BETAS[1], scratch)
    np.multiply(mean, BETAS[0], out=mean)
    np.multiply(gradient, 1 - BETAS[0], out=gradient)
    np.add(mean, gradient, out=mean)
    np.multiply(square, 1 / (1 - BETAS[1] ** step), out=scratch)
    np.sqrt(scratch, out=scratch)
    np.add(scratch, EPS, out=scratch)
    np.divide(mean, scratch, out=gradient)
    np.multiply(gradient, LR / (1 - BETAS[0] ** step), out=gradient)
    np.subtract(weights, gradient, out=weights)


def _decay(square: Array, gradient: Array, keep: float, scratch: Array) -> None:
    """square = keep square + (1 - keep) gradient^2."""
    np.multiply(gradient, gradient, out=scratch)
    np.multiply(scratch, 1 - keep, out=scratch)
    np.multiply(square, keep, out=square)
    np.add(square, scratch, out=square)


UPDATES: Final[dict[str, tuple[Update, int]]] = {  # and how many arrays of state
    "sgd": (sgd, 0),
    "momentum": (momentum, 1),
    "rmsprop": (rmsprop, 1),
    "adam": (adam, 2),
}


class Partition:
    """The weights of one, and the optimiser's state."""

    def __init__(self, weights: Array, states: int) -> None:
        self.weights = weights.copy()
        self._state = [np.zeros_like(weights) for _ in range(states)]
        self._steps = 0

    def step(self, update: Update, gradient: Array) -> None:
        """Leaves the new weights in `gradient`, too, whose memory is the answer's."""
        self._steps += 1
        scratch = np.empty(min(_CHUNK, gradient.size), gradient.dtype)
        for start in range(0, gradient.size, _CHUNK):
            place = slice(start, start + _CHUNK)
            piece = gradient[place]
            state = [one[place] for one in self._state]
            update(self.weights[place], piece, state, scratch[: piece.size], self._steps)
            np.copyto(piece, self.weights[place])


class OptimiserService(SummationService):
    """Sums, updates, and answers with weights."""

    def __init__(self, optimiser: str, **arguments: Any) -> None:
        """`optimiser` is one of UPDATES; other arguments are the summation service's."""
        super().__init__(**arguments)
        self._update, self._states = UPDATES[optimiser]
        self._partitions: dict[int, Partition] = {}

    def finish(self, key: int, total: Array, op: int, num_workers: int, dtype: np.dtype[Any]) -> Array:
        total = kernels.finish(total, op, num_workers, dtype)
        if key in self._partitions:
            self._partitions[key].step(self._update, total)
        else:
            self._partitions[key] = Partition(total, self._states)
        return total


def service(optimiser: str, num_workers: int, report: Callable[[Message], None]) -> SummationService:
    """That of one optimiser; "none" is the summation service itself."""
    arguments: dict[str, Any] = {"num_workers": num_workers, "stall_warn_seconds": 60.0, "report": report}
    return SummationService(**arguments) if optimiser == "none" else OptimiserService(optimiser, **arguments)


def main(optimiser: str, descriptors: list[int]) -> None:
    """A server of workers at these socket pairs, until all of them are gone."""
    flusher = Flusher()
    here = service(optimiser, len(descriptors), lambda message: print(message, file=sys.stderr))
    here.connections.update(
        {worker: Connection(socket.socket(fileno=fd), flusher) for worker, fd in enumerate(descriptors)}
    )

    def serve(worker: int) -> None:
        with contextlib.suppress(ConnectionLost):
            here.serve(worker, here.connections[worker])

    threads = [threading.Thread(target=serve, args=(worker,)) for worker in here.connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], [int(fd) for fd in sys.argv[2:]])
