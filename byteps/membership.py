"""Who is in the job: registration, ranks and numbers, what the start still waits for, and the plan.

A job gathers its workers and server machines; then workers whose machine has a share start their own summation
services; then the plan goes out and everybody connects.  A newcomer whose world size or version differs is a sign
that the job is misconfigured, so until the plan is out it ends the job everywhere; afterwards, and when it is merely
one too many, only the newcomer is refused.

Where several workers of a machine are summed there, all of them register; the first of each machine stands for it in
everything that has to do with gradients.  Machines are numbered, and workers ranked machine by machine.
Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from byteps.assign import Shares, cluster_shares, paper_shares
from byteps.cluster import Cluster, Machine
from byteps.settings import Settings
from byteps.wire import Register, ServiceInfo

Phase = Literal["gathering", "services", "connecting", "running"]


class Refusal(Exception):
    """Why a newcomer cannot join; `final` says that the job cannot start either."""

    def __init__(self, text: str, *, final: bool) -> None:
        super().__init__(text)
        self.text = text
        self.final = final


@dataclass(eq=False, slots=True)
class Member:
    """A registered process."""

    id: int
    register: Register
    host: str
    seen: float  # when it was last heard of
    name: str
    ready: bool = False
    left: bool = False

    @property
    def rank(self) -> int:
        """Of the machine, or number of the server."""
        return self.register.rank

    @property
    def worker(self) -> int:
        """A worker's own rank."""
        return self.register.rank * self.register.local_size + self.register.local_rank


