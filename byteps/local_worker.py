"""A worker whose machine's workers are summed together first: a worker as any other to the scheduler, and a member of
its machine's group for everything that has bytes.

All workers register, declare and leave one by one, so that mismatches, stalls and deaths have the same words as
elsewhere.  Only local rank 0 has connections to summation services.
"""

import math
from collections.abc import Callable
from typing import Protocol

from byteps.communication import Pending
from byteps.errors import BytePSError
from byteps.local_layout import refusal
from byteps.local_link import address, join_root, meet_as_root
from byteps.local_reduce import LocalGroup
from byteps.local_root import LocalRoot
from byteps.settings import Settings
from byteps.trace import Span
from byteps.wire import TensorSpec
from byteps.worker import Worker


class Participant(Protocol):
    """What a session needs of a `Worker`, or of a `LocalWorker`."""

    @property
    def rank(self) -> int: ...

    @property
    def local_host(self) -> str: ...

    def declare(self, specs: list[TensorSpec]) -> None: ...

    def submit(
        self, spec: TensorSpec, source: memoryview, target: memoryview, priority: int, timing: Span | None = None
    ) -> Pending: ...

    def wait(self, pending: Pending, seconds: float = math.inf) -> bool: ...

    def relax(self) -> None: ...

    def shutdown(self, error: str = "") -> None: ...

    def abandon(self) -> None: ...


class LocalWorker:
    """One of several workers of a machine, from registration to goodbye."""

    def __init__(self, settings: Settings) -> None:
        """Joins the job, and the group of its machine."""
        self.rank = settings.rank
        self._settings = settings
        self._first = settings.rank_of(0)
        self._error: BytePSError | None = None
        self._group: LocalGroup | None = None
        self._worker = Worker(settings, meet=self._meet, failed=self._failed)

    @property
    def local_host(self) -> str:
        return self._worker.local_host

    @property
    def group(self) -> LocalGroup:
        """For whoever fills slots itself."""
        assert self._group is not None
        return self._group

    # ---- the user's calls ----

    def declare(self, specs: list[TensorSpec]) -> None:
        for spec in specs:
            self._check(spec)
        self._worker.declare(specs)

    def submit(
        self, spec: TensorSpec, source: memoryview, target: memoryview, priority: int, timing: Span | None = None
    ) -> Pending:
        """Start one round of a tensor of at least one byte; source and target may be NOTHING."""
        self._check(spec)
        return self.group.submit(spec, source, target, priority, timing)

    def _check(self, spec: TensorSpec) -> None:
        if why := refusal(spec):
            raise BytePSError(why)

    def wait(self, pending: Pending, seconds: float = math.inf) -> bool:
        return self._worker.wait(pending, seconds)

    def relax(self) -> None:
        self._worker.relax()

    def shutdown(self, error: str = "") -> None:
        if not self._worker.is_child:
            self.group.leave()
            self._worker.shutdown(error, self.group.outstanding)
            self.group.close()

    def abandon(self) -> None:
        self._worker.abandon()
        self.group.abandon()

    # ---- joining, and the end ----

    def _meet(self, worker: Worker) -> None:
        """Connect to the others of this machine."""
        settings, size = self._settings, self._settings.workers_per_machine
        self._worker = worker  # its constructor has not returned yet
        where = address(worker.plan.job, settings.secret, settings.worker_id)
        if settings.local_rank:
            root = join_root(where, settings.secret, settings.local_rank, worker.start_deadline, self._name(0))
            self._group = LocalGroup(rank=settings.local_rank, size=size, sockets={0: root}, around=self)
        else:
            others = meet_as_root(where, settings.secret, size, worker.start_deadline, self._name)
            self._group = LocalRoot(
                size=size,
                machines=settings.num_workers,
                networked=settings.networked,
                stall_warn_seconds=settings.stall_warn_seconds,
                sockets=others,
                around=self,
            )
        if self._error is not None:
            self._group.fail(self._error)

    def _name(self, local_rank: int) -> str:
        return f"worker {self._first + local_rank}"

    def _failed(self, error: BytePSError) -> None:
        self._error = error
        if self._group is not None:
            self._group.fail(error)

    # ---- what the group needs ----

    def announce(self, spec: TensorSpec) -> None:
        self._worker.announce(spec)

    def send(
        self, spec: TensorSpec, source: memoryview, target: memoryview, priority: int, answered: Callable[[], None]
    ) -> None:
        self._worker.submit(spec, source, target, priority, answered=answered)

    def lost(self, local_rank: int) -> None:
        self._worker.lost(self._name(local_rank))

    def violated(self, text: str) -> None:
        self._worker.violated(f"{self._name(self._settings.local_rank)}: {text}")

    def waiting(self, name: str, seconds: float, ready: tuple[int, ...]) -> None:
        self._worker.report(name, seconds, tuple(self._first + one for one in ready))
