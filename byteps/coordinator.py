"""The scheduler's decisions: the course of a job, and the one cause of its end.

Phases (`membership`): gather workers and servers -> have workers with a share start their own services -> send the
plan -> all connected -> run (`agreement`) -> all gone.  Whatever ends the job is fixed here, first come first served,
as one sentence sent to everybody, so that every rank and server names the same cause.
Pure: events and the time in, actions out.  The process around it is `rendezvous`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from byteps.agreement import Agreement, Disagreement
from byteps.assign import Shares
from byteps.membership import Member, Membership, Refusal, loopback
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
    StartServices,
    Table,
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


@dataclass(eq=False)
class Coordinator:
    """One job's state."""

    settings: Settings
    job: str
    version: str
    started: float
    planned: Shares | None = None  # what a plan file says; None: shares by the NIC rates
    failure: Failed | None = None
    finished: bool = False
    awaited: int = 0  # processes that have not come yet and will want to know why the job cannot start
    membership: Membership = field(init=False)
    _agreement: Agreement | None = None  # once the plan is out
    _next_progress: float = PROGRESS_AFTER_SECONDS

    def __post_init__(self) -> None:
        self.membership = Membership(self.settings, self.version, self.planned)

    @property
    def running(self) -> bool:
        return self.membership.phase == "running"

    # ---- events ----

    def message(self, member_id: int, host: str, message: Message, now: float) -> Iterator[Step]:
        """A control message from a connection; the first one must be Register."""
        member = self.membership.members.get(member_id)
        if self.failure is not None or self.finished:
            if member is None:
                self.awaited -= 1
                yield Refuse(member_id, self.failure or Failed(kind="start", text="refused: the job is over"))
            return
        try:
            if member is None:
                yield from self._register(member_id, host, message, now)
            else:
                member.seen = now
                yield from self._handle(member, message, now)
        except Disagreement as verdict:
            yield from self._fail(verdict.kind, verdict.text)

    def disconnected(self, member_id: int) -> Iterator[Step]:
        """A control connection ended."""
        member = self.membership.members.get(member_id)
        if member is not None and not member.left and not self.finished:
            yield from self._fail("peer_lost", f"lost {member.name}: it left the scheduler without goodbye")

    def tick(self, now: float) -> Iterator[Step]:
        """Time passes: progress lines, deadlines, heartbeats."""
        if self.failure is not None or self.finished:
            return
        if not self.running:
            yield from self._check_start(now - self.started)
        for member in self.membership.members.values():
            silent = now - member.seen
            if not member.left and silent > self.settings.heartbeat_seconds:
                yield from self._fail("peer_lost", f"lost {member.name}: not heard of for {silent:.0f} s")
                return
        if self._agreement is not None:
            try:
                yield from self._notice(self._agreement.tick(now))
            except Disagreement as verdict:
                yield from self._fail(verdict.kind, verdict.text)

    # ---- the start ----

    def _check_start(self, waited: float) -> Iterator[Step]:
        limit = self.settings.start_seconds
        missing = self.membership.missing()
        if waited > limit:
            yield from self._fail("start", f"the job did not start within {limit:g} s: {missing}")
        elif waited >= self._next_progress:
            self._next_progress += PROGRESS_EVERY_SECONDS
            yield from self._notice(f"{missing}, waiting {waited:.0f} s of {limit:g} s{self._local_hint()}")

    def _local_hint(self) -> str:
        if not loopback(self.settings.root_host) or self.membership.phase != "gathering":
            return ""
        return f" (the scheduler's address {self.settings.root_host} is reached from this machine only)"

    def _register(self, member_id: int, host: str, message: Message, now: float) -> Iterator[Step]:
        if not isinstance(message, Register):
            yield Refuse(member_id, Failed(kind="start", text="the first message must register"))
            return
        try:
            self.membership.admit(member_id, host, message, now)
            yield from self._advance()
        except Refusal as refusal:
            if member_id not in self.membership.members:
                yield Refuse(member_id, Failed(kind="start", text=refusal.text))
            if refusal.final:
                expected = self.membership.size + self.settings.num_servers
                self.awaited = expected - len(self.membership.members) - 1
                yield from self._fail("start", refusal.text)

    def _advance(self) -> Iterator[Step]:
        """Enter the next phase if this one is complete."""
        membership = self.membership
        if membership.phase == "gathering" and membership.gathered():
            membership.settle()
            membership.phase = "services"
            if membership.shares is not None and membership.shares.notice:
                yield Log(membership.shares.notice)
            for worker in membership.workers:
                if membership.has_share(worker):
                    yield Send(worker.id, StartServices(rank=worker.rank))
        if membership.phase == "services" and membership.services_complete():
            services, processes = membership.plan()
            assert membership.shares is not None
            membership.phase = "connecting"
            table = TensorTable(
                shares=membership.shares.all,
                processes=processes,
                num_workers=self.settings.num_workers,
                partition=self.settings.partition,
                placement=self.settings.placement,
                nic_bytes_per_s=membership.slowest_bytes_per_s(),
            )
            self._agreement = Agreement(self.settings, table, membership.local_size)
            for member in membership.members.values():
                plan = Plan(
                    rank=member.rank if member.register.role == "worker" else -1,
                    num_workers=self.settings.num_workers,
                    local_size=membership.local_size,
                    services=() if member.register.local_rank else services,
                    job=self.job,
                )
                yield Send(member.id, plan)

    # ---- members' messages ----

    def _handle(self, member: Member, message: Message, now: float) -> Iterator[Step]:
        match message:
            case Heartbeat():
                pass
            case Ready():
                member.ready = True
                if self.membership.phase == "connecting" and all(worker.ready for worker in self.membership.everyone):
                    self.membership.phase = "running"
                    yield from self._everybody(Go())
            case Declare(specs=specs, barrier=barrier) if self._agreement is not None:
                if barrier:
                    entries = self._agreement.arrive(member.worker, specs, now)
                    if entries is not None:
                        yield from self._workers(Table(entries=entries, barrier=True))
                elif entries := self._agreement.declare(member.worker, specs):
                    yield from self._workers(Table(entries=entries, barrier=False))
                    if member.register.local_rank:
                        yield Send(member.id, Table(entries=(), barrier=False))
                else:  # nothing new: the declarer still waits for an answer before it sends its next batch
                    yield Send(member.id, Table(entries=(), barrier=False))
            case Waiting(name=name, seconds=seconds, ready=ready) if self._agreement is not None and name:
                yield from self._notice(self._agreement.waiting_inside(name, member.rank, seconds, ready, now))
            case Waiting(number=number, seconds=seconds, ready=ready) if self._agreement is not None:
                yield from self._notice(self._agreement.waiting(number, seconds, ready, now))
            case Lost(peer=peer):
                if not any(other.left for other in self.membership.members.values() if other.name == peer):
                    yield from self._fail("peer_lost", f"lost {peer}: it left {member.name} without goodbye")
            case Violation(text=text):
                yield from self._fail("mismatch", text)
            case Goodbye():
                yield from self._goodbye(member, message)
            case _:
                yield from self._fail("mismatch", f"{member.name} sent an unexpected {type(message).__name__}")

    def _goodbye(self, member: Member, goodbye: Goodbye) -> Iterator[Step]:
        if goodbye.error:
            yield from self._fail("peer_lost", f"{member.name} ended with {goodbye.error}")
        elif goodbye.outstanding:
            yield from self._fail("peer_lost", f"{member.name} left with {goodbye.outstanding} tensor(s) outstanding")
        elif not self.running:
            yield from self._fail("start", f"{member.name} left before the job started")
        elif member.register.role == "worker" and self._agreement is not None:
            member.left = True
            self._agreement.leave(member.worker)
            for other in self.membership.members.values():
                if other.register.role != "worker" and not member.register.local_rank:
                    yield Send(other.id, Departed(rank=member.rank))
            if all(worker.left for worker in self.membership.everyone):
                self.finished = True
                yield from self._everybody(Finish())
                yield Exit(0)

    # ---- sending ----

    def _notice(self, text: str) -> Iterator[Step]:
        if text:
            yield Log(text)
            yield from self._everybody(Notice(text=text))

    def _everybody(self, message: Message) -> Iterator[Step]:
        yield from _send(self.membership.members.values(), message)

    def _workers(self, table: Table) -> Iterator[Step]:
        """Who sends no gradients need not know where they go."""
        yield from _send(self.membership.workers, table)
        if table.barrier:
            others = (member for member in self.membership.everyone if member.register.local_rank)
            yield from _send(others, Table(entries=(), barrier=True))

    def _fail(self, kind: str, text: str) -> Iterator[Step]:
        """The job is over.  The first cause stands; what follows from it is not news."""
        if self.failure is None:
            self.failure = Failed(kind=kind, text=text)
            yield Log(text)
            yield from self._everybody(self.failure)
            yield Exit(1)


def _send(members: Iterable[Member], message: Message) -> Iterator[Step]:
    for member in members:
        yield Send(member.id, message)
