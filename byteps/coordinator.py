"""The scheduler's decisions: who is in the job, the plan, the tensor table, and the one cause of its end.

Phases: gather workers and servers -> have workers with a share start their own services -> send the plan -> all connected
-> run -> all gone.  Whatever ends the job is fixed here, first come first served, as one sentence sent to everybody, so that
every rank and server names the same cause.
Pure: events and the time in, actions out.  The process around it is `rendezvous`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from byteps.assign import Shares, cluster_shares, paper_shares
from byteps.cluster import Cluster, Machine
from byteps.settings import Settings
from byteps.table import TensorTable
from byteps.wire import (
    Declare,
    Departed,
    Failed,
    Finish,
    Go,
    Goodbye,
    Heartbeat,
    Lost,
    Message,
    Notice,
    Plan,
    Ready,
    Register,
    ServiceInfo,
    StartServices,
    Table,
    TensorSpec,
    Violation,
    Waiting,
)

PROGRESS_AFTER_SECONDS = 5.0
PROGRESS_EVERY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Send:
    """A message for one member."""

    member: int
    message: Message


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell this connection why and close it; the job goes on."""

    member: int
    message: Failed


@dataclass(frozen=True, slots=True)
class Log:
    """A line on the scheduler's own output."""

    text: str


@dataclass(frozen=True, slots=True)
class Exit:
    """The scheduler is done."""

    code: int


Step = Send | Refuse | Log | Exit


@dataclass(eq=False, slots=True)
class Member:
    """A registered process."""

    id: int
    register: Register
    host: str
    seen: float
    name: str = ""
    ready: bool = False
    left: bool = False
    declared: dict[str, TensorSpec] | None = None  # set while it waits at a declare() barrier
    declared_at: float = 0.0


