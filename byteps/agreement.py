"""What the workers of a running job must agree on: every tensor's name, shape, type and operation, and who submits it.

A tensor's first declaration defines it; a later one that differs is a mismatch, final for the job.  A barrier
compares the name sets of all workers.  A tensor or a barrier that only some ranks reach is a stall: first lines,
later an error, and an error at once if a missing rank has left. Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Collection, Sequence

from byteps.local_layout import ranks_of
from byteps.membership import join
from byteps.settings import Settings
from byteps.table import TensorTable
from byteps.wire import Op, TensorEntry, TensorSpec

_NAMES_SHOWN = 5
_FRESH_SECONDS = 5.0  # the workers of a machine say once a second for whom they wait


class Disagreement(Exception):
    """The job cannot go on; `kind` is a key of errors.KINDS."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class Agreement:
    """The tensor table, the barrier under way, and who waits for whom."""

    def __init__(self, settings: Settings, table: TensorTable, local_size: int = 1) -> None:
        """`local_size` workers of each machine are summed there."""
        self._settings = settings
        self._table = table
        self._local_size = local_size
        self._ranks = range(settings.num_workers * local_size)
        self._first_rank: dict[str, int] = {}  # who declared a tensor first
        self._declared: dict[int, dict[str, TensorSpec]] = {}  # at the barrier, by rank
        self._barrier_since = 0.0
        self._left: set[int] = set()
        self._warned: dict[str, float] = {}  # for how many seconds something had stalled when its last line was printed
        self._inside: dict[
            tuple[str, int], tuple[float, frozenset[int]]
        ] = {}  # by tensor and machine: when, who is ready

    # ---- tensors ----

    def declare(self, rank: int, specs: Sequence[TensorSpec]) -> tuple[TensorEntry, ...]:
        """Register what is new in a worker's batch; Disagreement if anything contradicts an earlier declaration."""
        self._compare(rank, specs)
        return self._table.register(specs)

    def arrive(self, rank: int, specs: Sequence[TensorSpec], now: float) -> tuple[TensorEntry, ...] | None:
        """A worker reaches the barrier; what is new once all are there, else None."""
        self._compare(rank, specs)
        if not self._declared:
            self._barrier_since = now
        self._declared[rank] = {spec.name: spec for spec in specs}
        if len(self._declared) < len(self._ranks):
            return None
        names = [set(declared) for declared in self._declared.values()]
        odd = sorted(names[0].union(*names) - names[0].intersection(*names))
        if odd:
            text = "; ".join(self._who_has(name) for name in odd[:_NAMES_SHOWN])
            more = f" and {len(odd) - _NAMES_SHOWN} more" if len(odd) > _NAMES_SHOWN else ""
            raise Disagreement("mismatch", f"declare(): the name sets differ: {text}{more}")
        self._declared.clear()
        return self._table.register(specs)

    def _who_has(self, name: str) -> str:
        have = [rank for rank in self._ranks if name in self._declared[rank]]
        lack = [rank for rank in self._ranks if rank not in have]
        return f"{name!r} is declared by rank {join(have)}, not by rank {join(lack)}"

    def _compare(self, rank: int, specs: Sequence[TensorSpec]) -> None:
        for spec in specs:
            if spec.members and rank not in spec.members:
                raise Disagreement("mismatch", f"tensor {spec.name!r}: rank {rank} has {spec.describe()}")
            known = [
                (other, declared[spec.name]) for other, declared in self._declared.items() if spec.name in declared
            ]
            if (entry := self._table.entries.get(spec.name)) is not None:
                known.insert(0, (self._first_rank[spec.name], entry.spec))
            for other, theirs in known:
                if theirs != spec:
                    odd = f"rank {rank} has" if rank != other else "and now has"
                    text = f"rank {other} has {theirs.describe()}, {odd} {spec.describe()}"
                    raise Disagreement("mismatch", f"tensor {spec.name!r}: {text} ({_difference(theirs, spec)})")
        for spec in specs:
            self._first_rank.setdefault(spec.name, rank)

    # ---- waiting ----

    def leave(self, rank: int) -> None:
        """A worker said goodbye; what still needs it, waits in vain."""
        self._left.add(rank)
        self._check_left("declare()", self._ranks, self._declared)

    def waiting(self, number: int, seconds: float, ready: Collection[int], now: float = 0.0) -> str:
        """A summation service waits for some machines' contributions to a tensor; the line to print about it, if one is
        due."""
        if not 0 <= number < len(self._table.names):
            return ""  # a worker's verdict on a stray key is on its way
        name = self._table.names[number]
        machines = self._table.entries[name].spec.members or range(self._settings.num_workers)
        return self._wait(name, machines, seconds, set(ready), now)

    def waiting_inside(self, name: str, machine: int, seconds: float, ready: Collection[int], now: float) -> str:
        """The same of a machine that waits for some of its workers; `ready` are ranks."""
        if name not in self._table.entries:
            return ""
        self._inside[name, machine] = now, frozenset(ready)
        machines = [one for one in range(self._settings.num_workers) if self._fresh(name, one, now)]
        return self._wait(name, machines, seconds, set(), now)

    def _fresh(self, name: str, machine: int, now: float) -> Collection[int]:
        """Who is ready on a machine that waits for others of its own, as it has said just now."""
        said, ready = self._inside.get((name, machine), (0.0, frozenset()))
        return ready if ready and now - said < _FRESH_SECONDS else ()

    def _wait(self, name: str, machines: Sequence[int], seconds: float, done: Collection[int], now: float) -> str:
        """Some of these machines are done; of the others those workers are ready of which we know."""
        ranks, ready = ranks_of(machines, self._local_size), set(ranks_of(sorted(done), self._local_size))
        for machine in machines:
            ready.update(self._fresh(name, machine, now))
        if self._table.entries[name].spec.op is not Op.ADD:  # who leaves holds nobody back
            self._check_left(f"tensor {name!r}", ranks, ready)
        return self._stall(f"tensor {name!r}", ranks, seconds, ready)

    def tick(self, now: float) -> str:
        """Time passes at the barrier; the line to print about it, if one is due."""
        if not self._declared:
            return ""
        self._check_left("declare()", self._ranks, self._declared)
        return self._stall("declare()", self._ranks, now - self._barrier_since, self._declared)

    def _check_left(self, what: str, ranks: Sequence[int], ready: Collection[int]) -> None:
        gone = sorted(self._left.intersection(ranks) - set(ready))
        if ready and gone:
            raise Disagreement(
                "stall",
                f"rank {join(gone)} left (shutdown) while {what} needs its contribution; "
                "every worker must submit the same tensors before it leaves",
            )

    def _stall(self, what: str, ranks: Sequence[int], seconds: float, ready: Collection[int]) -> str:
        limit, every = self._settings.stall_seconds, self._settings.stall_warn_seconds
        missing = [rank for rank in ranks if rank not in ready]
        text = f"{what} waits for rank {join(missing)} for {seconds:.0f} s; ready: rank {join(sorted(ready))}"
        if seconds >= limit:
            raise Disagreement("stall", f"stalled: {text}; the limit is {limit:g} s (BYTEPS_STALL_TIMEOUT)")
        last = self._warned.get(what, 0.0)
        if last > seconds:  # an earlier stall, since resolved
            last = 0.0
        if seconds - last < every:
            return ""
        self._warned[what] = seconds
        return f"stall: {text}"


def _difference(first: TensorSpec, second: TensorSpec) -> str:
    """Which parts of two declarations of a name differ, in words."""
    parts = {"shape": "shape", "dtype": "type", "op": "operation", "members": "members"}
    parts |= {"staleness": "staleness", "codec": "codec"}
    odd = [word for name, word in parts.items() if getattr(first, name) != getattr(second, name)]
    return f"{' and '.join(odd)} of a name must stay the same on every rank and in every call"
