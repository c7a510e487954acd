"""The program that every worker of every contender runs, so that timing, barriers and checks are the same for all.

It talks with the orchestrator in JSON lines on its standard input and output, in lock-step:

    worker   {"event": "started", "facts": {...}}            the contender is up; its start is not timed here
    worker   {"event": "ready", "iteration": 0}              data of iteration 0 is written
    parent   go                                              sent to all once all are ready: the barrier
    worker   {"event": "done", "iteration": 0, "seconds": s} the call took s seconds on this rank's monotonic clock
    ...                                                      ready, go, done for every iteration; the parent knows which
                                                             of them are warm-ups
    parent   check                                           sent to all once all are done, so that checking one rank's
    worker   {"event": "checked", ..., "max_error": e}       sum does not slow down another rank's transfer
    parent   stop
    worker   {"event": "stopped"}

A sum is checked after every iteration against `baselines.data`.  The barrier is the parent's and outside the contender,
so no contender has to have one.  What a contender prints goes to the log: file descriptor 1 becomes 2, the protocol
keeps a copy of the original.  An exception ends the worker with a `failed` event and its traceback in the log.
Standard library and numpy only; the adapter is imported by name and may need its contender's own environment.
"""

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from typing import Any, TextIO

import numpy as np

from baselines import data


class Conversation:
    """One end of the protocol: JSON lines out, words in."""

    def __init__(self, out: TextIO, into: TextIO) -> None:
        self._out = out
        self._into = into

    def say(self, event: str, **fields: Any) -> None:
        self._out.write(json.dumps({"event": event, **fields}) + "\n")
        self._out.flush()

    def hear(self, *allowed: str) -> str:
        """The next word of the orchestrator; its end of file means that nobody waits for us any more."""
        line = self._into.readline()
        if not line:
            raise SystemExit("driver: the orchestrator is gone (end of standard input)")
        word = line.strip()
        if word not in allowed:
            raise SystemExit(f"driver: the orchestrator said {word!r}; expected one of {', '.join(allowed)}")
        return word


def serve(talk: Conversation, adapter: Any, *, rank: int, size: int, nbytes: int, settings: dict[str, str]) -> None:
    """Start the contender, then iterate as the orchestrator says until it says stop."""
    gradient = np.empty(nbytes // 4, dtype=np.float32)
    session = adapter.start(rank=rank, size=size, settings=settings)
    try:
        talk.say("started", facts=session.facts())
        iteration = 0
        while True:
            data.fill(gradient, rank, iteration)
            talk.say("ready", iteration=iteration)
            if talk.hear("go", "stop") == "stop":
                break
            started = time.monotonic()
            result = session.all_reduce(gradient)
            seconds = time.monotonic() - started
            talk.say("done", iteration=iteration, seconds=seconds)
            talk.hear("check")
            talk.say("checked", iteration=iteration, max_error=data.largest_error(result, size, iteration))
            iteration += 1
    finally:
        session.close()
    talk.say("stopped")


def main() -> None:
    parser = argparse.ArgumentParser(description="One worker of a contender; started by experiments.run.")
    parser.add_argument("--adapter", required=True, help="module, e.g. baselines.adapters.gloo_adapter")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--nbytes", type=int, required=True)
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON object of strings, for the adapter")
    args = parser.parse_args()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    talk = Conversation(out, sys.stdin)
    try:
        adapter = importlib.import_module(args.adapter)
        serve(talk, adapter, rank=args.rank, size=args.size, nbytes=args.nbytes, settings=args.settings)
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        talk.say("failed", error=f"{type(error).__name__}: {error}")
        os._exit(1)  # a contender's threads may be stuck; nobody needs their clean end


if __name__ == "__main__":
    main()
