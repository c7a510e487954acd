"""TensorFlow with parameter servers: the mechanics of TensorFlow 1's SyncReplicasOptimizer, over its own gRPC.

One run of the graph (`tensorflow_graph`) per iteration, started by the first tensor that is handed over; each tensor is
handed over by a small run of its own, on this task alone.  Threads: one hands over, one runs the steps; results come in
on TensorFlow's threads.
"""

import atexit
import contextlib
import os
import queue
import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from baselines.adapters import tensorflow_graph as graph
from baselines.adapters.tensorflow_server import cluster_of_environment, goodbyes, options
from baselines.session import Array, Tensor

CHECK_SECONDS = 0.5  # how long a failure of a thread may stay unnoticed


class Session:
    """A worker task, connected to all servers."""

    def __init__(self, *, settings: dict[str, str]) -> None:
        self._cluster, job, task = cluster_of_environment()
        self._shape = graph.Shape(
            rank=task,
            size=len(self._cluster["worker"]),
            num_servers=len(self._cluster["ps"]),
            max_slices=int(settings["partitions"]) * len(self._cluster["ps"]),
            min_slice_nbytes=int(settings["slice"]),
        )
        self._task = job, task
        self._server = tf.distribute.Server(self._cluster, job_name=job, task_index=task, config=options(job, task))
        self._num_workloads = 0
        self._sessions: tuple[Any, ...] = ()
        self._failure: BaseException | None = None
        self._submitted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._steps: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._guard, args=(run,), name=name, daemon=True)
            for run, name in ((self._hand_over, "tensorflow-hand-over"), (self._run_steps, "tensorflow-steps"))
        ]
        self._connect()
        for thread in self._threads:
            thread.start()

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        """The threads are at rest between workloads: every sum of the last one was waited for."""
        for session in self._sessions:
            session.close()
        self._gradients = gradients
        self._sums: list[Array | None] = [None] * len(tensors)
        self._done = [threading.Event() for _ in tensors]
        self._handed_over = 0
        self._num_workloads += 1
        container = f"workload{self._num_workloads}"
        with tf.Graph().as_default() as built, built.container(container):
            pairs = graph.hand_over(self._shape, tensors)
            feeding = tf.compat.v1.Session(self._server.target, config=options(*self._task, alone=True))
            self._calls = [feeding.make_callable(operation, feed_list=[gradient]) for gradient, operation in pairs]
        with tf.Graph().as_default() as built, built.container(container):
            step = graph.build(self._shape, tensors, self._arrived)
            stepping = tf.compat.v1.Session(self._server.target, config=options(*self._task))
            self._step = stepping.make_callable(step.operations, feed_list=[step.number])
        self._sessions = feeding, stepping

    def submit(self, index: int) -> None:
        self._done[index].clear()
        self._submitted.put(index)

    def wait(self, index: int) -> Array:
        while not self._done[index].wait(timeout=CHECK_SECONDS):
            if self._failure is not None:
                raise RuntimeError(f"TensorFlow failed: {self._failure}") from self._failure
        result = self._sums[index]
        assert result is not None
        return result

    def facts(self) -> dict[str, str]:
        return {
            "tensorflow": tf.__version__,
            "servers": str(self._shape.num_servers),
            "slices at most": str(self._shape.max_slices),
            "slice bytes at least": str(self._shape.min_slice_nbytes),
        }

    def close(self) -> None:
        for todo, thread in zip((self._submitted, self._steps), self._threads, strict=True):
            todo.put(None)
            thread.join()
        if self._failure is None:
            for goodbye in self._goodbyes:
                with contextlib.suppress(tf.errors.UnavailableError):  # a server leaves at the last one's, unanswered
                    self._goodbye_session.run(goodbye)
            # Closing a session would wait for servers that have left by now, and so would the interpreter's end.
            atexit.register(os._exit, 0)

    def _connect(self) -> None:
        """Waits until all servers are there; prepares the end."""
        with tf.Graph().as_default():
            queues = [goodbyes(server, self._shape.size) for server in range(self._shape.num_servers)]
            self._goodbyes = [one.enqueue(self._shape.rank) for one in queues]
            self._goodbye_session = tf.compat.v1.Session(self._server.target, config=options(*self._task))
            self._goodbye_session.run([one.size() for one in queues])

    def _arrived(self, index: int, value: Array) -> None:
        self._sums[index] = value
        self._done[index].set()

    def _guard(self, run: Any) -> None:
        try:
            run()
        except BaseException as error:
            self._failure = error

    def _hand_over(self) -> None:
        while (index := self._submitted.get()) is not None:
            if self._handed_over % len(self._gradients) == 0:
                self._steps.put(self._handed_over // len(self._gradients))
            self._handed_over += 1
            self._calls[index](self._gradients[index])

    def _run_steps(self) -> None:
        while (number := self._steps.get()) is not None:
            self._step(number)


def start(*, rank: int, size: int, settings: dict[str, str]) -> Session:
    tf.compat.v1.disable_eager_execution()
    cluster, job, task = cluster_of_environment()
    told = job, task, len(cluster["worker"])
    if told != ("worker", rank, size):
        raise RuntimeError(f"TF_CONFIG says {told}, the orchestrator rank {rank} of {size}")
    return Session(settings=settings)
