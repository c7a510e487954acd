"""The record format: identity, trust, damage."""

import msgspec
import pytest

from baselines.launch import ROOT
from experiments import record
from experiments.record import Case, Fidelity, OracleCheck, Record, RecordError


def make_case(**changes: object) -> Case:
    fields = {
        "experiment": "fig12",
        "tier": "smoke",
        "contender": "byteps",
        "settings": {"partition": "auto"},
        "n": 2,
        "k": 1,
        "nic_bytes_per_s": 25e6,
        "nbytes": 4096,
        "warmups": 1,
        "iterations": 3,
        "block": 0,
    }
    return Case(**{**fields, **changes})


def make_record(case: Case | None = None, **changes: object) -> Record:
    case = case or make_case()
    fields = {
        "schema": record.SCHEMA_VERSION,
        "case": case,
        "case_hash": record.case_hash(case),
        "code_hash": "code",
        "contender_version": "1",
        "provenance": "emulated",
        "started_at": "2026-01-01T00:00:00Z",
        "seconds": [1.0, 2.0, 3.0],
        "oracle": OracleCheck(max_error=0.0, tolerance=0.0, checked=8, passed=True),
        "fidelity": Fidelity(verdict="good"),
    }
    return Record(**{**fields, **changes})


def test_a_record_survives_writing_and_reading(tmp_path):
    path = tmp_path / "deep" / "fig12.jsonl"
    written = [make_record(), make_record(error="boom", seconds=[])]
    for one in written:
        record.append(path, one)
    assert record.read(path) == (written, [])


def test_the_case_hash_depends_on_every_field_but_the_position():
    base = record.case_hash(make_case())
    assert record.case_hash(make_case(position=7)) == base
    for change in ({"k": 2}, {"nbytes": 8}, {"block": 1}, {"settings": {}}, {"tier": "paper"}, {"iterations": 4}):
        assert record.case_hash(make_case(**change)) != base


def test_the_case_hash_does_not_depend_on_the_order_of_settings():
    one, other = make_case(settings={"a": "1", "b": "2"}), make_case(settings={"b": "2", "a": "1"})
    assert record.case_hash(one) == record.case_hash(other)


def test_the_case_hash_is_the_same_in_every_version():
    assert record.case_hash(make_case())[:16] == "8c08b9861df6d72f"


def test_what_a_case_leaves_out_is_no_part_of_its_hash():
    """So that a field which is added with a default leaves the records of before valid."""
    same = make_case(workload="".join(["ten", "sor"]), scale=float("1"), dilation=float("1"))  # equal, not identical
    assert record.case_hash(same) == record.case_hash(make_case())
    for change in ({"workload": "tensors:2"}, {"scale": 2.0}, {"dilation": 2.0}):
        assert record.case_hash(make_case(**change)) != record.case_hash(make_case())


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "reference").glob("*.jsonl")), ids=lambda path: path.stem)
def test_the_records_that_are_kept_as_the_reference_still_match_their_hashes(path):
    records, bad = record.read(path)
    assert [str(line) for line in bad] == []
    assert records


def test_a_truncated_line_is_reported_skipped_and_ended_by_the_next_append(tmp_path):
    path = tmp_path / "a.jsonl"
    record.append(path, make_record())
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:50])
    record.append(path, make_record(code_hash="later"))
    records, bad = record.read(path)
    assert [one.code_hash for one in records] == ["code", "later"]
    assert [line.line for line in bad] == [2]
    assert str(bad[0]).startswith(f"{path}:2: skipped, not a record")


def test_an_unknown_schema_is_refused_with_a_remedy():
    line = msgspec.json.encode(make_record(schema=99))
    with pytest.raises(RecordError, match=r"schema 99, this version reads schema 1: use the version"):
        record.parse_line(line)


def test_a_record_whose_case_was_edited_is_refused():
    line = msgspec.json.encode(make_record()).replace(b'"k":1', b'"k":2')
    with pytest.raises(RecordError, match="does not match"):
        record.parse_line(line)


@pytest.mark.parametrize(
    "changes",
    [
        {"error": "worker 1 exited 1"},
        {"seconds": []},
        {"oracle": None},
        {"oracle": OracleCheck(max_error=1.0, tolerance=0.0, checked=8, passed=False)},
        {"fidelity": Fidelity(verdict="cpu-bound")},
        {"fidelity": Fidelity(verdict="links-off")},
        {"contender_version": "2"},
        {"code_hash": "other code"},
        {"schema": 2},
    ],
)
def test_a_launch_that_is_not_verified_or_of_other_code_is_not_done(changes):
    assert record.done(make_record(), make_case(), contender_version="1", code="code")
    assert not record.done(make_record(**changes), make_case(), contender_version="1", code="code")


def test_another_case_is_not_done():
    assert not record.done(make_record(), make_case(block=1), contender_version="1", code="code")


def test_a_failure_does_not_displace_a_verified_record_of_the_same_code():
    good, failed = make_record(), make_record(error="boom")
    assert record.latest([good, failed]) == [good]
    assert record.latest([failed, good]) == [good]
    newer_failed = make_record(error="boom", code_hash="new code")
    assert record.latest([good, newer_failed]) == [newer_failed]


def test_the_code_hash_sees_names_contents_and_borders():
    assert record.code_hash([("a", b"1"), ("b", b"2")]) == record.code_hash([("b", b"2"), ("a", b"1")])
    assert record.code_hash([("a", b"12")]) != record.code_hash([("a", b"1"), ("2", b"")])


def test_impossible_cases_are_refused():
    with pytest.raises(ValueError, match="n = 0"):
        make_case(n=0)
    with pytest.raises(ValueError, match="iterations = 0"):
        make_case(iterations=0)
