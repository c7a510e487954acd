"""Which cases are still to run."""

import pytest
from test_record import make_case, make_record

from experiments import provenance, run
from experiments.record import Fidelity, Record


@pytest.fixture(autouse=True)
def _code(monkeypatch):
    monkeypatch.setattr(provenance, "code_of", lambda _: "code")
    monkeypatch.setattr(run.contenders, "get", lambda _: type("Known", (), {"version": staticmethod(lambda: "1")}))


def bound(**changes: object) -> Record:
    return make_record(fidelity=Fidelity(verdict="cpu-bound"), **changes)


def test_a_verified_record_settles_a_case_and_a_failed_one_does_not():
    assert run.is_done(make_case(), [make_record()])
    assert not run.is_done(make_case(), [])
    assert not run.is_done(make_case(), [make_record(error="died"), make_record(error="died")])


def test_a_case_that_was_cpu_bound_twice_with_the_same_code_is_settled():
    assert not run.is_done(make_case(), [bound()])
    assert run.is_done(make_case(), [bound(), bound()])
    assert not run.is_done(make_case(), [bound(), bound(code_hash="other")])


def test_records_of_another_case_settle_nothing():
    assert not run.is_done(make_case(k=0), [make_record(), bound(), bound()])
