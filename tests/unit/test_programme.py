"""The linear programme with adders, memories, uplinks and two levels, against messages that are counted one by one."""

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps.assign import paper_shares, programme_shares
from byteps.cluster import Cluster, Machine, uniform_cluster
from byteps.programme import Limits, Optimum, busy_seconds, flat, mixed, two_level
from byteps.theory import byteps_seconds, traffic

PLANNERS = (flat, two_level, mixed)
RATES = st.sampled_from([0.25, 0.5, 0.8, 1.0, 2.0, 5.0])


@st.composite
def limited(draw, racks=("", "a", "b", "c")):
    """Up to four GPU and four CPU machines, in these racks ("": the core), and some limits."""
    racks = draw(st.sampled_from([("",), racks]))
    vary = draw(st.booleans())

    def rate():
        return draw(RATES) if vary else 1.0

    roles = ["gpu"] * draw(st.integers(2, 4)) + ["cpu"] * draw(st.integers(0, 4))
    machines = [
        Machine(name=f"{role}{index}", role=role, nic_bytes_per_s=rate(), rack=draw(st.sampled_from(racks)))
        for index, role in enumerate(roles)
    ]
    over = draw(st.sampled_from([1.0, 1.5, 4.0])) if any(machine.rack for machine in machines) else 1.0
    names = [machine.name for machine in machines]
    adders, memories = ({name: scale * rate() for name in names} if draw(st.booleans()) else {} for scale in (0.5, 2.0))
    return Limits(cluster=Cluster(machines=tuple(machines), oversubscription=over), adders=adders, memories=memories)


def racked(racks, m, spare, over=1.0, nic=1.0):
    """Equal racks with m GPU and `spare` CPU machines each."""
    roles = [("gpu", m), ("cpu", spare)]
    return Cluster(
        machines=tuple(
            Machine(name=f"{role}{rack}.{index}", role=role, nic_bytes_per_s=nic, rack=f"r{rack}")
            for role, count in roles
            for rack in range(racks)
            for index in range(count)
        ),
        oversubscription=over,
    )


# The oracle: which bytes are summed where, and every message that this takes


def pieces(limits, plan):
    """[(length, owner) or (length, {rack: owner}, owner across)]: intervals of the gradient, exactly."""
    machines = limits.cluster.gpu_machines + limits.cluster.cpu_machines
    found = [(share, owner) for owner, share in enumerate(plan.flat) if share > 1e-12]
    across = {owner: share for owner, share in enumerate(plan.across) if share > 1e-12}
    racks = {machine.rack for machine in machines if machine.role == "gpu"}
    left = {
        rack: {owner: plan.local[owner] for owner, machine in enumerate(machines) if machine.rack == rack}
        for rack in racks
    }
    # A service first takes from its own rack's bytes those that it sums across, then anything.
    own = {owner: min(share, plan.local[owner]) for owner, share in across.items()}
    for owner, share in own.items():
        if machines[owner].rack in racks:
            left[machines[owner].rack][owner] -= share
    for owner, share in across.items():
        cuts = {0.0, share}
        lists = {}
        for rack in racks:
            mine = own[owner] if machines[owner].rack == rack else 0.0
            lists[rack] = [(0.0, mine, owner)] if mine else []
            start = mine
            for other in left[rack]:
                take = min(left[rack][other], share - start)
                if take > 1e-12:
                    lists[rack].append((start, start + take, other))
                    left[rack][other] -= take
                    start += take
            cuts |= {end for _, end, _ in lists[rack] if end < share}
        ordered = sorted(cuts)
        for start, end in pairwise(ordered):
            middle = (start + end) / 2
            owners = {
                rack: next((who for low, high, who in lists[rack] if low <= middle <= high), lists[rack][-1][2])
                for rack in racks
            }
            found.append((end - start, owners, owner))
    return found