@dataclass(eq=False)
class Membership:
    """All members of one job, and how far its start has come."""

    settings: Settings
    version: str
    planned: Shares | None = None  # by a plan file; None: shares by the NIC rates
    phase: Phase = "gathering"
    members: dict[int, Member] = field(default_factory=dict)  # by connection
    shares: Shares | None = None  # known from phase "services" on

    @property
    def everyone(self) -> list[Member]:
        """All workers, by rank; those without one yet come first, in order of arrival."""
        return sorted((m for m in self.members.values() if m.register.role == "worker"), key=lambda m: m.worker)

    @property
    def workers(self) -> list[Member]:
        """One per machine, by rank: the worker that sends gradients."""
        return [worker for worker in self.everyone if worker.register.local_rank == 0]

    @property
    def local_size(self) -> int:
        """Workers that are summed on each machine, as the first of them said."""
        return next((m.register.local_size for m in self.members.values() if m.register.role == "worker"), 1)

    @property
    def size(self) -> int:
        """The number of workers, once the first has registered."""
        return self.settings.num_workers * self.local_size

    @property
    def networked(self) -> bool:
        """Whether there are summation services."""
        return self.settings.networked

    # ---- registration ----

    def admit(self, member_id: int, host: str, register: Register, now: float) -> Member:
        """Take the newcomer in, or raise Refusal."""
        self._check_configuration(host, register)
        checks: dict[str, Callable[[str, Register], str]] = {
            "worker": self._admit_worker,
            "server": self._admit_server,
            "service": self._admit_service,
        }
        if register.role not in checks:
            raise Refusal(f"role {register.role!r} is none; use worker, server or service", final=False)
        name = checks[register.role](host, register)
        if register.processes > 1:
            name += f" (process {register.process + 1} of {register.processes})"
        member = self.members[member_id] = Member(id=member_id, register=register, host=host, seen=now, name=name)
        return member

    def _check_configuration(self, host: str, register: Register) -> None:
        ours = self.settings.num_workers, self.settings.num_servers
        early = self.phase in ("gathering", "services")
        if (register.num_workers, register.num_servers) != ours:
            raise Refusal(
                f"a {register.role} at {host} is configured for {register.num_workers} workers and "
                f"{register.num_servers} servers, the scheduler for {ours[0]} and {ours[1]}; give every role the same",
                final=early,
            )
        if register.version != self.version:
            raise Refusal(
                f"a {register.role} at {host} runs version {register.version}, the scheduler {self.version}; "
                "install the same",
                final=early,
            )

    def _admit_worker(self, host: str, register: Register) -> str:
        workers = self.everyone
        rank = register.rank * register.local_size + register.local_rank
        if self.phase == "gathering":
            self._check_local_size(host, register)
            for other in workers:
                if register.rank >= 0 and other.worker == rank:
                    own = "DMLC_WORKER_ID" if register.local_size == 1 else "DMLC_WORKER_ID and BYTEPS_LOCAL_RANK"
                    raise Refusal(
                        f"two workers claim rank {rank}, one at {other.host} and one at {host}; "
                        f"give each its own {own}",
                        final=True,
                    )
        if self.phase != "gathering" or len(workers) == self.size:
            raise Refusal(f"a worker at {host} is one too many: all {len(workers)} are there already", final=False)
        if not -1 <= register.rank < self.settings.num_workers:
            raise Refusal(f"rank {register.rank} at {host} is not below {self.settings.num_workers}", final=False)
        return f"worker {rank}" if register.rank >= 0 else f"worker at {host}"

    def _check_local_size(self, host: str, register: Register) -> None:
        """An average over machines is one over workers only if each machine has as many."""
        first = next(iter(self.everyone), None)
        if first is not None and first.register.local_size != register.local_size:
            raise Refusal(
                f"a worker at {host} is one of {register.local_size} of its machine, one at {first.host} one of "
                f"{first.register.local_size}; give every machine as many (BYTEPS_LOCAL_SIZE), or start all with "
                "BYTEPS_LOCAL_REDUCTION=0",
                final=True,
            )
        if register.local_size > 1 and register.rank < 0:
            raise Refusal(
                f"a worker at {host} is one of {register.local_size} of its machine and does not say which machine "
                "that is; set DMLC_WORKER_ID to its number",
                final=True,
            )

    def _admit_server(self, host: str, register: Register) -> str:
        machines = self._server_machines()
        known = machines.get(register.machine, [])
        if not known and (self.phase != "gathering" or len(machines) == self._num_servers):
            raise Refusal(f"a server at {host} is one too many: all {len(machines)} are there already", final=False)
        if any(other.register.process == register.process for other in known) or self.phase != "gathering":
            raise Refusal(f"a server at {host} registers twice", final=False)
        for machine, members in machines.items():
            if register.rank >= 0 and machine != register.machine and members[0].rank == register.rank:
                raise Refusal(
                    f"two servers claim number {register.rank}, one at {members[0].host} and one at {host}; "
                    "give each its own DMLC_SERVER_ID, or none",
                    final=True,
                )
        return f"server {register.rank}" if register.rank >= 0 else f"server at {host}"

    def _admit_service(self, host: str, register: Register) -> str:
        name = f"summation service of worker {register.rank * self.local_size}"
        wanted = self.phase == "services" and any(w.rank == register.rank and self.has_share(w) for w in self.workers)
        if not wanted or any(m.register.process == register.process for m in self._own_services(register.rank)):
            raise Refusal(f"a {name} at {host} is one too many", final=False)
        return name

    # ---- progress ----

    def gathered(self) -> bool:
        """Whether all workers and all processes of all servers are here."""
        machines = self._server_machines().values()
        return len(self.everyone) == self.size and len(machines) == self._num_servers and all(map(_complete, machines))

    @property
    def _num_servers(self) -> int:
        return self.settings.num_servers if self.networked else 0

    def settle(self) -> None:
        """Give ranks and numbers to those that asked for none, and shares to all machines."""
        _number([[worker] for worker in self.workers], "worker")
        _number(list(self._server_machines().values()), "server")
        servers = [members[0] for members in self._server_machines().values()]
        if self.settings.placement == "hash":  # owns slots of [0, D) whatever the NICs are
            self.shares = paper_shares(len(self.workers), len(servers))
        else:
            self.shares = self.planned or _shares(list(map(_rate, self.workers)), list(map(_rate, servers)))

    def has_share(self, worker: Member) -> bool:
        """Whether this worker's machine runs a summation service."""
        return self.networked and self.shares is not None and self.shares.gpu[worker.rank] > 0

    def services_complete(self) -> bool:
        return all(_complete(self._own_services(w.rank)) for w in self.workers if self.has_share(w))

    def missing(self) -> str:
        """What the start waits for, in words."""
        workers = self.workers
        if self.phase == "gathering":
            return self._missing_roles(self.everyone)
        if self.phase == "services":
            late = [w.worker for w in workers if self.has_share(w) and not _complete(self._own_services(w.rank))]
            return f"the summation service of worker {join(late)} has not registered yet"
        late = [worker.worker for worker in self.everyone if not worker.ready]
        return f"worker {join(late)} is not connected to every summation service yet (firewall, or wrong interface?)"

    def _missing_roles(self, workers: list[Member]) -> str:
        n, k = self.size, self._num_servers
        servers = sum(map(_complete, self._server_machines().values()))
        text = f"{len(workers)} of {n} workers and {servers} of {k} servers registered"
        if len(workers) < n:
            anonymous = any(worker.rank < 0 for worker in workers)
            wanted = sorted(set(range(n)) - {worker.worker for worker in workers})
            text += f", missing {n - len(workers)} worker(s)" if anonymous else f", missing rank {join(wanted)}"
        if servers < k:
            text += f", missing {k - servers} server(s)"
        return text

    # ---- the plan ----

    def plan(self) -> tuple[tuple[ServiceInfo, ...], list[int]]:
        """All summation processes in placement order, and each machine's number of them; Refusal if out of reach."""
        assert self.shares is not None
        self._check_reachable()
        machines = [self._own_services(worker.rank) for worker in self.workers]
        machines += self._server_machines().values()
        services = []
        processes = []
        for index, (members, share) in enumerate(zip(machines, self.shares.all, strict=True)):
            # A machine without a share keeps its place in the owner order with one process that nobody connects to.
            processes.append(max(len(members), 1))
            worker = index if index < len(self.workers) else -1
            if not members:
                name = f"summation service of worker {index * self.local_size}"
                services.append(ServiceInfo(name=name, address="", share=0.0, worker=worker))
            for member in members:
                address, part = member.register.address, share / len(members)
                services.append(ServiceInfo(name=member.name, address=address, share=part, worker=worker))
        return tuple(services), processes

    def _check_reachable(self) -> None:
        """A service that listens on a loopback address is an error only if somebody is on another host."""
        remote = [m for m in self.members.values() if not loopback(m.host)]
        local = [m for m in self.members.values() if m.register.role != "worker" and m.register.local]
        if remote and local:
            raise Refusal(
                f"{local[0].name} listens on {local[0].register.address}, which is a loopback address, but "
                f"{remote[0].name} is on {remote[0].host}; set DMLC_NODE_HOST or DMLC_INTERFACE there to an address "
                "that others can reach",
                final=True,
            )

    def slowest_bytes_per_s(self) -> float | None:
        """The lowest NIC rate that anybody gave."""
        return min((_rate(member) for member in self.members.values() if _rate(member)), default=None)

    def _server_machines(self) -> dict[str, list[Member]]:
        """The processes of every server machine, by its number; those without one yet first, in order of arrival."""
        machines: dict[str, list[Member]] = {}
        for member in sorted(self.members.values(), key=lambda m: (m.rank, m.register.process)):
            if member.register.role == "server":
                machines.setdefault(member.register.machine, []).append(member)
        return machines

    def _own_services(self, rank: int) -> list[Member]:
        found = [m for m in self.members.values() if m.register.role == "service" and m.rank == rank]
        return sorted(found, key=lambda member: member.register.process)


