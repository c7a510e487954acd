"""BSP, ASP and SSP: how long workers wait for each other, over any schedule in which a server sums each chunk.

A policy is a bound on how far a worker may run ahead.  Its clock is the number of its contributions to a chunk; the
answer to the one that made it c is held until no clock is below c - bound, as in the runtime (`byteps.staleness`):

    BSP      bound 0: everybody's contribution of this clock is in every answer
    SSP(s)   bound s (Ho et al., NIPS 2013)
    ASP      no bound: nothing is held

So what an answer waits for is known beforehand, and many iterations are one set of flows: an iteration of a worker
computes, then pushes its chunks in the order of the schedule, and ends with the last answer; an answer waits for the
push that it answers and for those of all others `bound` iterations before.  Flows share the network as those of one
synchronisation do (`byteps.scheduled`), so whoever does not wait takes bandwidth from those who do.

A schedule without such servers (ring, torus, ...) needs every worker in every sum: it runs as BSP alone, one
synchronisation after another, each begun when the slowest has computed.
Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from byteps.flowsim import Flow
from byteps.flowsim import simulate as simulate_flows
from byteps.network import Network
from byteps.schedule import Floats, Schedule
from byteps.scheduled import link_loads, simulate


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How many clocks a worker may be ahead of the slowest when it goes on; None: any number."""

    bound: int | None

    def __post_init__(self) -> None:
        if self.bound is not None and self.bound < 0:
            raise ValueError(f"a staleness bound of {self.bound}; use 0 (BSP) or more, or None for no bound (ASP)")

    @property
    def name(self) -> str:
        return "ASP" if self.bound is None else f"SSP({self.bound})" if self.bound else "BSP"


BSP = Policy(bound=0)
ASP = Policy(bound=None)


def ssp(bound: int) -> Policy:
    return Policy(bound=bound)


@dataclass(frozen=True, kw_only=True, eq=False)
class Execution:
    """What became of some iterations of all workers.  Arrays are by iteration, worker and, where it says so, chunk."""

    ends: Floats  # the worker has all answers
    arrived: Floats  # by chunk, too: the worker's contribution is part of the sum
    answered: Floats  # by chunk, too: its answer was let go; what had arrived by then is in it
    carried: dict[str, float]  # bytes by link

    @property
    def rates(self) -> Floats:
        """By worker: iterations per second until its own last one."""
        rates: Floats = self.ends.shape[0] / self.ends[-1]
        return rates

    def apart(self) -> NDArray[np.intp]:
        """Clocks that the worker was ahead of the slowest when it went on, of any chunk."""
        gone_on = np.broadcast_to(self.ends[:, :, None], self.arrived.shape)
        slowest = self._counted(gone_on).min(axis=0).min(axis=2)
        ahead: NDArray[np.intp] = np.arange(1, len(slowest) + 1)[:, None] - slowest
        return np.maximum(ahead, 0)

    def missed(self) -> Floats:
        """Contributions of others between an answer to the worker and its next push, which that was computed without;
        the mean of all chunks.  Under BSP they are of the same clock; those of the same moment do not count."""
        before = self._counted(self.arrived, side="left").sum(axis=0)
        seen = self._counted(self.answered).sum(axis=0)
        lacking: Floats = (before - np.concatenate([np.zeros_like(seen[:1]), seen[:-1]])).mean(axis=2)
        return lacking

    def _counted(self, moments: Floats, side: Literal["left", "right"] = "right") -> NDArray[np.intp]:
        """How many of each worker's contributions had arrived at these moments: by that worker, then like them."""
        workers, chunks = moments.shape[1:]
        found = np.empty((workers, *moments.shape), dtype=np.intp)
        for worker in range(workers):
            for chunk in range(chunks):  # a worker's contributions to a chunk come in order
                found[worker, :, :, chunk] = np.searchsorted(
                    self.arrived[:, worker, chunk], moments[:, :, chunk], side=side
                )
        return found