def busy(limits, plan):
    """Seconds by resource, message by message."""
    machines = limits.cluster.gpu_machines + limits.cluster.cpu_machines
    workers = [owner for owner, machine in enumerate(machines) if machine.role == "gpu"]
    used = defaultdict(float)

    def send(source, target, nbytes):
        if source == target:
            return
        used[f"out of {machines[source].name}"] += nbytes
        used[f"in of {machines[target].name}"] += nbytes
        used[f"memory of {machines[source].name}"] += nbytes
        used[f"memory of {machines[target].name}"] += nbytes
        if machines[source].rack != machines[target].rack:
            used[f"up from {machines[source].rack}"] += nbytes
            used[f"down to {machines[target].rack}"] += nbytes

    def total(at, sources, nbytes):
        for source in sources:
            send(source, at, nbytes)
        used[f"adder of {machines[at].name}"] += (len(sources) - 1) * nbytes
        used[f"memory of {machines[at].name}"] += 3 * (len(sources) - 1) * nbytes

    for worker in workers:
        used[f"memory of {machines[worker].name}"] += 2.0
    for nbytes, owner, *across in pieces(limits, plan):
        if not across:
            total(owner, workers, nbytes)
            for worker in workers:
                send(owner, worker, nbytes)
            continue
        for rack, service in owner.items():
            total(service, [worker for worker in workers if machines[worker].rack == rack], nbytes)
        total(across[0], list(owner.values()), nbytes)
        for rack, service in owner.items():
            send(across[0], service, nbytes)
            for worker in workers:
                if machines[worker].rack == rack:
                    send(service, worker, nbytes)
    capacity = {}
    for machine in machines:
        for way in ("in", "out"):
            capacity[f"{way} of {machine.name}"] = machine.nic_bytes_per_s
        capacity[f"adder of {machine.name}"] = limits.adders.get(machine.name, np.inf)
        capacity[f"memory of {machine.name}"] = limits.memories.get(machine.name, np.inf)
    for rack, rate in limits.cluster.uplinks.items():
        capacity[f"up from {rack}"] = capacity[f"down to {rack}"] = rate
    return {name: nbytes / capacity.get(name, np.inf) for name, nbytes in used.items()}


@settings(deadline=None, max_examples=150)
@given(limited(), st.sampled_from(PLANNERS))
def test_the_plan_takes_as_long_as_its_messages_show(limits, planner):
    plan = planner(1.0, limits)
    assert max(busy(limits, plan).values()) == pytest.approx(plan.seconds, rel=1e-6)


@settings(deadline=None, max_examples=100)
@given(limited(), st.data())
def test_no_plan_drawn_at_random_is_faster(limits, data):
    machines = limits.cluster.gpu_machines + limits.cluster.cpu_machines
    size = len(machines)
    draw = data.draw(st.lists(st.integers(0, 4), min_size=3 * size, max_size=3 * size))
    level = data.draw(st.sampled_from([0.0, 0.5, 1.0]))

    def shares(weights, total):
        whole = sum(weights)
        return [float(Fraction(weight, whole)) * total for weight in weights] if whole else [total] + [0.0] * (size - 1)

    local = [0.0] * size
    for rack in {machine.rack for machine in limits.cluster.gpu_machines}:
        members = [owner for owner, machine in enumerate(machines) if machine.rack == rack]
        weights = [draw[owner] for owner in members]
        weights = weights if any(weights) else [1] * len(members)
        for owner, weight in zip(members, weights, strict=True):
            local[owner] = level * weight / sum(weights)
    plan = Optimum(
        seconds=0.0,
        flat=tuple(shares(draw[size : 2 * size], 1 - level)),
        local=tuple(local),
        across=tuple(shares(draw[2 * size :], level)),
        binding={},
    )
    taken = max(busy(limits, plan).values())
    assert mixed(1.0, limits).seconds <= taken * (1 + 1e-6)
    if level != 0.5:
        assert (two_level if level else flat)(1.0, limits).seconds <= taken * (1 + 1e-6)


@settings(deadline=None, max_examples=60)
@given(limited(), st.data())
def test_what_is_busy_with_given_shares_is_what_messages_show(limits, data):
    size = len(limits.cluster.machines)
    weights = data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(any))
    own = tuple(weight / sum(weights) for weight in weights)
    nothing = (0.0,) * size
    counted = busy(limits, Optimum(seconds=0.0, flat=own, local=nothing, across=nothing, binding={}))
    found = busy_seconds(3.0, limits, own)
    assert max(found.values()) == pytest.approx(3 * max(counted.values()))
    for machine in limits.cluster.machines:
        assert found[f"nic of {machine.name}"] == pytest.approx(3 * counted.get(f"out of {machine.name}", 0.0))
        if limits.adders:
            assert found[f"adder of {machine.name}"] == pytest.approx(3 * counted.get(f"adder of {machine.name}", 0))
    for rack in limits.cluster.uplinks:
        assert found[f"uplink of {rack}"] == pytest.approx(3 * counted.get(f"up from {rack}", 0.0))


