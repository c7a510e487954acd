"""The steps of a machine's GPUs: every contribution is in the result once, and links carry what `strategy` counts."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps.device_plan import (
    Collective,
    Copy,
    DevicePlan,
    Span,
    Way,
    device_plan,
    first_gpus,
    scattered,
    ways_of,
)
from byteps.machine import PRESETS, Topology
from byteps.machine_file import preset
from byteps.planner import choose
from byteps.strategy import LocalPlan, brute_force, cpu_assisted, islands, reduce_broadcast

NAMES = (
    "cpu-assisted",
    "brute-force",
    "reduce-scatter",
    "strawman",
    "reduce-broadcast",
    "80% cpu-assisted + 20% brute-force",
)


def ways(topology: Topology, name: str) -> tuple[Way, ...]:
    return ways_of(topology, name, topology.gpus[1:3] if name == "reduce-broadcast" else ())


def carried_out(plan: DevicePlan) -> np.ndarray:
    """What every rank has at the end: by rank, element and rank, how often the latter's contribution is in it."""
    undefined = -1
    device = np.zeros((plan.ranks, plan.size, plan.ranks), dtype=int)
    device[np.arange(plan.ranks), :, np.arange(plan.ranks)] = 1
    slots = np.full((plan.slots, plan.size, plan.ranks), undefined)
    result = np.full((plan.size, plan.ranks), undefined)

    def parts(one: Collective) -> list[slice]:
        unit, rest = divmod(one.span.size, len(one.ranks))
        assert not rest
        return [slice(one.span.start + unit * i, one.span.start + unit * (i + 1)) for i in range(len(one.ranks))]

    def run(step: Collective | Copy) -> None:
        place = slice(step.span.start, step.span.end)
        assert step.span.size > 0
        if isinstance(step, Copy):
            if step.what == "out":
                assert (slots[step.slot, place] == undefined).all(), "a slot is written twice"
                slots[step.slot, place] = device[step.rank, place]
            else:
                device[step.rank, place] = result[place]
        elif step.what in ("reduce", "broadcast"):
            members = device[list(step.ranks), place]
            value = members.sum(axis=0) if step.what == "reduce" else device[step.root, place].copy()
            device[list(step.ranks), place] = undefined
            for rank in [step.root] if step.what == "reduce" else step.ranks:
                device[rank, place] = value
        else:
            for rank, part in zip(step.ranks, parts(step), strict=True):
                if step.what == "all-gather":
                    device[list(step.ranks), part] = device[rank, part].copy()
                else:
                    total = device[list(step.ranks), part].sum(axis=0)
                    device[list(step.ranks), part] = undefined
                    device[rank, part] = total

    for step in plan.before:
        run(step)
    for one in plan.sums:
        place = slice(one.span.start, one.span.end)
        assert (slots[: one.slots, place] != undefined).all(), "a slot is read that nobody wrote"
        result[place] = slots[: one.slots, place].sum(axis=0)
    for step in plan.after:
        run(step)
    return device


