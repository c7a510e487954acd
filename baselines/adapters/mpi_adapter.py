"""MPI_Allreduce, one tensor after the other in the order in which they are handed over.

A thread of ours issues the blocking call: the non-blocking one (MPI_Iallreduce) is other code in Open MPI, without the
algorithms whose choice is the point here.  Ranks match collective calls by their order, so all must hand the tensors
over in the same order.

Open MPI moves data inside its calls only.  It may return from the last one while its end of a transfer still waits for
room in a socket, and the other end would wait for ever: so the thread looks in now and then while it has nothing to do.
"""

import queue
import threading
from collections.abc import Sequence
from typing import Any

import mpi4py

from baselines.session import Array, Tensor

IDLE_SECONDS = 5e-3  # between two looks at the network while nothing is submitted
CHECK_SECONDS = 0.5  # how long a failure of the thread may stay unnoticed


class Session:
    """A rank of an MPI job."""

    def __init__(self, mpi: Any, settings: dict[str, str]) -> None:
        self._mpi = mpi
        self._settings = settings
        self._world = mpi.COMM_WORLD
        self._gradients: Sequence[Array] = ()
        self._done: list[threading.Event] = []
        self._failure: BaseException | None = None
        self._submitted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mpi-allreduce", daemon=True)
        self._thread.start()

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        for tensor in tensors:
            if tensor.dtype != "float32":
                raise ValueError(f"tensor {tensor.name} is {tensor.dtype}: MPI has no such type; it sums float32 here")
        self._gradients = gradients
        self._done = [threading.Event() for _ in tensors]

    def submit(self, index: int) -> None:
        self._done[index].clear()
        self._submitted.put(index)

    def wait(self, index: int) -> Array:
        while not self._done[index].wait(timeout=CHECK_SECONDS):
            self._check()
        self._check()
        return self._gradients[index]

    def _check(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"MPI_Allreduce failed: {self._failure}") from self._failure

    def facts(self) -> dict[str, str]:
        return {
            "mpi": self._mpi.Get_library_version().split(",")[0],
            "mpi4py": mpi4py.__version__,
            "algorithm": self._settings["algorithm"],
            "wait": self._settings["wait"],
            "sleep": self._settings["sleep"],
        }

    def close(self) -> None:
        self._submitted.put(None)
        self._thread.join()
        if self._failure is None:
            self._mpi.Finalize()

    def _run(self) -> None:
        try:
            while (index := self._next()) is not None:
                self._world.Allreduce(self._mpi.IN_PLACE, self._gradients[index])
                self._done[index].set()
        except BaseException as error:
            self._failure = error

    def _next(self) -> int | None:
        while True:
            try:
                return self._submitted.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                self._world.Iprobe()


def start(*, rank: int, size: int, settings: dict[str, str]) -> Session:
    mpi4py.rc.thread_level = "serialized"  # the session's thread calls MPI, and this one before and after it
    from mpi4py import MPI  # initialises MPI, so not before

    world = MPI.COMM_WORLD
    if (world.rank, world.size) != (rank, size):
        raise RuntimeError(f"MPI says rank {world.rank} of {world.size}, the orchestrator {rank} of {size}")
    return Session(MPI, settings)
