"""Arrays that live in the summation services: every worker adds to them when it likes, and gets the newest values.

What `byteps.torch` builds asynchronous training on, for numpy; `staleness` has the rules.
"""

from typing import Any

import msgspec
import numpy as np

from byteps.api import Handle, array_bytes, check_root, dtype_name, synchronize
from byteps.communication import NOTHING
from byteps.errors import BytePSError
from byteps.kernels import Array
from byteps.session import current, make_spec
from byteps.wire import MAX_STALENESS, Op, TensorSpec


def shared_spec(
    name: str | None, shape: tuple[int, ...], dtype: str, *, root: int, staleness: int | None
) -> TensorSpec:
    """The declaration of a shared array; ranks that disagree on the root are told by the services."""
    check_root(root)
    check_staleness(staleness)
    if name is None:
        raise BytePSError("a shared array needs a name, the same on every rank")
    spec = make_spec(name, shape, dtype, None, "sum")
    return msgspec.structs.replace(spec, op=Op.ADD, staleness=-1 if staleness is None else staleness)


def check_staleness(staleness: int | None) -> None:
    if staleness is not None and (
        isinstance(staleness, bool) or not isinstance(staleness, int) or not 0 <= staleness <= MAX_STALENESS
    ):
        raise BytePSError(
            f"staleness={staleness!r}; use the number of steps, 0 to {MAX_STALENESS}, that the fastest worker may be "
            "ahead of the slowest"
        )


class SharedArray:
    """An array that the services keep, under this name, for all workers.

    Every worker makes it, and then calls `add` in its own time.  With `staleness=s` a worker that is more than s calls
    ahead of the slowest waits in `add` until it is not; a worker that joins or leaves the job is waited for no more.
    """

    def __init__(self, initial: Array, name: str, *, root: int = 0, staleness: int | None = None) -> None:
        """`initial` is rank `root`'s; of the other ranks' only shape and type matter.  Waits for the root's."""
        initial = np.asarray(initial)
        self._session = current()
        self._spec = shared_spec(name, initial.shape, dtype_name(initial.dtype), root=root, staleness=staleness)
        self._dtype = initial.dtype
        self.initial = np.ascontiguousarray(initial) if self._session.rank == root else np.empty_like(initial)
        self._alone = self.initial.copy() if self._session.worker is None or not self._spec.nbytes else None
        if self._alone is None:
            source = array_bytes(self.initial) if self._session.rank == root else NOTHING
            self.initial = synchronize(self._start(source))

    def add(self, difference: Array) -> Array:
        """Add to the shared array; its newest values, the difference included, as a new array.

        Of int64 the sum wraps, as in numpy; 16-bit floats are kept in float32 and rounded for each answer.
        """
        return synchronize(self.add_async(difference))

    def add_async(self, difference: Array) -> Handle:
        """Start an `add`; `byteps.synchronize` returns its result.  The difference must not change before."""
        difference = np.asarray(difference)
        if difference.shape != self._spec.shape or difference.dtype != self._dtype:
            raise BytePSError(
                f"shared array {self._spec.name!r} has shape {self._spec.shape} {self._spec.dtype}; the difference has "
                f"shape {difference.shape} {difference.dtype}"
            )
        if self._alone is not None:
            self._alone = self._alone + difference
            return Handle(self._spec.name, None, self._alone.copy(), None)
        return self._start(array_bytes(np.ascontiguousarray(difference)))

    def join(self) -> Array:
        """This worker adds no more for now: wait until all have said so, or left; the values then, the same for all."""
        if self._alone is not None:
            return self._alone.copy()
        return synchronize(self._start(NOTHING))

    def _start(self, source: Any) -> Handle:
        result = np.empty(self._spec.shape, self._dtype)
        pending = self._session.submit(self._spec, source, array_bytes(result), 0)
        return Handle(self._spec.name, pending, result, None)
