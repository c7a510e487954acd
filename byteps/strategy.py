"""Inside a machine: how its GPUs' gradients become one sum in host memory, and the result gets back, as bytes per link.

All ways are made of one piece, `chained`: GPUs add up along chains, the last of each (its root) copies to host memory,
CPUs add up what the chains gave, the NIC takes it from there; and back the same way.  With l GPUs under each switch
taking turns as roots, before and after the network together, in one direction, for 1 byte of a GPU's gradient:

                           chains        GPU-switch     switch-CPU  memory, reads and writes
    brute force            one per GPU   1              l           3 for each GPU, and 1
    CPU-assisted           one a switch  1 + (l - 1)/l  1           3 for each switch, and 1
    reduce and broadcast   one, NVLink   1 of the root  as GPU      2

A CPU with several chains first adds up its own, so sockets are crossed once each way.  A sum of m inputs is m reads and
1 write, a copy to memory 1 write, a copy from it 1 read; a read counts where the data lie.  `rule` is the paper's
choice, `planner` has ours.  The opponents are NCCL's without GPUDirect RDMA: their traffic passes host memory too.
Pure: no I/O, no clock, no randomness.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product
from typing import TypeVar

from byteps.machine import Topology

Loads = Mapping[str, float]  # entry of Topology.capacities -> bytes per byte of one GPU's gradient
_Item = TypeVar("_Item")


@dataclass(frozen=True, kw_only=True)
class LocalPlan:
    """Bytes on the links of a machine, stage by stage; a stage may be empty."""

    name: str
    roots: tuple[str, ...]  # the GPUs that exchange gradients with host memory
    before: tuple[Loads, ...]  # GPUs add up, copy to host memory, CPUs add up
    sending: Loads  # per byte that the machine sends
    receiving: Loads  # per byte that it receives
    after: tuple[Loads, ...]  # copy to GPUs, which pass it on
    reason: str = ""


def traffic(plan: LocalPlan, sent: float, received: float) -> dict[str, float]:
    """Bytes on each link per gradient byte, if so many are sent and received per gradient byte."""
    parts = ((1.0, plan.before), (sent, [plan.sending]), (received, [plan.receiving]), (1.0, plan.after))
    return _total((amount, loads) for amount, stages in parts for loads in stages)


def mixed(name: str, parts: Sequence[tuple[float, LocalPlan]]) -> LocalPlan:
    """Each plan on its share of every gradient; the shares sum to 1."""
    return LocalPlan(
        name=name,
        roots=tuple(dict.fromkeys(root for _, plan in parts for root in plan.roots)),
        before=tuple(_total((share, plan.before[stage]) for share, plan in parts) for stage in range(3)),
        sending=_total((share, plan.sending) for share, plan in parts),
        receiving=_total((share, plan.receiving) for share, plan in parts),
        after=tuple(_total((share, plan.after[stage]) for share, plan in parts) for stage in range(2)),
    )


def chained(topology: Topology, chains: Sequence[Sequence[str]], nic: str) -> LocalPlan:
    """Sums along each chain of GPUs, then of the chains in the memory of the NIC's CPU; `nic` is "" where none is."""
    host = topology.cpu_of(nic or (chains[0][-1] if chains else topology.cpus[0]))
    by_cpu: dict[str, list[str]] = {}
    for *_, root in chains:
        by_cpu.setdefault(topology.cpu_of(root), []).append(root)
    copied, added, returned = Counter[str](), Counter[str](), Counter[str]()
    for cpu, roots in by_cpu.items():
        near = cpu if len(roots) > 1 else host  # one input need not be added up on the way
        for root in roots:
            copied.update([*topology.route(root, near), f"{near}.memory"])
            added[f"{near}.memory"] += 1
            returned.update([f"{near}.memory", *topology.route(near, root)])
        if near != host:  # the sum is written there, and read from here
            added[f"{near}.memory"] += 2
            added.update(topology.route(near, host))
            returned.update([f"{host}.memory", *topology.route(host, near), f"{near}.memory"])
    added[f"{host}.memory"] += 1
    hops = [hop for gpus in chains for hop in pairwise(gpus)]
    return LocalPlan(
        name="chained",
        roots=tuple(root for *_, root in chains),
        before=(_total((1.0, _hop(topology, a, b)) for a, b in hops), copied, added if len(chains) > 1 else {}),
        sending=Counter([f"{host}.memory", *topology.route(host, nic), f"{nic}.out"]) if nic else {},
        receiving=Counter([f"{nic}.in", *topology.route(nic, host), f"{host}.memory"]) if nic else {},
        after=(returned, _total((1.0, _hop(topology, b, a)) for a, b in hops)),
    )


