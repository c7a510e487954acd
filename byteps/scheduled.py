"""How long a schedule takes on a network: exactly, as flows; or for many hosts, round by round.

`simulate` makes every message a flow and lets `byteps.flowsim` run them, each when the steps that it waits for have
ended.  Between two nodes messages go one after the other, in the schedule's order, as on one connection.

`estimate` takes the rounds one after the other, each as long as its most loaded link needs and one start-up more.
That is exact where a round's messages are alike and no round begins before the one before it has ended everywhere,
which holds for the symmetric schemes on star and BCube; elsewhere it lacks two things, whose signs differ: rounds of
different chunks that overlap (slower here), and a link that stands still while the flows on it are held up elsewhere
(faster here).  1024 hosts take seconds.
Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from byteps.flowsim import Flow, Outcome
from byteps.flowsim import simulate as simulate_flows
from byteps.network import NOWHERE, Network
from byteps.schedule import Floats, Indices, Round, Schedule, Send, dependencies


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Of one synchronisation."""

    seconds: float
    bottleneck: str  # the link with the most to carry for its rate, over all rounds


def simulate(
    schedules: Sequence[tuple[Schedule, float]],
    network: Network,
    *,
    startup_seconds: float = 0.0,
    places: Sequence[Sequence[int]] = (),
) -> list[float]:
    """Seconds that each of several synchronisations, all begun at once, takes of (schedule, bytes).

    `places`: on which host each node of a schedule is; not given: node i on host i.  Several schedules are jobs that
    share the network.
    """
    flows: list[Flow] = []
    spans = []
    for number, (schedule, nbytes) in enumerate(schedules):
        hosts = np.asarray(places[number] if places else range(schedule.num_nodes), dtype=np.intp)
        first = len(flows)
        flows += _flows(schedule, nbytes, network, hosts, startup_seconds, first)
        spans.append((first, len(flows)))
    outcome = _run(flows, network)
    return [float(outcome.end[first:last].max(initial=0.0)) for first, last in spans]


def estimate(
    schedule: Schedule, nbytes: float, network: Network, *, startup_seconds: float = 0.0, overlapping: bool = False
) -> Estimate:
    """Round by round; node i is on host i.

    `overlapping`: rounds follow each other as pieces do that a service sums: all that the busiest link carries, and the
    first round, before which nothing comes back.
    """
    _check_size(schedule, network)
    rounds, total = [], np.zeros(network.rates.size)
    for one in schedule.rounds:
        load = _loads(one, schedule.shares, network) * nbytes / network.rates
        rounds.append(float(load.max(initial=0.0)) + startup_seconds)
        total += load
    seconds = sum(rounds)
    if overlapping and rounds:
        seconds = min(seconds, float(total.max()) + rounds[0] + startup_seconds * len(rounds) / 2)
    return Estimate(seconds=seconds, bottleneck=network.link_names[int(np.argmax(total))] if total.any() else "")


def link_loads(schedule: Schedule, network: Network) -> dict[str, float]:
    """What every link carries in all, as a multiple of the tensor's bytes; links that carry nothing are left out."""
    _check_size(schedule, network)
    total = np.zeros(network.rates.size)
    for one in schedule.rounds:
        total += _loads(one, schedule.shares, network)
    return {network.link_names[link]: float(total[link]) for link in np.flatnonzero(total)}


def _loads(one: Round, shares: Floats, network: Network) -> Floats:
    ways = network.ways(one.src, one.dst)
    load = np.zeros(network.rates.size)
    for column in ways.T:
        there = column != NOWHERE
        load += np.bincount(column[there], shares[one.chunk[there]], minlength=load.size)
    return load


def _flows(
    schedule: Schedule, nbytes: float, network: Network, hosts: Indices, startup_seconds: float, first: int
) -> list[Flow]:
    """A flow per step; those of reductions move nothing and join what they wait for."""
    _check_size(schedule, network, hosts)
    flows: list[Flow] = []
    for step, after in zip(schedule.steps(), dependencies(schedule), strict=True):
        waits = tuple(first + index for index in after)
        if isinstance(step, Send):
            way = network.way(int(hosts[step.src]), int(hosts[step.dst]))
            flows.append(
                Flow(
                    loads=dict.fromkeys(way, 1.0),
                    nbytes=float(schedule.shares[step.chunk]) * nbytes,
                    startup_seconds=startup_seconds,
                    after=waits,
                    queue=f"{first}: {step.src} to {step.dst}",
                    order=float(len(flows)),
                )
            )
        else:
            flows.append(Flow(loads={}, nbytes=0.0, after=waits))
    return flows


def _run(flows: Sequence[Flow], network: Network) -> Outcome:
    return simulate_flows(flows, dict(zip(network.link_names, network.rates.tolist(), strict=True)))


def _check_size(schedule: Schedule, network: Network, hosts: Indices | None = None) -> None:
    found = np.arange(schedule.num_nodes) if hosts is None else hosts
    if found.size != schedule.num_nodes or (found < 0).any() or (found >= network.num_hosts).any():
        raise ValueError(
            f"{schedule.name} has {schedule.num_nodes} nodes on hosts {found[:4].tolist()}...; "
            f"{network.name} has the hosts 0 to {network.num_hosts - 1}, give one for each node"
        )
