"""How long a schedule takes where hosts relay whole messages, as `baselines.executor` runs it.

`byteps.scheduled` lets a message through all its links at once.  Here it is as many flows as it has hops, and each
begins when the one before it has ended: a host passes on what it has received.  Two more things are those of the
executor: a node's messages to another leave in the order of the schedule, one after the other, however early a later
one is ready; and its turn has passed when a message has left its own NIC, not when it has arrived.
Links are those of `byteps.network`; a hop ends with a link into a host ("h3.1.in").  Other networks have one hop.
Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Sequence

from byteps.flowsim import Flow
from byteps.flowsim import simulate as simulate_flows
from byteps.network import Network
from byteps.schedule import Schedule, Send, dependencies


def simulate_relayed(schedule: Schedule, nbytes: float, network: Network, *, startup_seconds: float = 0.0) -> float:
    """Seconds of one synchronisation; node i is on host i."""
    if schedule.num_nodes > network.num_hosts:
        raise ValueError(
            f"{schedule.name} has {schedule.num_nodes} nodes; {network.name} has {network.num_hosts} hosts, "
            "give it as many or more"
        )
    flows: list[Flow] = []
    left: list[int] = []  # by step: the flow with which a message is off its sender's NIC, or a sum is made
    ended: list[int] = []  # by step: the flow with which it has arrived
    previous: dict[tuple[int, int], int] = {}  # by sender and receiver: the flow with which the last one left
    steps = list(schedule.steps())
    for step, after in zip(steps, dependencies(schedule), strict=True):
        if not isinstance(step, Send):
            flows.append(Flow(loads={}, nbytes=0.0, after=tuple(_seen(step.node, steps, after, left, ended))))
            left.append(len(flows) - 1)
            ended.append(len(flows) - 1)
            continue
        waits = _seen(step.src, steps, after, left, ended)
        waits += [previous[step.src, step.dst]] if (step.src, step.dst) in previous else []
        left.append(len(flows))
        previous[step.src, step.dst] = len(flows)
        for hop in _hops(network.way(step.src, step.dst)):
            flows.append(
                Flow(
                    loads=dict.fromkeys(hop, 1.0),
                    nbytes=float(schedule.shares[step.chunk]) * nbytes,
                    startup_seconds=startup_seconds,
                    after=tuple(waits),
                    queue=" ".join(hop),
                    order=float(len(left)),
                )
            )
            waits = [len(flows) - 1]
        ended.append(len(flows) - 1)
    return simulate_flows(flows, dict(zip(network.link_names, network.rates.tolist(), strict=True))).seconds


def _seen(node: int, steps: Sequence[object], after: Sequence[int], left: list[int], ended: list[int]) -> list[int]:
    """The flows that a step of a node waits for: its own messages have ended for it when they have left."""
    found = []
    for earlier in after:
        step = steps[earlier]
        found.append(left[earlier] if isinstance(step, Send) and step.src == node else ended[earlier])
    return found


def _hops(way: Sequence[str]) -> list[tuple[str, ...]]:
    """The links from host to host."""
    found: list[tuple[str, ...]] = []
    first = 0
    for last, link in enumerate(way, start=1):
        if link.endswith(".in") or last == len(way):
            found.append(tuple(way[first:last]))
            first = last
    return found
