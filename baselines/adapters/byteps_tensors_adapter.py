"""BytePS with many tensors of one element each, submitted at once or one by one."""

from typing import Any

import numpy as np

import byteps


class Session:
    """An initialised job; the tensors are registered before anything is timed."""

    def __init__(self, num_tensors: int, submit: str) -> None:
        byteps.init()
        self._names = [f"tensor/{index}" for index in range(num_tensors)]
        self._asynchronous = submit == "asynchronously"
        one = np.zeros(1, np.float32)
        byteps.declare(dict.fromkeys(self._names, one), op="sum")

    def all_reduce(self, array: Any) -> Any:
        """Every element is a tensor."""
        views = [array[index : index + 1] for index in range(len(self._names))]
        if self._asynchronous:
            pairs = zip(views, self._names, strict=True)
            handles = [byteps.push_pull_async(view, name, op="sum") for view, name in pairs]
            return np.concatenate([byteps.synchronize(handle) for handle in handles])
        for view, name in zip(views, self._names, strict=True):
            byteps.push_pull_inplace(view, name, op="sum")
        return array

    def facts(self) -> dict[str, str]:
        return {"byteps": byteps.__version__}

    def close(self) -> None:
        byteps.shutdown()


def start(*, rank: int, size: int, settings: dict[str, str]) -> Session:
    return Session(int(settings["tensors"]), settings["submit"])