def execute(
    schedule: Schedule,
    nbytes: float,
    network: Network,
    compute_seconds: Sequence[Sequence[float]],
    policy: Policy,
    *,
    startup_seconds: float = 0.0,
) -> Execution:
    """Simulate so many iterations, node i on host i; `compute_seconds` by worker and iteration.

    ValueError for a policy that the schedule does not allow.
    """
    compute = np.asarray(compute_seconds, dtype=np.float64)
    if compute.ndim != 2 or compute.shape[0] != schedule.num_workers or not compute.shape[1] or (compute < 0).any():
        raise ValueError(
            f"compute_seconds of shape {compute.shape} for {schedule.num_workers} workers of {schedule.name}; "
            "give each of them one number of 0 or more for each of one or more iterations"
        )
    if has_servers(schedule):
        return _served(schedule, nbytes, network, compute, policy, startup_seconds)
    if policy != BSP:
        raise ValueError(
            f"{policy.name} over {schedule.name}: no server sums a chunk for all its workers, so each needs the others "
            "in every sum; use BSP, or a scheme with servers: mesh, parameter server, BytePS, PHub"
        )
    (seconds,) = simulate([(schedule, nbytes)], network, startup_seconds=startup_seconds)
    ends = np.cumsum(compute.max(axis=0) + seconds)[:, None] + np.zeros(schedule.num_workers)
    everywhere = np.repeat(ends[:, :, None], schedule.shares.size, axis=2)
    loads = link_loads(schedule, network)
    carried = {name: loads.get(name, 0.0) * nbytes * len(ends) for name in network.link_names}
    return Execution(ends=ends, arrived=everywhere, answered=everywhere, carried=carried)


def has_servers(schedule: Schedule) -> bool:
    """Whether every chunk goes from each worker to its owner, once, and from there to each worker, once."""
    if schedule.goal != "all-reduce" or schedule.owners.size != schedule.shares.size:
        return False
    wanted = {
        (worker, chunk)
        for chunk, owner in enumerate(schedule.owners.tolist())
        for worker in range(schedule.num_workers)
        if worker != owner
    }
    for keep in (True, False):
        found = []
        for one in schedule.rounds:
            if one.keep != keep:
                continue
            worker, server = (one.src, one.dst) if keep else (one.dst, one.src)
            if (server != schedule.owners[one.chunk]).any():
                return False
            found += list(zip(worker.tolist(), one.chunk.tolist(), strict=True))
        if len(found) != len(wanted) or set(found) != wanted:
            return False
    return True


def _served(
    schedule: Schedule, nbytes: float, network: Network, compute: Floats, policy: Policy, startup_seconds: float
) -> Execution:
    workers, iterations = compute.shape
    chunks, owners = schedule.shares.size, schedule.owners.tolist()
    turns = _turns(schedule)
    flows: list[Flow] = []
    pushes = np.zeros((iterations, workers, chunks), dtype=np.intp)  # flows
    answers = np.zeros_like(pushes)

    def message(src: int, dst: int, chunk: int, after: Sequence[int]) -> int:
        local = src == dst  # of a worker that owns the chunk: moves nothing
        flows.append(
            Flow(
                loads={} if local else dict.fromkeys(network.way(src, dst), 1.0),
                nbytes=0.0 if local else float(schedule.shares[chunk]) * nbytes,
                startup_seconds=0.0 if local else startup_seconds,
                after=tuple(after),
                queue="" if local else f"{src} to {dst}",
                order=float(len(flows)),
            )
        )
        return len(flows) - 1

    for clock in range(iterations):
        for worker in range(workers):
            before = tuple(answers[clock - 1, worker].tolist()) if clock else ()
            flows.append(Flow(loads={}, nbytes=0.0, startup_seconds=float(compute[worker, clock]), after=before))
            last = [len(flows) - 1]
            for turn in turns:
                sent = [message(worker, owners[chunk], chunk, last) for chunk in turn]
                pushes[clock, worker, turn] = sent
                last = sent
        for worker in range(workers):
            for chunk in range(chunks):
                needed = [int(pushes[clock, worker, chunk])]
                if policy.bound is not None and clock >= policy.bound:
                    needed += pushes[clock - policy.bound, :, chunk].tolist()
                answers[clock, worker, chunk] = message(owners[chunk], worker, chunk, sorted(set(needed)))
    outcome = simulate_flows(flows, dict(zip(network.link_names, network.rates.tolist(), strict=True)))
    arrived = outcome.end[pushes]
    answered = arrived.copy()
    if policy.bound is not None:
        answered[policy.bound :] = np.maximum(
            arrived[policy.bound :], arrived[: iterations - policy.bound].max(axis=1, keepdims=True)
        )
    return Execution(ends=outcome.end[answers].max(axis=2), arrived=arrived, answered=answered, carried=outcome.carried)


def _turns(schedule: Schedule) -> list[list[int]]:
    """The chunks that a worker pushes at once, one such turn after the other: those of a round."""
    found = [np.unique(one.chunk).tolist() for one in schedule.rounds if one.keep]
    return found or [list(range(schedule.shares.size))]