def reduce_broadcast(topology: Topology, roots: Sequence[str], nics: Sequence[str] = ()) -> LocalPlan:
    """All gradients to the roots, equal parts to each, and back; with all GPUs as roots it is Horovod's hierarchical
    scheme: reduce-scatter, network, all-gather.  Roots serve NICs of their own CPU first."""
    if not roots or not set(roots) <= set(topology.gpus):
        raise ValueError(f"roots are {list(roots)}; {topology.name!r} has the GPUs {list(topology.gpus)}")
    name = "reduce-scatter" if len(set(roots)) == len(topology.gpus) > 1 else "reduce-broadcast"
    pairs = _pairs(topology, roots, nics)
    return mixed(name, [(share, chained(topology, [_all_to(topology, root)], nic)) for share, root, nic in pairs])


def cpu_assisted(topology: Topology, nics: Sequence[str] = (), turns: Sequence[int] = ()) -> LocalPlan:
    """Six steps: reduce-scatter in each island, copy to the CPUs, which add up, network, copy back, all-gather.
    `turns`: which GPUs of an island take turns as its root, by number (modulo its size); () is all of them."""
    groups = islands(topology)
    turns = turns or range(math.lcm(*map(len, groups)))
    chains = [[_circle(group, turn % len(group)) for group in groups] for turn in turns]
    ways = product(_shares(topology, nics), chains)
    return mixed("cpu-assisted", [(share / len(turns), chained(topology, some, nic)) for (share, nic), some in ways])


def brute_force(topology: Topology, nics: Sequence[str] = ()) -> LocalPlan:
    """Every GPU copies all of its gradient to host memory."""
    chains = [(gpu,) for gpu in topology.gpus]
    return mixed("brute-force", [(share, chained(topology, chains, nic)) for share, nic in _shares(topology, nics)])


def strawman(topology: Topology, nics: Sequence[str] = ()) -> LocalPlan:
    """Figure 14a: NCCL's reduce-scatter over all GPUs as if under one switch; each copies its part of the sum."""
    ring, pairs = _ring(topology, 1.0), _pairs(topology, topology.gpus, nics)
    plan = mixed("strawman", [(share, chained(topology, [[gpu]], nic)) for share, gpu, nic in pairs])
    return replace(plan, before=(ring, *plan.before[1:]), after=(plan.after[0], ring))


def rule(topology: Topology) -> LocalPlan:
    """The paper's choice, from S_n, the switches with GPUs and NICs, and S_g, those with GPUs only."""
    gpus, on_nics = topology.gpus, topology.nic_switches
    if not gpus:
        plan, reason = replace(brute_force(topology), name="none"), "there are no GPUs"
    elif len(gpus) == 1:
        plan, reason = reduce_broadcast(topology, gpus), "there is only one GPU"
    elif len(islands(topology)) > 1:
        plan = cpu_assisted(topology)
        reason = f"no NVLink joins all {len(gpus)} GPUs, and copies between them had better not pass a CPU"
    elif on_nics and topology.gpu_switches:
        away = [gpu for gpu in gpus if topology.switch_of(gpu) not in on_nics]
        near = [gpu for gpu in away if topology.cpu_of(gpu) in map(topology.cpu_of, topology.nics)]
        plan = reduce_broadcast(topology, near or away)
        reason = f"roots elsewhere leave {' and '.join(f'{s}-{topology.cpu_of(s)}' for s in on_nics)} to the NIC"
    else:
        plan = reduce_broadcast(topology, gpus)
        reason = f"{'every' if on_nics else 'no'} switch with GPUs has a NIC, so all GPUs take equal parts"
    return replace(plan, reason=reason)


def ring_loads(topology: Topology, n: int) -> Loads:
    """NCCL's ring over the N GPUs of n such machines, a ring per NIC: 2(N - 1)/N on every hop.
    It goes from island to island, the two nearest to the NIC at its ends, and through their GPUs nearest to it."""
    if n == 1:
        return _ring(topology, 2.0)
    parts: list[tuple[float, Loads]] = []
    for share, nic in _shares(topology, ()):
        distance = {gpu: len(topology.route(gpu, nic or gpu)) for gpu in topology.gpus}
        near, *others = sorted(islands(topology), key=lambda island: min(distance[gpu] for gpu in island))
        first = min(near, key=lambda gpu: distance[gpu])
        last = min(others[0] if others else near, key=lambda gpu: (gpu == first, distance[gpu]))
        between = [gpu for gpu in chain(near, *others[1:], *others[:1]) if gpu not in (first, last)]
        enter, leave = (chained(topology, [[gpu]], nic) for gpu in (first, last))
        loads = [_hop(topology, a, b) for a, b in pairwise([first, *between, last])]
        loads += [enter.receiving, enter.after[0], leave.before[1], leave.sending]
        parts += [(2 * share * (1 - 1 / (n * len(topology.gpus))), each) for each in loads]
    return _total(parts)


