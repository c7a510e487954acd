"""Benchmarks with bounds: verdicts, tables, and how rows follow from records."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from baselines.launch import Contender, Launch, Machine
from experiments import bench, bounds, footprint, knee, loopback, record, small_tensors
from experiments.bounds import Row
from experiments.record import SCHEMA_VERSION, Case, OracleCheck, Record, case_hash


def _record(case: Case, seconds: list[float], *, cpu_seconds: float = 0.0, passed: bool = True) -> Record:
    return Record(
        schema=SCHEMA_VERSION,
        case=case,
        case_hash=case_hash(case),
        code_hash="",
        contender_version="",
        provenance="measured",
        started_at="",
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        oracle=OracleCheck(max_error=0.0, tolerance=0.0, checked=1, passed=passed),
        host={"cores": "2"},
    )


def _row(rows: list[Row], what: str) -> Row:
    return next(row for row in rows if what in row.what)


@pytest.mark.parametrize(
    ("values", "direction", "verdict"),
    [
        ((0.8, 0.9, 1.0), "at least", "met"),
        ((0.8, 0.84, 1.0), "at least", "not met"),
        ((0.8,), "at most", "met"),
        ((0.86,), "at most", "not met"),
        ((), "at most", "no data"),
    ],
)
def test_the_median_decides(values: tuple[float, ...], direction: str, verdict: str) -> None:
    assert Row(what="x", values=values, bound=0.85, direction=direction).verdict == verdict


def test_without_a_bound_there_is_no_verdict() -> None:
    assert Row(what="x", values=(1.0,)).verdict == ""


def test_columns_of_a_table_are_aligned() -> None:
    rows = [Row(what="a", values=(1.0, 2.0), unit="s"), Row(what="longer", values=(3.0,), bound=4.0, note="why")]
    lines = bounds.table(rows).splitlines()
    assert len({line.index(word) for line, word in zip(lines, ("median", "1.5 s", "3"), strict=True)}) == 1
    assert lines[2].endswith("not met (why)")
    assert str(bounds.block(rows)).count("\n") == 3


def test_loopback_pairs_are_alternated_and_compared_within_blocks() -> None:
    cases = loopback.cases(blocks=2, mxnet_blocks=0)
    assert [case.contender for case in cases] == ["byteps", "echo", "echo", "byteps"]
    seconds = {"byteps": 2.0, "echo": 1.0}
    records = [
        _record(case, [seconds[case.contender] * (1 + case.block)] * 2, cpu_seconds=seconds[case.contender])
        for case in cases
    ]
    rows = loopback.rows(records)
    assert _row(rows, "throughput, BytePS / echo").values == (0.5, 0.5)
    assert _row(rows, "core-seconds per GiB, BytePS / echo").values == (2.0, 2.0)
    assert _row(rows, "echo core-seconds").values == (2.0, 2.0)  # 1 s for two passes of a quarter GiB


def test_on_loopback_the_lone_worker_has_a_server() -> None:
    one = Machine(host="gpu0", address="127.0.0.1", interface="lo")
    launch = Launch(
        gpu_machines=(one,), cpu_machines=(one,), scheduler=one, nic_bytes_per_s=0.0, nbytes=4, settings={}, secret="00"
    )
    plan = loopback.contender("byteps").plan
    assert plan is not None
    assert [process.env["DMLC_ROLE"] for process in plan(launch)] == ["scheduler", "server", "worker"]
    assert {process.env["BYTEPS_FORCE_DISTRIBUTED"] for process in plan(launch)} == {"1"}


def test_on_loopback_mxnet_is_compared_with_one_key_and_with_16() -> None:
    cases = loopback.cases(blocks=3, mxnet_blocks=2)
    assert [case.contender for case in cases[:4]] == ["mxnet-sync", "byteps", "echo", "mxnet-sync"]
    seconds = {"byteps": 1.0, "echo": 1.0, "16": 2.0, "1": 6.0}
    taken = [seconds[case.settings.get("keys", case.contender)] for case in cases]
    rows = loopback.rows([_record(case, [one], cpu_seconds=1.0) for case, one in zip(cases, taken, strict=True)])
    assert _row(rows, "BytePS / MXNet, 16 keys").values == (2.0, 2.0)
    assert _row(rows, "BytePS / MXNet, 16 keys").verdict == "not met"
    assert _row(rows, "BytePS / MXNet, one key").verdict == "met"


def test_what_is_not_installed_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def contender(name: str) -> Contender:
        found = loopback.contender(name)
        return replace(found, missing=lambda: "MXNet is not installed; install it") if name == "mxnet-sync" else found

    asked: list[str] = []

    def execute(cases: Sequence[Case], _raw: Path, _tell: bench.Tell) -> list[Record]:
        asked.extend(case.contender for case in cases)
        return []

    absent = replace(bench.BENCHMARKS["loopback"], contender=contender, execute=execute)
    monkeypatch.setitem(bench.BENCHMARKS, "loopback", absent)
    assert bench.main(["loopback"], tmp_path) == 0
    assert set(asked) == {"byteps", "echo"}
    assert "without mxnet-sync: MXNet is not installed; install it" in capsys.readouterr().out


def test_a_wrong_sum_enters_no_ratio() -> None:
    records = [_record(case, [1.0], passed=case.contender == "echo") for case in loopback.cases(blocks=1)]
    assert _row(loopback.rows(records), "throughput, BytePS / echo").verdict == "no data"


def test_small_tensors_are_compared_with_gloo_one_by_one() -> None:
    seconds = {("byteps", "asynchronously"): 1.0, ("byteps", "one by one"): 6.0, ("gloo", "one by one"): 5.0}
    cases = small_tensors.cases(blocks=3)
    assert {tuple(case.contender for case in cases[start : start + 3]) for start in (0, 3, 6)} == {
        ("byteps", "gloo", "byteps"),
        ("gloo", "byteps", "byteps"),
        ("byteps", "byteps", "gloo"),
    }
    rows = small_tensors.rows([_record(case, [seconds[case.contender, case.settings["submit"]]]) for case in cases])
    assert _row(rows, "asynchronously, BytePS / gloo").median == pytest.approx(0.2)
    assert _row(rows, "one at a time, BytePS / gloo").median == pytest.approx(1.2)
    assert _row(rows, "gloo, one by one, per tensor").median == pytest.approx(500.0)


@pytest.mark.parametrize(
    ("reached", "expected"),
    [([], 0.0), ([(1.0, 0.95), (2.0, 0.9), (5.0, 0.3)], 2.0), ([(2.0, 0.95), (1.0, 0.5)], 0.0)],
)
def test_the_knee_needs_every_lower_rate(reached: list[tuple[float, float]], expected: float) -> None:
    assert knee.knee_bytes_per_s(reached) == expected


def test_the_knee_sweep_names_what_the_emulation_cannot_carry() -> None:
    one, *_ = knee.cases()
    optimum = one.nbytes / (one.nic_bytes_per_s * 1448 / 1514)  # k = n: M / B
    rows = knee.rows([_record(one, [optimum / 0.95])])
    assert _row(rows, "of t_opt at 200 Mbit/s").median == pytest.approx(0.95)
    assert _row(rows, "knee: highest").median == pytest.approx(0.2)
    assert _row(rows, "knee per core").median == pytest.approx(0.1)
    assert all(16 << 20 <= case.nbytes <= 64 << 20 for case in knee.cases())


def test_footprint_counts_processes_that_loaded_torch() -> None:
    first, second = footprint.cases(blocks=1)
    records = [
        msgspec.structs.replace(_record(first, [0.2], passed=False), facts={}),
        msgspec.structs.replace(_record(second, [1.0]), facts={"rss_bytes": "41000000"}),
    ]
    rows = footprint.rows(records)
    assert [row.verdict for row in rows] == ["met", "met", "not met"]


def test_the_report_takes_the_newest_records_that_are_kept(tmp_path: Path) -> None:
    for seconds in (9.0, 2.0):
        for case in loopback.cases():
            scale = seconds if case.contender == "byteps" else 1.0
            record.append(tmp_path / "raw" / "loopback.jsonl", _record(case, [scale] * 3, cpu_seconds=scale))
    text = "\n".join(map(str, bench.report_blocks(tmp_path, ("raw", "reference"), lambda _: [])))
    assert re.search(r"\| throughput, BytePS / echo +\| 0\.5 +\|", text)
    assert bench.keep(tmp_path) == [tmp_path / "reference" / "loopback.jsonl"]
    assert "\n".join(map(str, bench.report_blocks(tmp_path, ("reference",), lambda _: []))) == text


def test_without_records_the_report_has_no_section(tmp_path: Path) -> None:
    assert bench.report_blocks(tmp_path, ("raw", "reference"), lambda _: []) == []


def test_an_unknown_benchmark_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["lopback"]) == 2
    assert "lopback" in capsys.readouterr().err
