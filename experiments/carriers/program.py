"""One end of a transport: `python -m experiments.carriers.program ROLE CARRIER SETTINGS`.

Both ends speak the protocol of `baselines.driver` in lock-step: before every iteration the sender writes new data,
which depend on the iteration; "go" is one tensor from the one to the other; afterwards the receiver holds what it has
against the data themselves, all of them, and the sender looks whether its own are unharmed.  The receiver's time counts
from "go" until everything is in its tensor.
"""

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from baselines import data
from baselines.driver import Conversation
from experiments.carriers import Place, Receiver, Sender, memory, rpc, sockets, ucx, zeromq

Array = np.ndarray[Any, np.dtype[np.float32]]
Ends = tuple[Callable[[Place], Sender], Callable[[Place], Receiver]]

ENDS: Mapping[str, Ends] = {
    "socket": (sockets.Sender, sockets.Receiver),
    "unix": (partial(sockets.Sender, unix=True), partial(sockets.Receiver, unix=True)),
    "shm-slots": (memory.Sender, memory.Receiver),
    "shm-write": (partial(memory.Sender, in_place=True), partial(memory.Receiver, in_place=True)),
    "zmq-copy": (partial(zeromq.Sender, copy=True), partial(zeromq.Receiver, copy=True)),
    "zmq-zero-copy": (partial(zeromq.Sender, copy=False), partial(zeromq.Receiver, copy=False)),
    "grpc-unary": (partial(rpc.Sender, stream=False), partial(rpc.Receiver, stream=False)),
    "grpc-stream": (partial(rpc.Sender, stream=True), partial(rpc.Receiver, stream=True)),
    "ucx-tcp": (ucx.Sender, ucx.Receiver),
    "ucx-shm": (ucx.Sender, ucx.Receiver),
}


def transfers(talk: Conversation, array: Array, prepare: Callable[[int], None], move: Callable[[], None]) -> None:
    """Iteration after iteration, as the orchestrator says."""
    talk.hear("workload")
    talk.say("declared")
    iteration = 0
    while True:
        prepare(iteration)
        talk.say("ready", iteration=iteration)
        if talk.hear("warm", "go", "stop")[0] == "stop":
            return
        started = time.monotonic()
        move()
        talk.say("done", iteration=iteration, seconds=time.monotonic() - started)
        talk.hear("check")
        talk.say("checked", iteration=iteration, max_error=data.largest_error(array, 1, iteration))
        iteration += 1


def run(talk: Conversation, role: str, carrier: str, place: Place) -> None:
    make_sender, make_receiver = ENDS[carrier]
    end = make_sender(place) if role == "sender" else make_receiver(place)
    own: memoryview | None = getattr(end, "tensor", None)
    array = np.empty(place.nbytes // 4, dtype=np.float32)
    if own is not None:
        array = np.frombuffer(own, dtype=np.float32)[: len(array)]  # shared memory is whole pages
    array.fill(np.nan)
    view = array.data.cast("B")
    talk.say("started", facts={"carrier": carrier, "python": sys.version.split()[0], "numpy": np.__version__})
    if isinstance(end, Sender):
        transfers(talk, array, partial(data.fill, array, 0), partial(end.send, view))
    else:
        transfers(talk, array, lambda _iteration: None, partial(end.receive, view))
    del array, view, own
    end.close()
    talk.say("stopped")


def main() -> None:
    """What a transport prints goes to the log; an exception is told, and ends the process at once."""
    role, carrier, settings = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    talk = Conversation(out, sys.stdin)
    try:
        run(talk, role, carrier, Place(**json.loads(settings)))
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        with contextlib.suppress(BrokenPipeError):
            talk.say("failed", error=f"{type(error).__name__}: {error}")
        os._exit(1)


if __name__ == "__main__":
    main()
