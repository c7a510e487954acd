import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps.assign import paper_shares
from byteps.table import TensorTable
from byteps.wire import Op, TensorSpec, make_key

NAMES = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), unique=True, min_size=1, max_size=30)


def table(n: int = 4, k: int = 2, **changes: object) -> TensorTable:
    shares = paper_shares(n, k).all
    values = {
        "shares": shares,
        "processes": [1] * len(shares),
        "num_workers": n,
        "partition": 1000,
        "placement": "exact",
        "nic_bytes_per_s": None,
    }
    return TensorTable(**values | changes)


def spec(name: str, numel: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, shape=(numel,), dtype=dtype, op=Op.SUM)


def test_the_golden_table():
    """Numbers, cuts and owners of a small batch, written down: they may not change from process to process."""
    golden = table()
    batch = [spec("w1", 900), spec("b1", 10), spec("w2", 600, "float16"), spec("empty", 0), spec("flags", 7, "uint8")]
    entries = {entry.spec.name: (entry.number, entry.cut_nbytes, entry.owners) for entry in golden.register(batch)}
    assert entries == GOLDEN_EXACT
    hashed = table(placement="hash")
    entries = {entry.spec.name: (entry.number, entry.cut_nbytes, entry.owners) for entry in hashed.register(batch)}
    assert entries == GOLDEN_HASH


GOLDEN_EXACT = {
    "b1": (0, 1000, (4,)),
    "empty": (1, 1000, ()),
    "flags": (2, 1000, (5,)),
    "w1": (3, 1000, (0, 1, 4, 2)),
    "w2": (4, 1000, (5, 3)),
}
GOLDEN_HASH = {
    "b1": (0, 1000, (5,)),
    "empty": (1, 1000, ()),
    "flags": (2, 1000, (1,)),
    "w1": (3, 1000, (5, 1, 2, 5)),
    "w2": (4, 1000, (1, 1)),
}


@given(NAMES, st.randoms(use_true_random=False), st.sampled_from(["exact", "hash"]))
@settings(max_examples=50, deadline=None)
def test_the_order_of_declaration_does_not_matter(names, shuffler: random.Random, placement):
    batch = [spec(name, 37 * len(name) + 5) for name in names]
    first = table(placement=placement).register(batch)
    shuffler.shuffle(batch)
    assert table(placement=placement).register(batch) == first
    assert [entry.spec.name for entry in first] == sorted(names)
    assert [entry.number for entry in first] == list(range(len(names)))


@given(st.integers(2, 9), st.integers(0, 9), st.lists(st.integers(1, 20_000), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_every_batch_is_within_one_partition_of_its_shares(n, k, numels):
    tensors = table(n, k)
    for batch in range(2):
        entries = tensors.register([spec(f"{batch}/{i}", numel) for i, numel in enumerate(numels)])
        carried: Counter[int] = Counter()
        for entry in entries:
            for part, owner in enumerate(entry.owners):
                carried[owner] += min(entry.cut_nbytes, entry.spec.nbytes - part * entry.cut_nbytes)
        total = sum(carried.values())
        assert total == 4 * sum(numels)
        for owner, share in enumerate(paper_shares(n, k).all):
            assert abs(carried[owner] - share * total) <= 1000
            assert share > 0 or carried[owner] == 0


def test_known_names_are_not_registered_again():
    tensors = table()
    tensors.register([spec("a", 5)])
    (entry,) = tensors.register([spec("b", 5), spec("a", 5)])
    assert (entry.spec.name, entry.number) == ("b", 1)
    assert tensors.register([spec("a", 5)]) == ()
    assert tensors.names == ["a", "b"]


def test_cuts_are_whole_elements():
    for dtype, nbytes in (("float64", 8), ("float32", 4), ("float16", 2), ("uint8", 1)):
        (entry,) = table(partition=1003).register([spec("w", 5000, dtype)])
        assert entry.cut_nbytes == 1003 // nbytes * nbytes
        assert len(entry.owners) == -(-entry.spec.nbytes // entry.cut_nbytes)


def test_a_machine_of_several_processes_shares_its_share_evenly():
    tensors = table(2, 2, processes=[1, 1, 3, 1])
    (entry,) = tensors.register([spec("w", 300_000)])
    carried = Counter(entry.owners)
    assert carried[0] == carried[1] == 0
    assert [carried[owner] for owner in (2, 3, 4)] == pytest.approx([200] * 3, abs=1)
    assert carried[5] == pytest.approx(600, abs=1)
    hashed = table(2, 2, processes=[1, 1, 3, 1], placement="hash")
    (entry,) = hashed.register([spec("w", 300_000)])
    carried = Counter(entry.owners)
    assert min(carried[owner] for owner in (2, 3, 4)) > 100
    assert carried[5] > 450


def test_automatic_partitions_are_fixed_by_the_first_batch():
    tensors = table(partition="auto", nic_bytes_per_s=25e6)
    (first,) = tensors.register([spec("w", 16 << 20)])
    assert first.cut_nbytes == 65536
    (second,) = tensors.register([spec("x", 1 << 30)])
    assert second.cut_nbytes == 65536
    assert len(second.owners) == 65536


def test_more_than_65536_partitions_have_keys_of_their_own():
    (first, second) = table(partition=64).register([spec("a", 16 * 65537), spec("b", 4)])
    assert len(first.owners) == 65537
    assert make_key(first.number, 65536) < make_key(second.number, 0)
