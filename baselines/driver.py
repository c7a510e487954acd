"""The program that every worker of every contender runs, so that timing, barriers and checks are the same for all.

It talks with the orchestrator in JSON lines on its standard input and output, in lock-step:

    worker   {"event": "started", "facts": {...}}    the contender is up; its start is not timed here
    parent   workload {"tensors": [...]}             what to synchronise from now on
    worker   {"event": "declared"}
    worker   {"event": "ready", "iteration": 0}      data of iteration 0 is written
    parent   warm | go                               sent to all once all are ready: the barrier; a warm-up leaves the
                                                     computation out
    worker   {"event": "done", ..., "seconds": s}    the iteration took s seconds on this rank's monotonic clock
    parent   check                                   sent to all once all are done, so that checking one rank's sum
    worker   {"event": "checked", "max_error": e}    does not slow down another rank's transfer
    ...                                              ready, warm or go, done, check, checked for every iteration
    parent   workload {...} | stop                   instead of go
    worker   {"event": "stopped"}

A sum is checked after every iteration against `baselines.data`.  The barrier is the parent's and outside the contender,
so no contender has to have one.  What a contender prints goes to the log: file descriptor 1 becomes 2, the protocol
keeps a copy of the original.  An exception ends the worker with a `failed` event and its traceback in the log.
Standard library and numpy only; the adapter is imported by name and may need its contender's own environment.
"""

import argparse
import contextlib
import importlib
import json
import os
import sys
import traceback
from typing import Any, TextIO

import numpy as np

from baselines import data, replay, strategies
from baselines.session import Array, Session, Tensor


class Conversation:
    """One end of the protocol: JSON lines out, words in."""

    def __init__(self, out: TextIO, into: TextIO) -> None:
        self._out = out
        self._into = into

    def say(self, event: str, **fields: Any) -> None:
        self._out.write(json.dumps({"event": event, **fields}) + "\n")
        self._out.flush()

    def hear(self, *allowed: str) -> tuple[str, str]:
        """The next word of the orchestrator and what follows it; its end of file means that nobody waits for us."""
        line = self._into.readline()
        if not line:
            raise RuntimeError("driver: the orchestrator is gone (end of standard input)")
        word, _, rest = line.strip().partition(" ")
        if word not in allowed:
            raise RuntimeError(f"driver: the orchestrator said {word!r}; expected one of {', '.join(allowed)}")
        return word, rest


def arrays(tensors: list[Tensor]) -> tuple[Array, list[Array]]:
    """One buffer for all gradients, so that all are filled and checked at once, and a view of it for each."""
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) != 1:
        raise ValueError(f"a workload has one element type, not {sorted(kinds)}")
    ends = np.cumsum([tensor.numel for tensor in tensors])
    flat = np.empty(int(ends[-1]), dtype=kinds.pop())
    return flat, [flat[end - tensor.numel : end] for tensor, end in zip(tensors, ends.tolist(), strict=True)]


def serve(talk: Conversation, session: Session, *, rank: int, size: int, one_by_one: bool) -> None:
    """Workload after workload, iteration after iteration, as the orchestrator says, until it says stop."""
    talk.say("started", facts=session.facts())
    settle = getattr(session, "settle", None)  # of those whose sums are complete only when all ranks are done
    word, text = talk.hear("workload", "stop")
    while word == "workload":
        tensors = [Tensor(**fields) for fields in json.loads(text)["tensors"]]
        flat, gradients = arrays(tensors)
        session.declare(tensors, gradients)
        talk.say("declared")
        iteration = 0
        while True:
            data.fill(flat, rank, iteration)
            talk.say("ready", iteration=iteration)
            word, text = talk.hear("warm", "go", "workload", "stop")
            if word in ("workload", "stop"):
                break
            if one_by_one:
                seconds, sums = replay.iterate_one_by_one(session, tensors)
            else:
                seconds, sums = replay.iterate(session, tensors, compute=word == "go")
            talk.say("done", iteration=iteration, seconds=seconds)
            talk.hear("check")
            if settle:
                sums = [settle(index) for index in range(len(tensors))]
            for gradient, result in zip(gradients, sums, strict=True):
                if result.ctypes.data != gradient.ctypes.data:
                    gradient[:] = result
            talk.say("checked", iteration=iteration, max_error=data.largest_error(flat, size, iteration))
            iteration += 1


def main() -> None:
    parser = argparse.ArgumentParser(description="One worker of a contender; started by experiments.run.")
    parser.add_argument("--adapter", required=True, help="module, e.g. baselines.adapters.gloo_adapter")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON object of strings, for the adapter")
    args = parser.parse_args()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    talk = Conversation(out, sys.stdin)
    try:
        adapter = importlib.import_module(args.adapter)
        session = adapter.start(rank=args.rank, size=args.size, settings=args.settings)
        session = strategies.wrap(session, args.settings, rank=args.rank, size=args.size)
        one_by_one = args.settings.get("submit") == "one by one"
        serve(talk, session, rank=args.rank, size=args.size, one_by_one=one_by_one)
        session.close()
        talk.say("stopped")
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        with contextlib.suppress(BrokenPipeError):
            talk.say("failed", error=f"{type(error).__name__}: {error}")
        os._exit(1)  # nothing is closed: a contender that failed may be stuck, and its clean end is of no use


if __name__ == "__main__":
    main()
