"""Codecs against their definitions, written down once more without speed, and the laws of error feedback."""

import contextlib
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps import codecs
from byteps.codecs import BLOCK, Codec, PayloadError

SPELLINGS = ["onebit", "topk:0.01", "topk:0.3", "randomk:0.01", "randomk:1.0"]
SIZES = [1, 7, 8, 9, 31, 1000, 4096, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 777]
KINDS = ["normal", "integers", "mostly zero", "zero", "constant", "wide", "rows"]


def numbers(kind: str, size: int, seed: int, dtype: type = np.float32) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "normal":
        values = rng.standard_normal(size)
    elif kind == "integers":  # many are equal
        values = rng.integers(-3, 4, size)
    elif kind == "mostly zero":
        values = rng.standard_normal(size) * (rng.random(size) < 0.002)
    elif kind == "zero":
        values = np.zeros(size)
    elif kind == "constant":
        values = np.full(size, -2.5)
    elif kind == "wide":
        values = rng.standard_normal(size) * 10.0 ** rng.integers(-20, 15, size)
    else:  # rows of 17, the first column large: what a sample of every 17th element misjudges
        values = np.where(np.arange(size) % 17 == 0, 100.0, 1.0) * rng.standard_normal(size)
    return values.astype(dtype)


def encoded(codec: Codec, left: np.ndarray, values: np.ndarray | None = None, draw: int = 0) -> np.ndarray:
    payload = np.empty(codec.nbytes(left.size), np.uint8)
    codec.encode(left, payload, values, draw=draw)
    return payload


def decoded(codec: Codec, payload: np.ndarray, size: int, dtype: type = np.float32, draw: int = 0) -> np.ndarray:
    target = np.empty(size, dtype)
    codec.decode(payload, target, draw=draw)
    return target