# Laws


@settings(deadline=None, max_examples=60)
@given(limited(), st.sampled_from(PLANNERS))
def test_shares_sum_to_one_on_every_way(limits, planner):
    plan = planner(1.0, limits)
    machines = limits.cluster.gpu_machines + limits.cluster.cpu_machines
    assert min(plan.flat + plan.local + plan.across) >= 0
    assert sum(plan.flat) + sum(plan.across) == pytest.approx(1)
    assert sum(plan.flat) == pytest.approx({flat: 1, two_level: 0}.get(planner, sum(plan.flat)))
    for rack in {machine.rack for machine in machines}:
        local = sum(share for share, machine in zip(plan.local, machines, strict=True) if machine.rack == rack)
        workers = any(machine.rack == rack for machine in limits.cluster.gpu_machines)
        assert local == pytest.approx(sum(plan.across) if workers else 0)


@settings(deadline=None, max_examples=80)
@given(limited(), st.sampled_from(PLANNERS), st.data())
def test_more_of_anything_brings_no_more_than_its_price_and_nothing_where_it_has_none(limits, planner, data):
    """Prices are a solution of the dual programme, which bounds every plan: T' >= T / (sum of price * factor)."""
    before = planner(1.0, limits)
    assert sum(before.binding.values()) == pytest.approx(1)
    machines = limits.cluster.machines
    kind = data.draw(
        st.sampled_from(["nic", *(["adder"] if limits.adders else []), *(["memory"] if limits.memories else [])])
    )
    factor = data.draw(st.sampled_from([1.1, 2.0, 10.0]))
    faster = {machine.name: data.draw(st.sampled_from([1.0, factor])) for machine in machines}
    if kind == "nic":
        # Uplinks follow from NICs, so they get faster too.
        after = Limits(
            cluster=Cluster(
                machines=tuple(
                    Machine(name=m.name, role=m.role, nic_bytes_per_s=m.nic_bytes_per_s * faster[m.name], rack=m.rack)
                    for m in machines
                ),
                oversubscription=limits.cluster.oversubscription,
            ),
            adders=limits.adders,
            memories=limits.memories,
        )
        grown = {rack: after.cluster.uplinks[rack] / rate for rack, rate in limits.cluster.uplinks.items()}
    else:
        what = {"adder": "adders", "memory": "memories"}[kind]
        rates = {name: rate * faster[name] for name, rate in getattr(limits, what).items()}
        given = {"adders": limits.adders, "memories": limits.memories, what: rates}
        after = Limits(cluster=limits.cluster, **given)
        grown = {}
    factors = {f"{kind} of {name}": value for name, value in faster.items()}
    factors |= {f"uplink of {rack}": value for rack, value in grown.items()}
    most = sum(price * factors.get(name, 1.0) for name, price in before.binding.items())
    assert before.seconds / most * (1 - 1e-6) <= planner(1.0, after).seconds <= before.seconds * (1 + 1e-6)


@settings(deadline=None, max_examples=40)
@given(limited(), st.sampled_from(PLANNERS))
def test_a_further_limit_never_makes_it_faster_and_no_oversubscription_is_no_limit(limits, planner):
    cluster = limits.cluster
    full = Cluster(machines=cluster.machines)
    free = planner(1.0, Limits(cluster=full)).seconds
    assert free <= planner(1.0, Limits(cluster=cluster)).seconds * (1 + 1e-6)
    assert planner(1.0, Limits(cluster=cluster)).seconds <= planner(1.0, limits).seconds * (1 + 1e-6)
    bare = Cluster(
        machines=tuple(Machine(name=m.name, role=m.role, nic_bytes_per_s=m.nic_bytes_per_s) for m in cluster.machines)
    )
    assert flat(1.0, Limits(cluster=full)).seconds == pytest.approx(flat(1.0, Limits(cluster=bare)).seconds)