@dataclass(eq=False)
class Coordinator:
    """One job's state."""

    settings: Settings
    job: str
    version: str
    started: float
    members: dict[int, Member] = field(default_factory=dict)
    phase: str = "gathering"  # then "services", "connecting", "running"; "failed" at any time
    failure: Failed | None = None
    _machines: list[str] = field(default_factory=list)  # server machines in order of arrival
    _shares: Shares | None = None
    _table: TensorTable | None = None
    _first_rank: dict[str, int] = field(default_factory=dict)  # who declared a tensor first
    _warned: set[object] = field(default_factory=set)
    _next_progress: float = PROGRESS_AFTER_SECONDS

    # ---- events ----

    def message(self, member_id: int, host: str, message: Message, now: float) -> Iterator[Step]:
        """A control message from a connection; the first one must be Register."""
        member = self.members.get(member_id)
        if self.failure is not None:
            if member is None:
                yield Refuse(member_id, self.failure)
            return
        if member is None:
            if isinstance(message, Register):
                yield from self._register(member_id, host, message, now)
            else:
                yield Refuse(member_id, Failed(kind="start", text="the first message must register"))
            return
        member.seen = now
        match message:
            case Heartbeat():
                pass
            case Ready():
                yield from self._ready(member)
            case Declare():
                yield from self._declare(member, message, now)
            case Lost(peer=peer):
                if not any(other.left for other in self.members.values() if other.name == peer):
                    yield from self._fail("peer_lost", f"lost {peer}: {member.name} saw its connection close without goodbye")
            case Waiting():
                yield from self._waiting(message)
            case Violation(text=text):
                yield from self._fail("mismatch", text)
            case Goodbye(outstanding=outstanding):
                yield from self._goodbye(member, outstanding)
            case _:
                yield from self._fail("mismatch", f"{member.name} sent an unexpected {type(message).__name__}")

    def disconnected(self, member_id: int) -> Iterator[Step]:
        """A control connection ended."""
        member = self.members.get(member_id)
        if member is None or member.left or self.failure is not None:
            return
        yield from self._fail("peer_lost", f"lost {member.name}: its connection to the scheduler closed without goodbye")

    def tick(self, now: float) -> Iterator[Step]:
        """Time passes: progress lines, deadlines, heartbeats."""
        if self.failure is not None:
            return
        waited = now - self.started
        if self.phase != "running" and waited >= self._next_progress:
            self._next_progress += PROGRESS_EVERY_SECONDS
            text = f"{self._missing()}, waiting {waited:.0f} s of {self.settings.start_seconds:.0f} s"
            yield Log(text)
            yield from self._everybody(Notice(text=text))
        if self.phase != "running" and waited > self.settings.start_seconds:
            yield from self._fail("start", f"the job did not start within {self.settings.start_seconds:.0f} s: {self._missing()}")
            return
        for member in self.members.values():
            if not member.left and now - member.seen > self.settings.heartbeat_seconds:
                yield from self._fail("peer_lost", f"lost {member.name}: not heard of for {now - member.seen:.0f} s")
                return
        yield from self._check_barrier(now)

    # ---- registration ----

    def _register(self, member_id: int, host: str, register: Register, now: float) -> Iterator[Step]:
        settings = self.settings
        problem = ""
        if (register.num_workers, register.num_servers) != (settings.num_workers, settings.num_servers):
            problem = (
                f"a {register.role} at {host} is configured for {register.num_workers} workers and {register.num_servers} servers, "
                f"the scheduler for {settings.num_workers} and {settings.num_servers}; give every role the same numbers"
            )
        elif register.version != self.version:
            problem = f"a {register.role} at {host} runs version {register.version}, the scheduler {self.version}; install the same"
        elif self.phase != "gathering" and register.role != "service":
            yield Refuse(member_id, Failed(kind="start", text=f"refused: the job has all its {register.role}s already"))
            return
        if problem and self.phase == "gathering":
            yield Refuse(member_id, Failed(kind="start", text=problem))
            yield from self._fail("start", problem)
            return
        if problem:
            yield Refuse(member_id, Failed(kind="start", text=problem))
            return
        member = Member(id=member_id, register=register, host=host, seen=now)
        problem = self._identify(member)
        if problem:
            yield Refuse(member_id, Failed(kind="start", text=problem))
            if self.phase == "gathering":
                yield from self._fail("start", problem)
            return
        self.members[member_id] = member
        yield from self._advance()

    def _identify(self, member: Member) -> str:
        """Give the member its name; or say why it cannot be one."""
        register = member.register
        if register.role == "worker":
            taken = {other.register.rank for other in self._workers()}
            if register.rank in taken:
                return f"two workers claim rank {register.rank} (the second at {member.host}); give each its own DMLC_WORKER_ID"
            member.name = f"worker {register.rank}"  # renamed when ranks are given out, if it is -1
        elif register.role == "server":
            if register.machine not in self._machines:
                if len(self._machines) == self.settings.num_servers:
                    return f"a surplus server at {member.host}: the job has all its {self.settings.num_servers} servers"
                self._machines.append(register.machine)
            member.name = f"server {self._machines.index(register.machine)}"
        elif register.role == "service":
            member.name = f"summation service of worker {register.rank}"
        else:
            return f"role {register.role!r} is none; use worker, server or service"
        if register.processes > 1:
            member.name += f" (process {register.process + 1} of {register.processes})"
        return ""

    def _workers(self) -> list[Member]:
        return [member for member in self.members.values() if member.register.role == "worker"]

    def _machine_processes(self, machine: str) -> list[Member]:
        found = [m for m in self.members.values() if m.register.role == "server" and m.register.machine == machine]
        return sorted(found, key=lambda member: member.register.process)

    def _own_services(self, rank: int) -> list[Member]:
        found = [m for m in self.members.values() if m.register.role == "service" and m.register.rank == rank]
        return sorted(found, key=lambda member: member.register.process)

    def _complete(self, processes: Sequence[Member]) -> bool:
        return bool(processes) and len(processes) == processes[0].register.processes

    def _missing(self) -> str:
        """What the start waits for, in words."""
        n, k = self.settings.num_workers, self.settings.num_servers
        workers = self._workers()
        servers = sum(self._complete(self._machine_processes(machine)) for machine in self._machines)
        if self.phase == "gathering":
            text = f"{len(workers)} of {n} workers and {servers} of {k} servers registered"
            wanted = [rank for rank in range(n) if rank not in {member.register.rank for member in workers}]
            if len(workers) < n:
                anonymous = sum(member.register.rank < 0 for member in workers)
                text += f", missing {n - len(workers)} worker(s)" if anonymous else f", missing rank {_join(wanted)}"
            if servers < k:
                text += f", missing {k - servers} server(s)"
            return text
        if self.phase == "services":
            ranks = [m.register.rank for m in workers if self._has_share(m) and not self._complete(self._own_services(m.register.rank))]
            return f"the summation service of worker {_join(ranks)} has not registered yet"
        ranks = [member.register.rank for member in workers if not member.ready]
        return f"worker {_join(ranks)} is not connected to every summation service yet (firewall, or wrong interface?)"

    def _has_share(self, worker: Member) -> bool:
        return self._shares is not None and self._shares.gpu[worker.register.rank] > 0

    def _advance(self) -> Iterator[Step]:
        """Enter the next phase if this one is complete."""
        workers = self._workers()
        if self.phase == "gathering":
            machines = [self._machine_processes(machine) for machine in self._machines]
            if len(workers) < self.settings.num_workers or len(machines) < self.settings.num_servers:
                return
            if not all(self._complete(processes) for processes in machines):
                return
            self._give_ranks(workers)
            self._shares = self._plan_shares(workers)
            if self._shares.notice:
                yield Log(self._shares.notice)
            self.phase = "services"
            for worker in workers:
                if self._has_share(worker):
                    yield Send(worker.id, StartServices(rank=worker.register.rank))
        if self.phase == "services":
            if not all(self._complete(self._own_services(w.register.rank)) for w in workers if self._has_share(w)):
                return
            self.phase = "connecting"
            yield from self._send_plan(workers)

    def _give_ranks(self, workers: list[Member]) -> None:
        free = iter(sorted(set(range(len(workers))) - {worker.register.rank for worker in workers}))
        for worker in workers:
            if worker.register.rank < 0:
                worker.register = _with_rank(worker.register, next(free))
                worker.name = f"worker {worker.register.rank}"

    def _plan_shares(self, workers: list[Member]) -> Shares:
        ordered = sorted(workers, key=lambda worker: worker.register.rank)
        rates = [worker.register.nic_bytes_per_s for worker in ordered]
        server_rates = [self._machine_processes(machine)[0].register.nic_bytes_per_s for machine in self._machines]
        if len(rates) == 1 or not all([*rates, *server_rates]) or len({*rates, *server_rates}) == 1:
            return paper_shares(len(rates), len(server_rates))
        gpu = tuple(Machine(name=f"worker{i}", role="gpu", nic_bytes_per_s=rate) for i, rate in enumerate(rates))
        cpu = tuple(Machine(name=f"server{i}", role="cpu", nic_bytes_per_s=rate) for i, rate in enumerate(server_rates))
        return cluster_shares(Cluster(machines=gpu + cpu))

    def _send_plan(self, workers: list[Member]) -> Iterator[Step]:
        assert self._shares is not None
        ordered = sorted(workers, key=lambda worker: worker.register.rank)
        machines = [self._own_services(w.register.rank) for w in ordered]
        machines += [self._machine_processes(machine) for machine in self._machines]
        services = []
        processes = []
        for index, (members, share) in enumerate(zip(machines, self._shares.all, strict=True)):
            # A machine without a share keeps its place in the owner order with one process that nobody connects to.
            processes.append(max(len(members), 1))
            for position in range(processes[-1]):
                member = members[position] if members else None
                services.append(
                    ServiceInfo(
                        name=member.name if member else f"summation service of worker {index}",
                        address=member.register.address if member else "",
                        share=share / processes[-1],
                        worker=index if index < len(ordered) else -1,
                    )
                )
        remote = [m for m in self.members.values() if not _loopback(m.host)]
        local = [m for m in self.members.values() if m.register.role != "worker" and m.register.local]
        if remote and local:
            yield from self._fail(
                "start",
                f"{local[0].name} listens on {local[0].register.address}, which is a loopback address, but {remote[0].name} is on "
                f"{remote[0].host}; set DMLC_NODE_HOST or DMLC_INTERFACE there to an address that others can reach",
            )
            return
        rates = [m.register.nic_bytes_per_s for m in self.members.values() if m.register.nic_bytes_per_s]
        self._table = TensorTable(
            shares=self._shares.all,
            processes=processes,
            num_workers=len(ordered),
            partition=self.settings.partition,
            placement=self.settings.placement,
            nic_bytes_per_s=min(rates) if rates else None,
        )
        for member in self.members.values():
            rank = member.register.rank if member.register.role == "worker" else -1
            yield Send(member.id, Plan(rank=rank, num_workers=len(ordered), services=tuple(services), job=self.job))

    def _ready(self, member: Member) -> Iterator[Step]:
        member.ready = True
        if self.phase == "connecting" and all(worker.ready for worker in self._workers()):
            self.phase = "running"
            yield from self._everybody(Go())

    # ---- running ----

    def _declare(self, member: Member, declare: Declare, now: float) -> Iterator[Step]:
        assert self._table is not None
        for spec in declare.specs:
            entry = self._table.entries.get(spec.name)
            others = [(other.register.rank, other.declared[spec.name]) for other in self._workers()
                      if other.declared and spec.name in other.declared]  # fmt: skip
            known = [(rank, theirs) for rank, theirs in others if theirs != spec]
            if entry is not None and entry.spec != spec:
                known.insert(0, (self._first_rank[spec.name], entry.spec))
            if known:
                rank, theirs = known[0]
                text = f"tensor {spec.name!r}: rank {rank} has {theirs.describe()}, rank {member.register.rank} has {spec.describe()}"
                yield from self._fail("mismatch", text)
                return
        for spec in declare.specs:
            self._first_rank.setdefault(spec.name, member.register.rank)
        if not declare.barrier:
            entries = self._table.register(declare.specs)
            if entries:
                yield from self._workers_only(Table(entries=entries, barrier=False))
            return
        member.declared = {spec.name: spec for spec in declare.specs}
        member.declared_at = now
        waiting = [worker for worker in self._workers() if worker.declared is not None]
        if len(waiting) < len(self._workers()):
            return
        common = set.intersection(*(set(worker.declared or ()) for worker in waiting))
        extra = {worker.register.rank: sorted(set(worker.declared or ()) - common) for worker in waiting}
        if any(extra.values()):
            listed = "; ".join(f"only rank {rank} has {_join(names[:5])}" for rank, names in sorted(extra.items()) if names)
            yield from self._fail("mismatch", f"declare(): the name sets differ: {_shorten(listed, extra, len(waiting))}")
            return
        for worker in waiting:
            worker.declared = None
        yield from self._workers_only(Table(entries=self._table.register(declare.specs), barrier=True))

    def _check_barrier(self, now: float) -> Iterator[Step]:
        waiting = [worker for worker in self._workers() if worker.declared is not None]
        if not waiting:
            self._warned.discard("declare")
            return
        seconds = now - min(worker.declared_at for worker in waiting)
        ready = _join(sorted(worker.register.rank for worker in waiting))
        missing = _join(sorted(worker.register.rank for worker in self._workers() if worker.declared is None))
        yield from self._stall("declare", "declare()", seconds, ready, missing)

    def _waiting(self, waiting: Waiting) -> Iterator[Step]:
        name = self._table.names[waiting.number] if self._table and waiting.number < len(self._table.names) else "?"
        missing_ranks = [w.register.rank for w in self._workers() if w.register.rank not in waiting.ready]
        gone = sorted(w.register.rank for w in self._workers() if w.left and w.register.rank in missing_ranks)
        if gone:
            text = f"worker {_join(gone)} has left (shutdown) while tensor {name!r} needs its contribution"
            yield from self._fail("stall", f"{text}; every worker must submit the same tensors before it leaves")
            return
        yield from self._stall(
            waiting.number, f"tensor {name!r}", waiting.seconds, _join(sorted(waiting.ready)), _join(sorted(missing_ranks))
        )

    def _stall(self, key: object, what: str, seconds: float, ready: str, missing: str) -> Iterator[Step]:
        text = f"{what} waits for rank {missing} for {seconds:.0f} s; ready: rank {ready}"
        if seconds >= self.settings.stall_seconds:
            yield from self._fail("stall", f"stalled: {text}; the limit is {self.settings.stall_seconds:.0f} s (BYTEPS_STALL_TIMEOUT)")
        elif seconds >= self.settings.stall_warn_seconds and key not in self._warned:
            self._warned.add(key)
            yield Log(f"stall: {text}")
            yield from self._everybody(Notice(text=f"stall: {text}"))

    def _goodbye(self, member: Member, outstanding: int) -> Iterator[Step]:
        if outstanding:
            yield from self._fail("peer_lost", f"{member.name} left with {outstanding} tensor(s) outstanding")
            return
        member.left = True
        if member.register.role == "worker":
            for other in self.members.values():
                if other.register.role != "worker":
                    yield Send(other.id, Departed(rank=member.register.rank))
        if self.phase == "running" and all(worker.left for worker in self._workers()):
            yield from self._everybody(Finish())
            yield Exit(0)
        elif self.phase != "running":
            yield from self._fail("start", f"{member.name} left before the job started")

    # ---- sending ----

    def _everybody(self, message: Message) -> Iterator[Step]:
        for member in self.members.values():
            yield Send(member.id, message)

    def _workers_only(self, message: Message) -> Iterator[Step]:
        for worker in self._workers():
            yield Send(worker.id, message)

    def _fail(self, kind: str, text: str) -> Iterator[Step]:
        if self.failure is not None:
            return
        self.failure = Failed(kind=kind, text=text)
        self.phase = "failed"
        yield Log(text)
        yield from self._everybody(self.failure)
        yield Exit(1)


def _with_rank(register: Register, rank: int) -> Register:
    return msgspec.structs.replace(register, rank=rank)


def _join(items: Sequence[object]) -> str:
    return ", ".join(str(item) for item in items)


def _shorten(listed: str, extra: dict[int, list[str]], num_workers: int) -> str:
    longest = max(len(names) for names in extra.values())
    return listed if longest <= 5 else f"{listed} ... ({longest} names in the longest list)"


def _loopback(host: str) -> bool:
    return host.startswith("127.") or host in ("::1", "")
