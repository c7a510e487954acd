"""The whole road on a small emulated cluster: processes, bytes, records, resuming; and launches that go wrong."""

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from baselines.contenders import CONTENDERS
from baselines.launch import Contender, Launch, Process
from experiments import agenda, crew, launch, record, run, traffic
from experiments.emulated import Emulated
from experiments.record import Case
from scripts.lab import star
from scripts.netns import Lab, why_no_lab

pytestmark = pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")

SAY = "import json, sys, time\nsay = lambda **event: print(json.dumps(event), flush=True)\n"
ONE_CASE = """
say(event="declared")
say(event="ready", iteration=0); sys.stdin.readline()
say(event="done", iteration=0, seconds=0.5); sys.stdin.readline()
say(event="checked", iteration=0, max_error=float(sys.argv[1]))
say(event="ready", iteration=1); sys.stdin.readline()
"""
START = 'say(event="started", facts={}); sys.stdin.readline()\n'
ONE_ITERATION = START + ONE_CASE + 'say(event="stopped")\n'
TWO_CASES = START + ONE_CASE + ONE_CASE


def small(name: str) -> Case:
    return Case(
        experiment="test",
        tier="smoke",
        contender=name,
        settings={},
        n=2,
        k=0,
        nic_bytes_per_s=25e6,
        nbytes=4096,
        warmups=0,
        iterations=1,
        block=0,
    )


def fake(*programs: str) -> Contender:
    """A contender whose workers are these Python programs; a further one is a server."""

    def plan(task: Launch) -> list[Process]:
        processes = []
        for index, program in enumerate(programs):
            machine = (*task.gpu_machines, task.scheduler)[index]
            rank = index if index < len(task.gpu_machines) else -1
            name = f"worker {index}" if rank >= 0 else "server"
            argv = (sys.executable, "-c", SAY + program, "0.0")
            processes.append(Process(host=machine.host, name=name, argv=argv, env={}, rank=rank))
        return processes

    return replace(CONTENDERS["byteps"], name="fake", plan=plan)


@pytest.fixture(scope="module")
def lab():
    with Lab(star(dict.fromkeys(["gpu0", "gpu1", "scheduler"], 25e6))) as up:
        yield up


def attempt_cases(lab: Lab, tmp_path: Path, count: int, *programs: str) -> list[launch.Outcome]:
    cases = [msgspec.structs.replace(small("fake"), position=position) for position in range(count)]
    outcomes = launch.run(cases, fake(*programs), Emulated(lab), logs=tmp_path, tell=lambda _case, _doing: None)
    assert lab.pids() == []
    return outcomes


def attempt(lab: Lab, tmp_path: Path, *programs: str) -> launch.Outcome:
    (outcome,) = attempt_cases(lab, tmp_path, 1, *programs)
    return outcome


@pytest.mark.timeout(300)  # a busy machine repeats its launches
def test_figure_12_runs_small_and_a_second_call_has_nothing_to_do(tmp_path, monkeypatch, capsys):
    experiment = agenda.load("fig12")
    byteps = experiment.contender[0]
    ring = next(choice for choice in experiment.contender if choice.name == "gloo-ring")
    choices = [msgspec.structs.replace(byteps, settings={"partition": ["auto"]}), ring]
    size = msgspec.structs.replace(experiment.tier["smoke"], ks=[1], nbytes=["2MiB"])
    little = msgspec.structs.replace(experiment, contender=choices, tier={"smoke": size}, iterations=2)
    monkeypatch.setattr(run, "load", lambda _: little)
    run.run("fig12", "smoke", raw=tmp_path)
    records, bad = record.read(tmp_path / "fig12.jsonl")
    assert bad == []
    assert {one.case.contender for one in records} == {"byteps", "gloo-ring"}
    for one in records:
        assert one.correct, one.error
        assert len(one.seconds) == 2
        assert one.congestion_control == "cubic"
        assert one.calibration_before is not None
        assert one.calibration_after is not None
        # no transfer is faster than the wire
        assert min(one.seconds) > 0.9 * one.case.nbytes / one.case.nic_bytes_per_s
    ours = next(one for one in records if one.case.contender == "byteps")
    assert traffic.traffic_deviation(ours) < 0.01
    if all(one.verified for one in records):  # a busy machine repeats its launches
        assert run.run("fig12", "smoke", raw=tmp_path) == 0
        assert "0 of 2 cases to run" in capsys.readouterr().out


def test_a_contender_that_behaves_gives_its_samples(lab, tmp_path):
    outcome = attempt(lab, tmp_path, ONE_ITERATION, ONE_ITERATION)
    assert outcome.error == ""
    assert outcome.seconds == [0.5]
    assert outcome.oracle.passed


def test_a_wrong_sum_fails_the_check(lab, tmp_path):
    outcome = attempt(lab, tmp_path, ONE_ITERATION, ONE_ITERATION.replace("float(sys.argv[1])", "3.0"))
    assert not outcome.oracle.passed
    assert outcome.oracle.max_error == 3.0