@settings(deadline=None, max_examples=40)
@given(limited())
def test_a_mixture_is_never_slower_than_either_way(limits):
    assert mixed(1.0, limits).seconds <= min(way(1.0, limits).seconds for way in (flat, two_level)) * (1 + 1e-6)


@settings(deadline=None, max_examples=40)
@given(limited(), st.sampled_from(PLANNERS), st.sampled_from([1e3, 1e8, 1e11]))
def test_everything_faster_is_as_much_faster_and_more_bytes_take_as_much_longer(limits, planner, factor):
    scaled = Limits(
        cluster=Cluster(
            machines=tuple(
                Machine(name=m.name, role=m.role, nic_bytes_per_s=m.nic_bytes_per_s * factor, rack=m.rack)
                for m in limits.cluster.machines
            ),
            oversubscription=limits.cluster.oversubscription,
        ),
        adders={name: rate * factor for name, rate in limits.adders.items()},
        memories={name: rate * factor for name, rate in limits.memories.items()},
    )
    assert planner(7.0, scaled).seconds == pytest.approx(7 * planner(1.0, limits).seconds / factor)


@settings(deadline=None, max_examples=40)
@given(limited(), st.sampled_from(PLANNERS))
def test_machines_that_are_alike_get_equal_shares(limits, planner):
    plan = planner(1.0, limits)
    machines = limits.cluster.gpu_machines + limits.cluster.cpu_machines
    shares = defaultdict(set)
    for m, *own in zip(machines, plan.flat, plan.local, plan.across, strict=True):
        look = (m.role, m.nic_bytes_per_s, limits.adders.get(m.name), limits.memories.get(m.name), m.rack)
        shares[look].add(tuple(own))
    assert {len(found) for found in shares.values()} == {1}


# Closed forms


@pytest.mark.parametrize("n, k", [(2, 0), (2, 1), (3, 2), (8, 0), (8, 3), (8, 8), (8, 12), (40, 25)])
def test_without_further_limits_it_is_the_papers_optimum(n, k):
    plan = flat(5.0, Limits(cluster=uniform_cluster(n, k, 2.0)))
    assert plan.seconds == pytest.approx(byteps_seconds(5.0, n, k, 2.0))
    if n > 2:
        assert plan.flat == pytest.approx(paper_shares(n, k).all)
    assert {name.split()[0] for name in plan.binding} == {"nic"}


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0.05, 20), min_size=2, max_size=6), st.lists(st.floats(0.05, 20), max_size=6))
def test_unequal_nics_take_as_long_as_the_planned_shares(gpu, cpu):
    machines = [Machine(name=f"gpu{i}", role="gpu", nic_bytes_per_s=rate) for i, rate in enumerate(gpu)]
    machines += [Machine(name=f"cpu{i}", role="cpu", nic_bytes_per_s=rate) for i, rate in enumerate(cpu)]
    cluster = Cluster(machines=tuple(machines))
    carried = traffic(1.0, programme_shares(cluster))
    planned = max(nbytes / m.nic_bytes_per_s for nbytes, m in zip(carried, machines, strict=True))
    assert flat(1.0, Limits(cluster=cluster)).seconds == pytest.approx(planned, rel=1e-6)


def least_seconds(limits):
    """By bisection, without racks: by T, every machine may own so much by NIC, adder and memory; is that M in all?"""
    n = limits.cluster.n

    def owned(machine, seconds):
        gpu = machine.role == "gpu"
        rooms = [
            (machine.nic_bytes_per_s, 1.0 if gpu else 0.0, n - 2.0 if gpu else n),
            (limits.adders.get(machine.name, np.inf), 0.0, n - 1.0),
            (limits.memories.get(machine.name, np.inf), 4.0 if gpu else 0.0, 5.0 * n - 7 if gpu else 5.0 * n - 3),
        ]
        if any(seconds * rate < fixed for rate, fixed, _ in rooms):
            return -np.inf
        return min([1.0, *((seconds * rate - fixed) / slope for rate, fixed, slope in rooms if slope)])

    low, high = 0.0, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        enough = sum(owned(machine, middle) for machine in limits.cluster.machines) >= 1
        low, high = (low, middle) if enough else (middle, high)
    return high


