"""Cases that are simulated: what they become, their records, and the commands that make them."""

import json
from pathlib import Path

import pytest
from test_record import make_case
from typer.testing import CliRunner

from byteps import theory
from experiments import agenda, analysis, backends, record, simulate
from experiments.__main__ import app
from experiments.agenda import RunError

OWN = """
name = "mine"
title = "t"
provenance = "{provenance}"
warmups = 0
iterations = 1
[[contender]]
name = "byteps"
settings = {{ machine = ["{machine}"] }}
[[contender]]
name = "horovod"
settings = {{ machine = ["one-gpu"] }}
[tier.reproduce]
blocks = 1
n = 4
ks = [0, 4]
nbytes = ["16MiB"]
nic = "1Gbit"
"""


def own(folder: Path, provenance: str = "simulated", machine: str = "one-gpu") -> str:
    path = folder / "mine.toml"
    path.write_text(OWN.format(provenance=provenance, machine=machine), encoding="utf-8")
    return str(path)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["run", *arguments])
    return result.exit_code, result.output


def test_a_simulation_leaves_a_verified_record_for_each_case_and_is_not_repeated(tmp_path: Path) -> None:
    results = tmp_path / "results"
    code, output = run(own(tmp_path), "--results", str(results))
    assert code == 0, output
    assert "3 of 3 cases" in output
    path = results / "raw" / "mine.sim.jsonl"
    records, bad = record.read(path)
    assert (len(records), bad) == (3, [])
    for one in records:
        assert one.verified
        assert (one.provenance, one.oracle, len(one.seconds), one.started_at[-1]) == ("simulated", None, 1, "Z")
        assert one.facts["bottleneck"]
    before = path.read_bytes()
    code, output = run(own(tmp_path), "--on", "sim", "--results", str(results))
    assert (code, "0 of 3 cases" in output, path.read_bytes()) == (0, True, before)


def test_a_record_of_other_code_answers_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (own(tmp_path), "--results", str(tmp_path / "results"))
    run(*arguments)
    monkeypatch.setattr(backends, "code", lambda: "other")
    assert "3 of 3 cases" in run(*arguments)[1]


def test_what_cannot_be_simulated_leaves_its_error(tmp_path: Path) -> None:
    code, output = run(own(tmp_path, machine="abacus"), "--results", str(tmp_path))
    assert code == 1
    assert "'abacus' is no preset" in output
    failed = [one for one in record.read(tmp_path / "raw" / "mine.sim.jsonl")[0] if one.error]
    assert [one.verified for one in failed] == [False, False]


def test_theory_gives_the_closed_forms_and_says_where_there_are_none(tmp_path: Path) -> None:
    assert run(own(tmp_path), "--on", "theory", "--results", str(tmp_path))[0] == 0
    records, _ = record.read(tmp_path / "raw" / "mine.theory.jsonl")
    rate = 1e9 / 8 * theory.TCP_PAYLOAD_FRACTION
    expected = {("byteps", k): theory.byteps_seconds(2**24, 4, k, rate) for k in (0, 4)}
    expected["horovod", 0] = theory.ring_seconds(2**24, 4, rate)
    assert {(one.case.contender, one.case.k): one.seconds[0] for one in records} == pytest.approx(expected)
    assert all(one.verified and one.provenance == "theory" for one in records)
    code, output = run("fig13", "--on", "theory", "--results", str(tmp_path))
    assert code == 2
    assert "theory has no closed form for any case of fig13" in output


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("fig12", "--on", "cloud"), "--on cloud: use one of lab, cluster, sim, theory"),
        (("fig12", "--on", "cluster"), "--on cluster: name the file that describes its hosts, --cluster my.toml"),
        (("fig12", "--on", "sim", "--cluster", "a.toml"), "--on sim --cluster a.toml: a cluster file is for"),
        (("fig12", "--cluster", "none.toml"), "none.toml: No such file"),
        (("sizes", "--on", "sim"), "sizes is not simulated; simulated are fig12"),
        (("fig13", "--on", "lab"), "fig13 does not run here, it is simulated: use --on sim"),
        (("fig13", "--tier", "sweep"), "experiment fig13 has no tier 'sweep'; it has"),
        (("fig99",), "no experiment 'fig99'; there are"),
    ],
)
def test_a_wrong_place_is_one_clear_error(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    code, output = run(*arguments, "--results", str(tmp_path))
    assert code == 2
    assert said in output
    assert len(output.splitlines()) == 1


def test_an_emulated_experiment_of_ones_own_is_not_simulated(tmp_path: Path) -> None:
    with pytest.raises(RunError, match='its provenance is "emulated"'):
        backends.compute(own(tmp_path, provenance="emulated"), "reproduce", "sim", raw=tmp_path)


def test_experiments_run_where_they_belong(tmp_path: Path) -> None:
    assert [backends.belongs_to(name) for name in ("fig12", "fig13", own(tmp_path))] == ["lab", "sim", "sim"]
    assert backends.belongs_to(own(tmp_path, provenance="emulated")) == "lab"


def test_every_simulated_case_of_the_suite_has_a_simulation() -> None:
    for name in agenda.simulations():
        experiment = agenda.load_simulation(name)
        assert experiment.name == name
        for case in agenda.cases_of(experiment, "reproduce"):
            assert case.dilation == case.scale == 1.0
            assert case.n > 1 or case.k == 0


def test_a_contender_without_a_model_is_named() -> None:
    case = make_case(contender="mpi-ring", settings={"machine": "nvlink"}, workload="gpt2", n=2, k=0)
    with pytest.raises(ValueError, match=r"mpi-ring.*simulated are byteps, horovod"):
        simulate.simulated(case)


def test_bytes_of_the_simulation_are_those_of_the_plan(tmp_path: Path) -> None:
    run(own(tmp_path), "--results", str(tmp_path))
    records, _ = record.read(tmp_path / "raw" / "mine.sim.jsonl")
    for one in records:
        rate = one.case.nic_bytes_per_s * theory.TCP_PAYLOAD_FRACTION
        sent = float(one.facts["bytes gpu/NIC0.out"])
        assert sent == pytest.approx(analysis.bound_seconds(one.case) * rate, rel=1e-6)
        assert json.loads(record.canonical_json(one.facts)) == one.facts


def test_every_file_that_results_depend_on_is_there() -> None:
    assert [pattern for pattern in backends.SOURCES if not list(backends.ROOT.glob(pattern))] == []