@given(
    machine=st.sampled_from(PRESETS),
    count=st.integers(2, 8),
    name=st.sampled_from(NAMES),
    size=st.integers(1, 3000),
    piece=st.integers(4, 4000),
)
@settings(max_examples=150, deadline=None)
def test_every_contribution_is_in_every_result_once(machine: str, count: int, name: str, size: int, piece: int) -> None:
    topology = first_gpus(preset(machine), count)
    plan = device_plan(ways(topology, name), size, 4, max(piece, 40 * size // 100))
    assert (carried_out(plan) == 1).all()
    assert sum(one.span.size for one in plan.sums) == size


@given(count=st.integers(1, 8), size=st.integers(1, 3000))
@settings(max_examples=40, deadline=None)
def test_without_a_description_all_gpus_take_equal_parts_and_cpus_have_nothing_to_add(count: int, size: int) -> None:
    plan = device_plan(scattered(count), size, 4)
    assert plan.slots == 1
    assert (carried_out(plan) == 1).all()
    copied = [
        sum(step.span.size for step in plan.before if isinstance(step, Copy) and step.rank == r) for r in range(count)
    ]
    assert (
        max(copied[:-1], default=0) <= copied[-1] < max(copied[:-1], default=0) + count * 64 + size * (count == 1) + 1
    )


def loads(plan: DevicePlan, topology: Topology) -> Counter[str]:
    """Bytes per link of PCIe and NVLink, per byte of a gradient, if collectives pass on sums from GPU to GPU."""
    found = Counter[str]()

    def hops(order: list[int], share: float) -> None:
        for a, b in pairwise(topology.gpus[rank] for rank in order):
            for link in topology.route(a, b):
                found[link] += share

    for step in plan.before + plan.after:
        share = step.span.size / plan.size
        if isinstance(step, Copy):
            gpu = topology.gpus[step.rank]
            ends = (gpu, topology.cpu_of(gpu))
            for link in topology.route(*ends) if step.what == "out" else topology.route(*reversed(ends)):
                found[link] += share
            continue
        roots = [step.root] if step.root >= 0 else list(step.ranks)
        for root in roots:
            last = step.ranks.index(root)
            order = [*step.ranks[last + 1 :], *step.ranks[: last + 1]]
            hops(order if step.what.startswith("reduce") else order[::-1], share / len(roots))
    return found


# Of reductions over several islands only NCCL knows the way.
COMPARABLE = [
    (machine, name)
    for machine in PRESETS
    for name in ("cpu-assisted", "brute-force", "reduce-broadcast", "reduce-scatter")
    if "reduce" not in name or len(islands(preset(machine))) == 1
]


@pytest.mark.parametrize(("machine", "name"), COMPARABLE)
def test_links_carry_what_the_formulas_say(machine: str, name: str) -> None:
    """Apart from memory and sockets, which depend on where the pages of the slots are."""
    topology = preset(machine)
    roots = topology.gpus[2:4] if name == "reduce-broadcast" else topology.gpus
    formulas = {"cpu-assisted": cpu_assisted, "brute-force": brute_force}
    by_formula: LocalPlan = formulas[name](topology) if name in formulas else reduce_broadcast(topology, roots)
    size = 64 * 8 * 100
    found = loads(device_plan(ways_of(topology, name, roots), size, 4, 64 * 8 * 40), topology)
    sockets = {link for link in topology.capacities if link.count("CPU") == 2}
    expected = Counter[str]()
    for stage in (*by_formula.before, *by_formula.after):
        expected.update(stage)
    for link in topology.capacities:
        if "->" in link and link not in sockets:
            assert found[link] == pytest.approx(expected[link], abs=1e-9), link


def test_the_paper_s_machine_copies_every_gradient_once_over_each_switch() -> None:
    topology = preset("pcie-only")
    plan = device_plan(ways_of(topology, "cpu-assisted"), 64 * 4, 4)
    found = loads(plan, topology)
    assert plan.slots == 2
    assert found["P0->CPU0"] == found["CPU1->P1"] == pytest.approx(1)
    assert found["GPU0->P0"] == pytest.approx(7 / 4)
    assert plan.steps(5, plan.before) == (
        Collective(what="reduce-scatter", ranks=(4, 5, 6, 7), span=Span(start=0, end=256)),
        Copy(what="out", rank=5, span=Span(start=64, end=128), slot=1),
    )


def test_small_tensors_take_one_reduction_and_one_copy() -> None:
    plan = device_plan(scattered(4), 100, 4)
    assert plan.before == (
        Collective(what="reduce", ranks=(0, 1, 2, 3), span=Span(start=0, end=100), root=3),
        Copy(what="out", rank=3, span=Span(start=0, end=100), slot=0),
    )


def test_what_the_planner_chooses_can_be_carried_out() -> None:
    for machine in ("pcie-only", "nvlink"):
        topology = preset(machine)
        for load in (1.0, 1.75):
            for candidate in choose(topology, load, load).candidates:
                plan = candidate.plan
                assert device_plan(ways_of(topology, plan.name, plan.roots), 1000, 4).ranks == len(topology.gpus)


def test_what_cannot_be_is_said() -> None:
    topology = preset("pcie-only")
    with pytest.raises(ValueError, match="9 workers on machine 'pcie-only', which has 8 GPUs"):
        first_gpus(topology, 9)
    with pytest.raises(ValueError, match=r"strategy 'reduce-broadcast' with roots \['GPU9'\]"):
        ways_of(topology, "reduce-broadcast", ["GPU9"])
    with pytest.raises(ValueError, match="strategy 'ring'"):
        ways_of(topology, "ring")
    with pytest.raises(ValueError, match="a gradient of 0 elements"):
        device_plan(scattered(2), 0, 4)
