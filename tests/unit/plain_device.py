"""A device that does everything at once, where it is asked to; collectives by whatever its groups are made of."""

import threading
from types import SimpleNamespace

import torch

PATIENCE = 20.0


class Plain:
    def __init__(self, _where, groups) -> None:
        self._groups = groups
        groups.connect(torch.zeros(1))
        self.told = []

    def stream(self, name: str):
        return SimpleNamespace(name=name, synchronize=lambda: None)

    def current(self):
        return self.stream("compute")

    def attend(self) -> None: ...

    def record(self, stream):
        return stream

    def wait(self, stream, event) -> None:
        pass

    def reached(self, event) -> bool:
        return True

    def watch(self, event, done) -> None:
        thread = threading.Thread(target=done, args=(None,))
        self.told.append(thread)
        thread.start()

    def copy(self, stream, source, target) -> None:
        target.copy_(source)

    def collect(self, stream, step, memory) -> None:
        self._groups.collect(step, memory)

    def pin(self, memory, like):
        return torch.frombuffer(memory, dtype=like.dtype)

    def abort(self) -> None:
        self._groups.end("abort")

    def close(self) -> None:
        for thread in self.told:
            thread.join(PATIENCE)
        self._groups.end("shutdown", PATIENCE)