def hierarchical_loads(topology: Topology, n: int) -> Loads:
    """As the strawman, with a ring of 2(n - 1)/n between machines for each GPU's part, through host memory."""
    plan = strawman(topology)
    through = (plan.before[1], plan.sending, plan.receiving, plan.after[0])
    return _total([(1, plan.before[0]), *((2 * (1 - 1 / n), loads) for loads in through), (1, plan.after[1])])


def islands(topology: Topology) -> list[tuple[str, ...]]:
    """GPUs that reach each other without a CPU in between: by NVLink or under one switch.  Those of a CPU in a row."""
    if not topology.gpus:
        raise ValueError(f"{topology.name!r} has no GPUs")
    found: dict[str, list[str]] = {}
    for gpu in topology.gpus:
        found.setdefault(topology.fabric_of(gpu) or topology.switch_of(gpu) or gpu, []).append(gpu)
    return sorted(map(tuple, found.values()), key=lambda island: topology.cpus.index(topology.cpu_of(island[0])))


def _all_to(topology: Topology, root: str) -> tuple[str, ...]:
    """All GPUs, those of the root's CPU last, of its island last among them: sockets and switches are crossed once."""
    groups = islands(topology)
    *others, own = _circle(groups, next(index for index, group in enumerate(groups) if root in group))
    others.sort(key=lambda group: topology.cpu_of(group[0]) == topology.cpu_of(own[0]))
    return (*chain(*others), *_circle(own, own.index(root)))


def _circle(items: Sequence[_Item], last: int) -> tuple[_Item, ...]:
    """Around in a circle, ending at this one."""
    return (*items[last + 1 :], *items[: last + 1])


def _shares(topology: Topology, nics: Sequence[str]) -> list[tuple[float, str]]:
    """What each NIC takes (() means all), in proportion to the rates; equal parts where a rate is unknown."""
    rates = {nic: topology.capacities[f"{nic}.out"] for nic in nics or topology.nics}
    rates = dict.fromkeys(rates, 1.0) if math.inf in rates.values() else rates
    return [(rate / sum(rates.values()), nic) for nic, rate in rates.items()] or [(1.0, "")]


def _pairs(topology: Topology, roots: Sequence[str], nics: Sequence[str]) -> list[tuple[float, str, str]]:
    """Who takes how much: roots equal parts, NICs by their rates, pairs of the same CPU first."""
    of_root, of_nic = dict.fromkeys(roots, 1 / len(roots)), {nic: share for share, nic in _shares(topology, nics)}
    pairs, found = product(of_root, of_nic), []
    for root, nic in sorted(pairs, key=lambda pair: topology.cpu_of(pair[0]) != topology.cpu_of(pair[1] or pair[0])):
        share = min(of_root[root], of_nic[nic])
        of_root[root], of_nic[nic] = of_root[root] - share, of_nic[nic] - share
        found += [(share, root, nic)] if share > 1e-12 else []
    return found


def _ring(topology: Topology, passes: float) -> Loads:
    """The GPUs in a closed ring, each hop carrying (N - 1)/N per pass."""
    gpus = list(chain(*islands(topology)))
    return _total((passes * (1 - 1 / len(gpus)), _hop(topology, a, b)) for a, b in pairwise([*gpus, gpus[0]]))


def _hop(topology: Topology, a: str, b: str) -> Loads:
    """A copy from GPU to GPU; where it passes a CPU, its PCIe links carry more."""
    cpus, ends = set(topology.cpus), {link: set(link.split("->")) for link in topology.route(a, b)}
    extra = 1 / topology.peer_efficiency if any(cpus & pair for pair in ends.values()) else 1.0
    return {link: 1.0 if pair <= cpus else extra for link, pair in ends.items()}


def _total(parts: Iterable[tuple[float, Loads]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for factor, loads in parts:
        for link, load in loads.items():
            total[link] = total.get(link, 0.0) + factor * load
    return total
