"""How a machine had better sum: every way simulated on its links together with the network, and the best mixture.

The paper's rule names one strategy.  Here each elementary one, with one root (or one per island) and one NIC, is a
column of a linear programme.  If x_s of every gradient is summed by way s, link l is busy for a part of T:

    sum_s x_s loads_s[l] / capacity_l  <=  T,      sum_s x_s = 1,      least T

No mixture of them is faster; of those that are as fast, it takes the one that keeps links least busy, above all those
that the NIC needs.  Mixture, rule and the strategies as one would name them are then simulated: partitions follow one
another through the stages, and all that is under way shares the links.  The fastest is chosen, the rule's if as fast.
Pure: no I/O, no clock, no randomness.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from byteps.flowsim import Flow, simulate
from byteps.machine import Topology
from byteps.strategy import (
    LocalPlan,
    brute_force,
    cpu_assisted,
    islands,
    mixed,
    reduce_broadcast,
    rule,
    strawman,
    traffic,
)

_Rates = Mapping[str, float]  # bytes per second of each link, as Topology.capacities
_Floats = NDArray[np.float64]
_LEAST_SHARE = 0.02  # what a mixture would give to less is shared among the rest
# Relative, and no reason to leave the rule, since the model is not better than that: on the paper's NVLink machine all
# GPUs as roots came out 13 % slower than two of them, where bandwidths alone make no difference.
_AS_FAST = 0.02


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A plan and what becomes of it, per gradient byte."""

    plan: LocalPlan
    seconds: float  # simulated
    least_seconds: float  # what its busiest link needs
    bottleneck: str  # that link; "" if no rate is known


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What to do, and what there was to choose from."""

    best: Candidate  # the reason is in its plan
    rule: Candidate
    candidates: tuple[Candidate, ...]  # the fastest first
    least_seconds: float  # no mixture of the strategies takes less, per gradient byte


def choose(topology: Topology, sent: float, received: float, partitions: int = 128) -> Choice:
    """The fastest way to sum in this machine if it sends and receives so many bytes per gradient byte."""
    rates, by_rule = topology.capacities, rule(topology)
    plans, least_seconds, note = [by_rule], 0.0, ""
    if len(topology.gpus) > 1:
        columns = _elementary(topology)
        least_seconds, mixture = fastest_mixture(columns, rates, sent, received)
        roomy = {link: math.inf if link.endswith(".memory") else rate for link, rate in rates.items()}
        note = _memory_note(least_seconds, mixture, *fastest_mixture(columns, roomy, sent, received))
        plans = [*_whole(topology), by_rule, mixture]
    distinct = {(plan.name, frozenset(plan.roots)): plan for plan in plans}
    candidates = [_candidate(plan, rates, sent, received, partitions) for plan in distinct.values()]
    candidates.sort(key=lambda candidate: candidate.seconds)
    ruled = next(candidate for candidate in candidates if candidate.plan is by_rule)
    best = candidates[0] if candidates[0].seconds < ruled.seconds * (1 - _AS_FAST) else ruled
    return Choice(
        best=replace(best, plan=replace(best.plan, reason=_reason(topology, best, ruled) + note)),
        rule=ruled,
        candidates=tuple(candidates),
        least_seconds=least_seconds or ruled.least_seconds,
    )


def fastest_mixture(
    columns: Sequence[LocalPlan], rates: _Rates, sent: float, received: float
) -> tuple[float, LocalPlan]:
    """The least seconds per gradient byte, and a mixture that takes them, but for what leaving out crumbs costs."""
    from scipy.optimize import linprog  # here, because importing it takes 0.5 s and 74 MB

    busy, inside = _busy(columns, rates, sent, received), _busy(columns, rates, 0.0, 0.0)
    unit = busy.max(axis=0, initial=0.0).min()  # the best column's time, so that the solver's numbers are near 1
    if not unit:
        return 0.0, columns[busy.max(axis=0, initial=0.0).argmin()]

    def least(cost: _Floats, most_seconds: float) -> _Floats:
        solution = linprog(
            cost,
            A_ub=np.column_stack([busy / unit, -np.ones(len(busy))]),
            b_ub=np.zeros(len(busy)),
            A_eq=[[1.0] * len(columns) + [0.0]],
            b_eq=[1.0],
            bounds=[(0.0, 1.0)] * len(columns) + [(0.0, most_seconds)],
        )
        if not solution.success:
            raise RuntimeError(f"HiGHS found no mixture: {solution.message}; this is a defect, report it")
        return np.asarray(solution.x)

    seconds = least(np.append(np.zeros(len(columns)), 1.0), 1.0)[-1]
    dear = 0.01 + (busy - inside).mean(axis=1) / unit * ["->" in link for link in rates]
    shares = least(np.append(dear @ busy / unit, 0.0), seconds * (1 + 1e-6))[:-1]  # the solver's tolerance is 1e-7
    kept = [(float(share), plan) for share, plan in zip(shares, columns, strict=True) if share >= _LEAST_SHARE]
    total = sum(share for share, _ in kept)
    parts = [(share / total, plan) for share, plan in kept]
    by_name = dict.fromkeys((plan.name for _, plan in parts), 0.0)
    for share, plan in parts:
        by_name[plan.name] += share
    sizes = sorted(by_name.items(), key=lambda item: -item[1])
    name = " + ".join(f"{share:.0%} {name}" for name, share in sizes) if len(sizes) > 1 else f"weighted {sizes[0][0]}"
    return float(seconds * unit), mixed(name, parts)


def simulated_seconds(plan: LocalPlan, rates: _Rates, sent: float, received: float, partitions: int) -> float:
    """Per gradient byte, if equal partitions go through the stages one after the other, all stages at one pace."""
    push = {link: sent * load for link, load in plan.sending.items()}
    pull = {link: received * load for link, load in plan.receiving.items()}
    stages = [loads for loads in (*plan.before, push, pull, *plan.after) if any(loads.values())]
    flows = [
        Flow(loads=loads, nbytes=1 / partitions, after=(p * len(stages) + s - 1,) if s else (), queue=str(s), order=p)
        for p in range(partitions)
        for s, loads in enumerate(stages)
    ]
    return simulate(flows, rates).seconds


def _busy(columns: Sequence[LocalPlan], rates: _Rates, sent: float, received: float) -> _Floats:
    """Seconds per gradient byte of each link, by link and column."""
    loads = [traffic(plan, sent, received) for plan in columns]
    return np.array([[load.get(link, 0.0) / rate for load in loads] for link, rate in rates.items()])


def _elementary(topology: Topology) -> list[LocalPlan]:
    """What there is by one NIC, and where roots are a choice, by each of them alone."""
    plans, groups = list[LocalPlan](), islands(topology)
    for nics in [[nic] for nic in topology.nics] or [[]]:
        plans.append(brute_force(topology, nics))
        plans += [reduce_broadcast(topology, roots, nics) for roots in (topology.gpus, *([g] for g in topology.gpus))]
        if len(groups) > 1:
            turns = [(), *((turn,) for turn in range(max(map(len, groups))))]
            plans += [strawman(topology, nics), *(cpu_assisted(topology, nics, some) for some in turns)]
    return plans


def _whole(topology: Topology) -> list[LocalPlan]:
    """The strategies as one would name them; roots are all GPUs, or those of one switch."""
    by_switch: dict[str, list[str]] = {}
    for gpu in topology.gpus:
        by_switch.setdefault(topology.switch_of(gpu) or topology.cpu_of(gpu), []).append(gpu)
    plans = [reduce_broadcast(topology, roots) for roots in (topology.gpus, *by_switch.values())]
    plans.append(brute_force(topology))
    return [*plans, strawman(topology), cpu_assisted(topology)] if len(islands(topology)) > 1 else plans


def _candidate(plan: LocalPlan, rates: _Rates, sent: float, received: float, partitions: int) -> Candidate:
    loads = traffic(plan, sent, received)
    busy = {link: loads.get(link, 0.0) / rate for link, rate in rates.items()}
    most = max(busy.values())
    return Candidate(
        plan=plan,
        seconds=simulated_seconds(plan, rates, sent, received, partitions),
        least_seconds=most,
        bottleneck=next(link for link in busy if busy[link] > most * (1 - 1e-9)) if most else "",
    )


def _reason(topology: Topology, best: Candidate, by_rule: Candidate) -> str:
    limit = f"{best.bottleneck} is the limit" if best.bottleneck else "no rate is known"
    if best is by_rule:
        return f"{best.plan.reason}; {limit}"
    inside = traffic(best.plan, 0.0, 0.0)
    ways = [(switch, topology.cpu_of(switch)) for switch in topology.nic_switches]
    free = [f"{switch}-{cpu}" for switch, cpu in ways if not inside.get(f"{switch}->{cpu}")]
    kept = f"keeps {' and '.join(free)} for the NIC, " if free else ""
    gain = 1 - best.seconds / by_rule.seconds
    return f"{kept}takes {gain:.1%} less time than {by_rule.plan.name}, which {by_rule.bottleneck} limits; {limit}"


def _memory_note(seconds: float, mixture: LocalPlan, roomy_seconds: float, roomy: LocalPlan) -> str:
    """Where the memory of the CPUs is what keeps a faster mixture out."""
    if roomy_seconds >= seconds * (1 - _AS_FAST):
        return ""
    needs, has = (
        sum(load for link, load in traffic(plan, 0.0, 0.0).items() if link.endswith(".memory"))
        for plan in (roomy, mixture)
    )
    less = f"{1 - roomy_seconds / seconds:.0%} less time"
    return f"; with more host memory bandwidth {roomy.name} would take {less}, with {needs / has:.1f} times its traffic"
