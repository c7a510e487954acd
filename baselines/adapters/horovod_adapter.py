"""Horovod through its own calls: one asynchronous all-reduce in place per tensor, under the tensor's name.

The plan sets Horovod's environment.  Waiting is the one intervention: `hvd.synchronize` yields the processor in a loop,
a million times a second, and starves Horovod's own thread where cores are shared.  With `wait` = "poll" it is called
when the handle says that nothing is left to wait for, and until then we sleep.
"""

import http.client
import os
import socket
import time
from collections.abc import Sequence

import horovod
import horovod.torch as hvd
import torch

from baselines.session import Array, Tensor

POLL_SECONDS = 0.5e-3
MEET_SECONDS = 120.0


class Session:
    """An initialised job.

    `submit` and `wait` share the dictionary of handles only, whose single operations are atomic; Horovod's calls are
    safe from any thread and let others run while they wait.
    """

    def __init__(self, *, polls: bool) -> None:
        hvd.init()
        self._polls = polls
        self._names: list[str] = []
        self._gradients: list[Array] = []
        self._views: list[torch.Tensor] = []  # the same memory
        self._handles: dict[int, int] = {}

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        self._names = [tensor.name for tensor in tensors]
        self._gradients = list(gradients)
        self._views = [torch.from_numpy(gradient) for gradient in gradients]
        self._handles = {}

    def submit(self, index: int) -> None:
        self._handles[index] = hvd.allreduce_async_(self._views[index], name=self._names[index], op=hvd.Sum)

    def wait(self, index: int) -> Array:
        handle = self._handles.pop(index)
        while self._polls and not hvd.poll(handle):
            time.sleep(POLL_SECONDS)
        hvd.synchronize(handle)  # also raises what went wrong
        return self._gradients[index]

    def facts(self) -> dict[str, str]:
        return {
            "horovod": horovod.__version__,
            "torch": torch.__version__,
            "torch threads": str(torch.get_num_threads()),
            "fusion bytes": os.environ["HOROVOD_FUSION_THRESHOLD"],
            "cycle ms": os.environ["HOROVOD_CYCLE_TIME"],
            "wait": "poll" if self._polls else "spin",
        }

    def close(self) -> None:
        hvd.shutdown()
        _say_goodbye()


def _meeting() -> tuple[str, int]:
    return os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])


def _await_meeting() -> None:
    """Horovod itself gives up after three attempts in 1.5 s, and the ranks are started together with the server."""
    deadline = time.monotonic() + MEET_SECONDS
    while True:
        try:
            socket.create_connection(_meeting(), timeout=1.0).close()
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                address, port = _meeting()
                raise TimeoutError(f"no rendezvous server at {address}:{port} within {MEET_SECONDS:.0f} s") from error
            time.sleep(0.05)  # it may not be listening yet


def _say_goodbye() -> None:
    """The rendezvous server ends when all have; see `baselines.adapters.horovod_rendezvous`."""
    connection = http.client.HTTPConnection(*_meeting(), timeout=5.0)
    connection.request("DELETE", f"/goodbye/{os.environ['HOROVOD_RANK']}")
    connection.getresponse().read()
    connection.close()


def start(*, rank: int, size: int, settings: dict[str, str]) -> Session:
    torch.set_num_threads(1)
    _await_meeting()
    session = Session(polls=settings["wait"] == "poll")
    if (hvd.rank(), hvd.size()) != (rank, size):
        raise RuntimeError(f"horovod says rank {hvd.rank()} of {hvd.size()}, the orchestrator {rank} of {size}")
    return session