def by_definition(spelling: str, values: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """In float64, block by block; `drawn`: the places that a lot chose."""
    out = np.zeros(values.size)
    for start in range(0, values.size, BLOCK):
        block = values[start : start + BLOCK].astype(np.float64)
        place = out[start : start + BLOCK]
        name, _, ratio = spelling.partition(":")
        if name == "onebit":
            place[:] = np.where(np.signbit(block), -1, 1) * np.abs(block).mean()
        elif name == "topk":
            k = max(1, round(block.size * float(ratio)))
            kept = np.argsort(-np.abs(block), kind="stable")[:k]
            place[kept] = block[kept]
        else:
            kept = drawn[start : start + BLOCK]
            place[kept] = block[kept]
    return out


def drawn(codec: Codec, size: int, draw: int) -> np.ndarray:
    """Where a codec that draws would put ones."""
    payload = np.frombuffer(np.ones(codec.nbytes(size) // 4, np.float32).tobytes(), np.uint8)
    return decoded(codec, payload, size, draw=draw) == 1


@pytest.mark.parametrize("spelling", SPELLINGS)
@settings(max_examples=25, deadline=None)
@given(
    size=st.sampled_from(SIZES),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 99),
    wide=st.booleans(),
    draw=st.integers(0, 2**90),
)
def test_a_payload_says_what_the_definition_says_and_the_rest_is_left(spelling, size, kind, seed, wide, draw):
    codec, dtype = codecs.get(spelling), np.float64 if wide else np.float32
    values = numbers(kind, size, seed, dtype)
    left = np.zeros(size, dtype)
    said = decoded(codec, encoded(codec, left, values, draw), size, dtype, draw)
    where = drawn(codec, size, draw) if codec.linear else np.zeros(0)
    want = by_definition(spelling, values + 0.0, where)  # no negative zeros: they vanish when left is added
    np.testing.assert_allclose(said, want, rtol=1e-6)  # a payload has float32 numbers
    np.testing.assert_allclose(left + said, values, rtol=2e-7, atol=float(np.abs(values).max() * 2e-7))
    if spelling.startswith("topk"):
        assert set(np.flatnonzero(said)) <= set(np.flatnonzero(want))
        assert not np.any(left[said != 0]) or wide


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("kind", ["integers", "normal"])
def test_what_was_sent_and_what_is_left_are_what_was_given(spelling, kind):
    """Exactly where float32 has no rounding: integers, sent as they are."""
    codec, size = codecs.get(spelling), BLOCK + 999
    left, given_, sent = np.zeros(size, np.float32), np.zeros(size), np.zeros(size)
    for round_ in range(12):
        values = numbers(kind, size, round_)
        given_ += values
        sent += decoded(codec, encoded(codec, left, values, round_), size, draw=round_)
    exact = kind == "integers" and spelling != "onebit"
    np.testing.assert_allclose(sent + left, given_, atol=0 if exact else 1e-5)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_adding_is_decoding_times_a_factor_on_top(spelling):
    codec, size = codecs.get(spelling), BLOCK + 13
    payload = encoded(codec, numbers("normal", size, 1))
    for dtype in (np.float32, np.float64):
        total = numbers("normal", size, 2, dtype)
        want = total + 0.5 * decoded(codec, payload, size, dtype)
        codec.decode_add(payload, total, factor=0.5)
        np.testing.assert_allclose(total, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_sixteen_bit_numbers_are_encoded_as_float32_ones_and_rounded_at_the_end(spelling, dtype):
    codec, size = codecs.get(spelling), BLOCK + 13
    values = numbers("normal", size, 3).astype(dtype)
    left, wide = np.zeros(size, np.float32), np.zeros(size, np.float32)
    payload = encoded(codec, left, values)
    assert np.array_equal(payload, encoded(codec, wide, values.astype(np.float32)))
    assert np.array_equal(left, wide)
    said = decoded(codec, payload, size)
    assert np.array_equal(
        decoded(codec, payload, size, dtype).astype(np.float32), said.astype(dtype).astype(np.float32)
    )


@given(st.integers(1, 10**9), st.floats(1e-4, 0.5))
def test_the_number_of_bytes_is_a_formula(numel, ratio):
    blocks, rest = divmod(numel, BLOCK)
    assert codecs.get("onebit").nbytes(numel) == sum(4 * (n > 0) + math.ceil(n / 8) for n in (rest,)) + blocks * 8196
    k = blocks * max(1, round(BLOCK * ratio)) + (max(1, round(rest * ratio)) if rest else 0)
    assert codecs.get(f"topk:{ratio!r}").nbytes(numel) == 6 * k
    assert codecs.get(f"randomk:{ratio!r}").nbytes(numel) == 4 * k


def test_a_partition_of_a_million_floats_is_25_times_smaller_by_onebit():
    numel = 4_096_000 // 4
    fewer = {spelling: 4 * numel / codecs.get(spelling).nbytes(numel) for spelling in SPELLINGS}
    assert fewer["onebit"] > 31.9
    assert fewer["topk:0.01"] == pytest.approx(66.7, rel=1e-3)
    assert fewer["randomk:0.01"] == pytest.approx(100, rel=1e-3)


@given(st.sampled_from(["randomk:0.01", "randomk:0.3"]), st.sampled_from(SIZES), st.integers(0, 2**90))
@settings(deadline=None)
def test_a_draw_is_of_distinct_elements_one_of_every_run(spelling, size, draw):
    codec = codecs.get(spelling)
    for start in range(0, size, BLOCK):
        numel = min(BLOCK, size - start)
        k = codec.nbytes(numel) // 4
        places = np.flatnonzero(drawn(codec, size, draw)[start : start + numel])
        assert np.array_equal(places * k // numel if numel % k == 0 else np.arange(k), np.arange(k))
        assert len(places) == k


def test_every_element_is_drawn_equally_often_and_differently_each_round():
    codec, size, rounds = codecs.get("randomk:0.05"), 1000, 4000
    counts = sum(drawn(codec, size, draw << 14).astype(int) for draw in range(rounds))
    expected = rounds * 0.05
    assert np.abs(counts - expected).max() < 5 * math.sqrt(expected)
    # Neighbouring rounds agree as often as chance has it.
    both = [(drawn(codec, size, n << 14) & drawn(codec, size, (n + 1) << 14)).mean() for n in range(200)]
    assert np.mean(both) == pytest.approx(0.05**2, rel=0.15)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_goes_out_at_once_and_is_not_kept(spelling, odd):
    codec, size = codecs.get(spelling), BLOCK + 100
    values = numbers("normal", size, 4)
    values[BLOCK + 50] = odd
    left = np.zeros(size, np.float32)
    said = decoded(codec, encoded(codec, left, values), size)
    assert not np.isfinite(said[BLOCK:]).all()
    assert np.isfinite(said[:BLOCK]).all()  # blocks have nothing to do with each other
    assert np.isfinite(left).all()
    assert np.isfinite(decoded(codec, encoded(codec, left, numbers("normal", size, 5), 1), size, draw=1)).all()


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_double_that_is_infinite_in_float32_is_not_kept_when_it_is_sent(spelling):
    codec, size = codecs.get(spelling), 1000
    draw = next(n for n in range(10**6) if not codec.linear or drawn(codec, size, n)[3])
    values = numbers("normal", size, 6, np.float64)
    values[3] = 1e300
    left = np.zeros(size)
    assert np.isinf(decoded(codec, encoded(codec, left, values, draw), size, np.float64, draw)).any()
    assert np.isfinite(left).all()


def test_sums_beyond_float32_are_no_warnings(recwarn):
    for spelling in SPELLINGS:
        codec, left = codecs.get(spelling), np.full(BLOCK, 3e38, np.float32)
        payload = encoded(codec, left)
        total = np.full(BLOCK, 3e38, np.float32)
        codec.decode_add(payload, total)
        assert np.isinf(total).any()
    assert not recwarn.list


@given(st.sampled_from(SPELLINGS), st.binary(max_size=400), st.integers(1, 300))
def test_any_bytes_are_a_payload_or_an_error(spelling, text, size):
    codec, total = codecs.get(spelling), np.zeros(size, np.float32)
    for payload in (text, (text * 400)[: codec.nbytes(size)]):
        with contextlib.suppress(PayloadError):
            codec.decode_add(np.frombuffer(payload, np.uint8), total)


def test_places_out_of_range_or_order_are_refused():
    codec = codecs.get("topk:0.5")
    payload = encoded(codec, np.arange(8, dtype=np.float32))
    for places in ([4, 5, 6, 8], [4, 5, 6, 65535], [4, 4, 6, 7], [7, 6, 5, 4]):
        bad = payload.copy()
        bad[16:] = np.frombuffer(np.array(places, np.uint16).tobytes(), np.uint8)
        with pytest.raises(PayloadError, match="not ascending"):
            codec.decode_add(bad, np.zeros(8, np.float32))


@pytest.mark.parametrize(
    "spelling, words",
    [
        ("twobit", "use onebit, topk:RATIO or randomk:RATIO"),
        ("topk", "use onebit, topk:RATIO"),
        ("onebit:0.1", "use onebit, topk:RATIO"),
        ("topk:", "'' is no number; write topk:0.01"),
        ("topk:much", "'much' is no number"),
        ("topk:0", "ratio 0 is out of range; use more than 0 and at most 0.5"),
        ("topk:0.51", "at most 0.5"),
        ("topk:nan", "out of range"),
        ("randomk:-0.1", "out of range"),
        ("randomk:1.01", "at most 1"),
    ],
)
def test_a_spelling_that_is_none_is_refused_with_what_is_allowed(spelling, words):
    with pytest.raises(ValueError, match=words.replace("'", ".")):
        codecs.get(spelling)


def test_equal_codecs_have_one_spelling():
    assert codecs.get("topk:0.010").spelling == codecs.get("topk:1e-2").spelling == "topk:0.01"
    for spelling in SPELLINGS:
        codec = codecs.get(spelling)
        assert codecs.by_code(codec.code, codec.ratio).spelling == spelling
    with pytest.raises(PayloadError, match="codec number 9"):
        codecs.by_code(9, 0.0)
    with pytest.raises(PayloadError, match="out of range"):
        codecs.by_code(2, math.nan)