def _complete(processes: Sequence[Member]) -> bool:
    return bool(processes) and len(processes) == processes[0].register.processes


def _rate(member: Member) -> float:
    return member.register.nic_bytes_per_s


def _number(groups: Sequence[Sequence[Member]], role: str) -> None:
    """Free numbers for the groups that have none; the members of a group share one."""
    free = iter(sorted(set(range(len(groups))) - {members[0].rank for members in groups}))
    for members in groups:
        if members[0].rank < 0:
            number = next(free)
            for member in members:
                member.register = msgspec.structs.replace(member.register, rank=number)
                member.name = member.name.replace(f"{role} at {member.host}", f"{role} {number}")


def _shares(workers: list[float], servers: list[float]) -> Shares:
    """From NIC rates; an unknown one (0) makes all count as equal."""
    if len(workers) == 1 or not all(workers + servers):
        return paper_shares(len(workers), len(servers))
    gpu = [Machine(name=f"worker{i}", role="gpu", nic_bytes_per_s=rate) for i, rate in enumerate(workers)]
    cpu = [Machine(name=f"server{i}", role="cpu", nic_bytes_per_s=rate) for i, rate in enumerate(servers)]
    return cluster_shares(Cluster(machines=tuple(gpu + cpu)))


def join(items: Sequence[object]) -> str:
    return ", ".join(str(item) for item in items)


def loopback(host: str) -> bool:
    """Whether this is an address of the machine itself; an inherited Unix socket has none."""
    return host.startswith("127.") or host in ("::1", "")
