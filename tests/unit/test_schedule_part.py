"""Parts of nodes: all together compute the sum, in whatever order messages arrive."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.schedule import Schedule
from byteps.schedule_part import Combine, Instruction, Part, Transmit, plan_parts
from byteps.schedules.catalogue import SCHEMES, build
from tests.unit.schemes import all_schemes

ALL = all_schemes()


def play(schedule: Schedule, seed: int) -> np.ndarray:
    """Run all parts against each other; what happens next is chosen at random."""
    random = np.random.default_rng(seed)
    n, chunks = schedule.num_workers, schedule.shares.size
    places: dict[tuple[int, int], float] = {(w, c): w * 1000.0 + c for w in range(n) for c in range(chunks)}
    parts = [Part(plan=plan) for plan in plan_parts(schedule)]
    messages: dict[int, float] = {}
    to_do: list[tuple[int, Instruction | str]] = [(node, "start") for node in range(schedule.num_nodes)]
    arrivals: list[tuple[int, int]] = []
    while to_do or arrivals:
        pick = int(random.integers(len(to_do) + len(arrivals)))
        if pick >= len(to_do):
            node, step = arrivals.pop(pick - len(to_do))
            to_do += [(node, one) for one in parts[node].arrived(step)]
            continue
        node, what = to_do.pop(pick)
        if isinstance(what, Transmit):
            messages[what.step] = places[node, what.chunk]
            arrivals.append((what.dst, what.step))
            to_do += [(node, one) for one in parts[node].done(what.step)]
        elif isinstance(what, Combine):
            total = sum(messages[step] for step in what.messages)
            places[node, what.chunk] = total + (places.get((node, what.chunk), 0.0) if what.keep else 0.0)
            to_do += [(node, one) for one in parts[node].done(what.step)]
        else:
            to_do += [(node, one) for one in parts[node].start()]
    assert all(part.finished for part in parts)
    return np.array([[places[w, c] for c in range(chunks)] for w in range(n)])


@pytest.mark.parametrize("name", ALL)
def test_all_parts_together_give_every_worker_the_sum(name: str) -> None:
    schedule = ALL[name]
    if schedule.num_messages > 400:
        pytest.skip("large: proved symbolically")
    n, chunks = schedule.num_workers, schedule.shares.size
    expected = np.arange(chunks) * n + 1000.0 * n * (n - 1) / 2
    assert (play(schedule, 1) == expected).all()


@given(st.sampled_from(["ring 4", "tree 5, 5 pieces", "BytePS 3 2", "HiPS 2 2"]), st.integers(0, 10**6))
def test_the_order_of_arrivals_does_not_matter(name: str, seed: int) -> None:
    schedule = ALL[name]
    n = schedule.num_workers
    assert (play(schedule, seed) == np.arange(schedule.shares.size) * n + 1000.0 * n * (n - 1) / 2).all()


def test_a_message_that_was_here_before_is_refused_and_what_is_missing_is_named() -> None:
    plan = plan_parts(ALL["mesh 3"])[0]
    part = Part(plan=plan)
    part.start()
    step = next(iter(plan.arriving))
    assert "chunk 0 from node 1" in part.waiting_for()
    part.arrived(step)
    with pytest.raises(ValueError, match="not expected"):
        part.arrived(step)


def test_nothing_leaves_before_the_node_s_own_contribution_is_there() -> None:
    part = Part(plan=plan_parts(ALL["mesh 3"])[0])
    assert all(part.arrived(step) == [] for step in list(part.plan.arriving))
    assert part.start()


@pytest.mark.parametrize("scheme", sorted(set(SCHEMES) - {"inside"}))  # which needs a machine (test_inside)
def test_every_scheme_has_a_name(scheme: str) -> None:
    assert build(scheme, 9, 2).num_workers == 9


@pytest.mark.parametrize(
    ("scheme", "k", "words"),
    [
        ("star", 0, "known are mesh, relayed-mesh, ring"),
        ("gray-ring", 0, "must be a square"),
        ("bml:3x2", 0, "ports.levels = 6"),
        ("servers", 0, "needs machines beside the workers"),
        ("torus:2x4", 0, "two numbers whose product is 6"),
        ("tree:x", 0, "whole number"),
        ("inside", 4, "PRESET/WAY"),
    ],
)
def test_names_that_make_no_sense_are_refused(scheme: str, k: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(scheme, 6, k)