@settings(deadline=None, max_examples=80)
@given(limited(racks=("",)))
def test_adders_and_memories_as_by_bisection(limits):
    assert flat(1.0, limits).seconds == pytest.approx(least_seconds(limits), rel=1e-6)


def test_a_cpu_machine_touches_almost_five_bytes_of_memory_for_each_that_arrives():
    n = 32
    cluster = uniform_cluster(n, n, 1.0)

    def planned(memory):
        return flat(1.0, Limits(cluster=cluster, memories={machine.name: memory for machine in cluster.cpu_machines}))

    just_enough = (5 * n - 3) / n
    assert planned(just_enough).seconds == pytest.approx(1.0)
    assert planned(just_enough * 0.99).seconds > 1.001
    assert {name.split()[0] for name in planned(just_enough * 0.99).binding} == {"nic", "memory"}


@pytest.mark.parametrize("over", [1.0, 1.2, 2.0, 4.0])
def test_flat_without_cpu_machines_fills_the_uplinks(over):
    racks, m = 4, 8
    n = racks * m
    plan = flat(1.0, Limits(cluster=racked(racks, m, 0, over)))
    assert plan.seconds == pytest.approx(max(2 * (n - 1) / n, over * 2 * (racks - 1) / racks))
    if over > 1.5:
        assert plan.binding == pytest.approx({f"uplink of r{rack}": 1 / racks for rack in range(racks)})


@pytest.mark.parametrize("over", [1.0, 4.0, 8.0, 16.0])
def test_two_levels_without_cpu_machines_cost_nothing_until_one_copy_per_rack_fills_the_uplink(over):
    racks, m = 4, 8
    plan = two_level(1.0, Limits(cluster=racked(racks, m, 0, over)))
    assert plan.seconds == pytest.approx(max(2 * (racks * m - 1) / (racks * m), over / m * 2 * (racks - 1) / racks))


@pytest.mark.parametrize("racks, m, spare", [(4, 8, 4), (4, 8, 8), (2, 4, 2), (8, 4, 4), (3, 5, 1)])
def test_two_levels_with_cpu_machines_in_the_racks(racks, m, spare):
    """CPU machines sum some part of every rack; and all that is summed across, if that part is large enough."""
    part = (spare * (2 * m - 1) - m * (racks - 2) / racks) / (m * (m + 1) + spare * (m - 1))
    seconds = (2 * m - 1 - (m - 1) * part) / m
    if part < 1 / racks:  # then GPU machines sum some across
        part = spare * (2 * m - 2 / racks) / (m * (m + racks - 1) + spare * (m + racks - 3))
        seconds = (m + racks - 1) * part / spare
    assert part <= 1
    assert two_level(1.0, Limits(cluster=racked(racks, m, spare))).seconds == pytest.approx(seconds)


def test_one_rack_alone_is_flat():
    limits = Limits(cluster=racked(1, 6, 3))
    assert two_level(1.0, limits).seconds == pytest.approx(flat(1.0, limits).seconds)


def test_machines_that_are_named_limit_and_are_named():
    cluster = uniform_cluster(3, 1, 1.0)
    plan = flat(1.0, Limits(cluster=cluster, adders={"cpu0": 0.1}))
    assert plan.binding["adder of cpu0"] > 0
    assert set(plan.binding) == {"nic of gpu0", "nic of gpu1", "nic of gpu2", "adder of cpu0"}


# Errors


def test_what_cannot_be_planned_is_named():
    with pytest.raises(ValueError, match="n = 1: one worker alone has nothing to sum; use n >= 2"):
        Limits(cluster=uniform_cluster(1, 3, 1.0))
    with pytest.raises(ValueError, match=r"adders has 'cpu1': 1.0; name machines of the cluster"):
        Limits(cluster=uniform_cluster(2, 1, 1.0), adders={"cpu1": 1.0})
    with pytest.raises(ValueError, match=r"memories has 'gpu0': 0.0; .* rates above 0"):
        Limits(cluster=uniform_cluster(2, 1, 1.0), memories={"gpu0": 0.0})