def test_a_worker_that_dies_is_named_with_the_end_of_its_log(lab, tmp_path):
    outcome = attempt(lab, tmp_path, ONE_ITERATION, 'say(event="started", facts={}); sys.exit("out of luck")')
    assert outcome.error.startswith("worker 1 exited 1 while others were waiting for it")
    assert "out of luck" in outcome.error


def test_a_server_that_dies_is_named(lab, tmp_path):
    waiting = 'say(event="started", facts={}); time.sleep(60)'
    outcome = attempt(lab, tmp_path, waiting, waiting, 'sys.exit("no memory")')
    assert outcome.error.startswith("server exited 1")
    assert "no memory" in outcome.error


def test_a_worker_that_hangs_costs_its_deadline_and_is_named(lab, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "SLACK_SECONDS", 0.5)
    monkeypatch.setattr(launch, "SLOWEST_FACTOR", 0.0)
    ready = 'say(event="started", facts={}); say(event="declared"); say(event="ready", iteration=0);'
    hangs = ready + 'print("stuck", file=sys.stderr); time.sleep(60)'
    outcome = attempt(lab, tmp_path, ONE_ITERATION, hangs)
    assert outcome.error.startswith("waited 0 s for 'done' from worker 1")
    assert "stuck" in outcome.error


def test_a_reported_failure_ends_the_launch_at_once(lab, tmp_path):
    failed = 'say(event="failed", error="ValueError: no")'
    outcome = attempt(lab, tmp_path, 'say(event="started", facts={}); time.sleep(60)', failed)
    assert outcome.error.startswith("worker 1: ValueError: no")


def test_a_death_in_the_second_of_three_cases_costs_that_one_and_the_next(lab, tmp_path):
    dies = START + ONE_CASE + 'print("out of luck", file=sys.stderr); sys.exit(7)'
    first, *others = attempt_cases(lab, tmp_path, 3, TWO_CASES, dies)
    assert first.error == ""
    assert first.seconds == [0.5]
    assert first.oracle.passed
    assert first.nics
    for outcome in others:
        assert outcome.seconds == []
        assert outcome.error.startswith("worker 1 exited 7 while others were waiting for it")
        assert "out of luck" in outcome.error


def test_a_case_that_hangs_costs_its_deadline_and_the_cases_before_it_are_kept(lab, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "SLACK_SECONDS", 0.5)
    monkeypatch.setattr(launch, "SLOWEST_FACTOR", 0.0)
    hangs = START + ONE_CASE + 'say(event="declared"); say(event="ready", iteration=0); time.sleep(60)'
    first, second = attempt_cases(lab, tmp_path, 2, TWO_CASES, hangs)
    assert (first.error, first.seconds) == ("", [0.5])
    assert second.error.startswith("waited 0 s for 'done' from worker 1")


def test_several_cases_in_one_launch_have_an_outcome_each(lab, tmp_path):
    both = TWO_CASES + 'say(event="stopped")\n'
    outcomes = attempt_cases(lab, tmp_path, 2, both, both)
    assert [(outcome.error, outcome.seconds) for outcome in outcomes] == [("", [0.5])] * 2


def test_a_setting_that_the_contender_refuses_is_an_error_of_its_cases(lab, tmp_path):
    case = msgspec.structs.replace(small("gloo-ring"), settings={"backend": "pigeons"})
    ring = CONTENDERS["gloo-ring"]
    (outcome,) = launch.run([case], ring, Emulated(lab), logs=tmp_path, tell=lambda _case, _doing: None)
    assert outcome.error == "torch: backend = 'pigeons'; it takes one of gloo, nccl"
    assert list(tmp_path.iterdir()) == []  # nothing was started


def test_a_worker_that_reads_nothing_costs_its_deadline_and_is_named(lab, tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "WRITE_SECONDS", 0.5)
    case = msgspec.structs.replace(small("fake"), workload="tensors:2000", nbytes=8000)  # more than a pipe holds
    deaf = fake('say(event="started", facts={}); time.sleep(60)', 'say(event="started", facts={}); time.sleep(60)')
    (outcome,) = launch.run([case], deaf, Emulated(lab), logs=tmp_path, tell=lambda _case, _doing: None)
    assert outcome.error.startswith("worker 0 has read nothing for")
    assert lab.pids() == []


def test_a_launch_that_waits_for_its_calibration_is_kept_when_the_run_is_interrupted(tmp_path, monkeypatch):
    launches = iter([[launch.Outcome(seconds=[1.0], checked=2)]])

    def once(*_args: object, **_kwargs: object) -> list[launch.Outcome]:
        try:
            return next(launches)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(run.launch, "run", once)
    kept: list[record.Record] = []
    with run.display([]) as show, pytest.raises(KeyboardInterrupt):
        run._run_in_lab([[small("byteps")], [small("byteps")]], tmp_path, kept.append, show)
    (one,) = kept
    assert one.seconds == [1.0]
    assert one.fidelity.verdict == "links-off"
