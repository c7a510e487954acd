"""From records to tables."""

from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_case
from synthetic import (
    MODELS,
    NOT_INSTALLED,
    PAYLOAD_RATE,
    SLOW_NIC,
    counters,
    failed,
    figure_12,
    loaded,
    made,
    made_case,
    not_run,
    planned_nics,
    replayed,
)
from test_record import make_case, make_record

from baselines.contenders import CONTENDERS
from byteps import theory
from experiments import agenda, analysis, catalogue, lines, paper, record, traffic
from experiments.record import NicBytes


@pytest.fixture
def made_up(monkeypatch):
    """Records count although no experiment asks for their cases."""
    monkeypatch.setattr(analysis, "current_hashes", lambda _: None)
    monkeypatch.setattr(analysis, "current_simulations", lambda _: None)


def test_the_fraction_of_the_optimum_counts_headers():
    table = analysis.frame(figure_12(fraction=0.96))
    assert table[table["contender"] == "byteps"]["of_optimum"].tolist() == pytest.approx([0.96] * 10)
    assert table[table["contender"] == "gloo-ring"]["of_ring_bound"].tolist() == pytest.approx([0.97] * 2)


def test_a_launch_that_failed_has_no_times_and_stays_visible():
    table = analysis.frame([make_record(error="boom", seconds=[])])
    assert table["seconds"].isna().all()
    assert table["error"].tolist() == ["boom"]


def test_traffic_off_the_plan_is_seen():
    case = make_case(n=8, k=4, nbytes=2**26)
    assert traffic.traffic_deviation(make_record(case, nics=planned_nics(case))) < 1e-6
    off = traffic.traffic_deviation(make_record(case, nics=planned_nics(case, 1.02)))
    assert off == pytest.approx(0.02, rel=1e-3)


def test_the_planned_traffic_of_the_optimum_is_the_same_on_every_machine_to_a_partition():
    case = make_case(n=8, k=4, nbytes=2**26)
    planned = traffic.planned_payload(make_record(case)).values()
    assert max(planned) - min(planned) <= 8 * 65536


def test_no_plan_is_made_up_for_what_is_not_a_single_tensor_of_byteps():
    single = made("byteps", 1.0, k=4, record_nics=planned_nics(made_case("byteps", k=4)))
    assert traffic.has_plan(single)
    assert not traffic.has_plan(made("byteps", 1.0, k=4))
    assert not traffic.has_plan(made("byteps", 1.0, workload="tensors:10", record_nics=single.nics))
    assert not traffic.has_plan(made("gloo-ring", 1.0, record_nics=single.nics))


def test_payload_is_compared_with_the_formula_of_the_contender():
    sent = round(2 * 7 / 8 * 2**24) * 3
    nics = {f"gpu{i}": NicBytes(before=counters(0), after=counters(sent)) for i in range(8)}
    nics["cpu0"] = NicBytes(before=counters(0), after=counters(0))
    assert traffic.payload_of_formula(made("gloo-ring", 1.0, record_nics=nics)) == pytest.approx(1.0)
    assert traffic.payload_of_formula(made("gloo-ring", 1.0)) != traffic.payload_of_formula(made("gloo-ring", 1.0))


def test_raw_records_come_before_the_reference_run_and_bigger_tiers_before_smaller(tmp_path, made_up):
    record.append(tmp_path / "reference" / "fig12.jsonl", make_record(make_case(tier="reproduce")))
    assert (analysis.load(tmp_path, "fig12").source, analysis.load(tmp_path, "fig9b").source) == ("reference", "none")
    record.append(tmp_path / "raw" / "fig12.jsonl", make_record(make_case(tier="smoke")))
    assert analysis.load(tmp_path, "fig12").source == "raw"
    record.append(tmp_path / "raw" / "fig12.jsonl", make_record(make_case(tier="paper")))
    assert analysis.load(tmp_path, "fig12").tier == "paper"


def test_records_that_the_experiments_file_does_not_ask_for_any_more_are_left_out(tmp_path):
    now = agenda.cases_of(agenda.load("fig4"), "reproduce")[0]
    then = replace_case(now, scale=now.scale * 2)
    for case in (now, then):
        record.append(tmp_path / "raw" / "fig4.jsonl", make_record(case))
        record.append(tmp_path / "reference" / "fig4.jsonl", make_record(case))
    raw = analysis.load(tmp_path, "fig4")
    assert ([one.case for one in raw.records], raw.earlier) == ([now], 1)
    kept = analysis.load(tmp_path, "fig4", sources=("reference",))
    assert (len(kept.records), kept.earlier) == (2, 0)


def test_a_sweep_does_not_displace_the_run_that_figures_show(tmp_path, made_up):
    for tier in ("reproduce", "sweep"):
        record.append(tmp_path / "raw" / "fig12.jsonl", make_record(make_case(tier=tier)))
    assert analysis.load(tmp_path, "fig12").tier == "reproduce"


def test_linear_scaling_is_the_computation_of_the_dilated_model():
    one = replayed("horovod", 2.0, "vgg16@fig4", n=4)
    tensors = catalogue.of_case("vgg16@fig4", one.case.nbytes, one.case.scale, one.case.dilation)
    computation = max(tensor.ready_seconds for tensor in tensors) + sum(tensor.forward_seconds for tensor in tensors)
    assert analysis.linear_seconds(one.case) == pytest.approx(computation)
    assert analysis.frame([one])["efficiency"].tolist() == pytest.approx([0.5])


def test_tensors_and_unknown_models_have_no_linear_scaling():
    table = analysis.frame([made("horovod", 1.0), made("horovod", 1.0, workload="elsewhere/job.toml")])
    assert table["linear_seconds"].isna().all()
    assert table["efficiency"].isna().all()


def test_five_of_six_models_are_communication_bound_on_slow_nics_and_none_on_the_papers():
    slow = {model: replayed("byteps", 1.0, model, real_nic=SLOW_NIC).case for model in MODELS}
    assert {model for model in MODELS if analysis.communication_bound(slow[model])} == {*MODELS} - {"resnet50"}
    assert not any(analysis.communication_bound(replayed("byteps", 1.0, model).case) for model in MODELS)


def test_the_bound_is_that_of_the_contenders_own_algorithm(monkeypatch):
    nbytes = 2**24
    assert analysis.bound_seconds(made_case("byteps", k=4)) == pytest.approx(
        theory.byteps_seconds(nbytes, 8, 4, PAYLOAD_RATE)
    )
    assert analysis.bound_seconds(made_case("gloo-ring")) == pytest.approx(theory.ring_seconds(nbytes, 8, PAYLOAD_RATE))
    server = replace(CONTENDERS["byteps"], name="ps", nic_nbytes=analysis.server_nbytes)
    monkeypatch.setitem(lines.CONTENDERS, "ps", server)
    assert analysis.bound_seconds(made_case("ps", k=2)) == pytest.approx(4 * nbytes / PAYLOAD_RATE)
    assert analysis.bound_seconds(made_case("ps")) == pytest.approx(theory.ring_seconds(nbytes, 8, PAYLOAD_RATE))
    assert analysis.frame([made("nobody knows it", 1.0)])["of_bound"].isna().all()


def test_core_seconds_are_those_of_gpu_machines_only():
    cpu = {"gpu0": 3.0, "gpu1": 1.0, "cpu0": 100.0, "scheduler": 100.0}
    one = made("byteps", 1.0, n=2, nbytes=2**30, record_cpu_seconds_by_host=cpu)
    assert analysis.core_seconds_per_gib(one) == pytest.approx(2.0 / 3)


def test_who_is_absent_is_told_with_the_remedy():
    run = loaded("fig12", [made("byteps", 1.0), not_run("horovod"), failed("mpi")], "byteps", "horovod", "ddp")
    reasons = analysis.absent(run)
    assert reasons["horovod"] == NOT_INSTALLED.removeprefix("not run: ")
    assert "no record in this run" in reasons["ddp"]
    assert set(reasons) == {"horovod", "ddp"}  # a failure is not an absence
    assert "install it with: make it" in analysis.absent_text(reasons)


def test_the_experiments_file_says_who_belongs_to_it(tmp_path, made_up):
    record.append(tmp_path / "raw" / "fig12.jsonl", make_record(make_case(tier="reproduce")))
    assert {"byteps", "gloo-ring", "horovod"} <= set(analysis.load(tmp_path, "fig12").expected)


def test_the_papers_numbers_are_transcribed_whole():
    fig12 = paper.fig12()
    series = (fig12.k, fig12.optimal, fig12.byteps, fig12.allreduce, fig12.ps)
    assert {len(values) for values in series} == {9}
    optimum = [theory.goodput(8, k, fig12.nic_goodput_gbps) for k in fig12.k]
    assert fig12.optimal == pytest.approx(optimum, abs=0.01)
    fig4 = paper.fig4()
    assert {len(values) for values in (fig4.byteps, fig4.allreduce, fig4.ps, fig4.ps_bytescheduler)} == {len(fig4.k)}
    training = paper.fig15_16()
    assert set(training.model) == set(MODELS)
    assert training.machines == [1, 2, 4, 8, 16, 32]


def test_the_papers_headlines_follow_from_its_figures():
    """Up to 84 % over all-reduce, 245 % over a parameter server, 97.5 % of linear scaling for ResNet-50."""
    models = paper.fig15_16().model
    assert models["ugatit"].byteps_kn[-1] / models["ugatit"].allreduce[-1] == pytest.approx(1.84, abs=0.005)
    transformer = models["transformer_big"]
    assert transformer.byteps_kn[-1] / transformer.ps[-1] == pytest.approx(3.45, abs=0.005)
    assert models["resnet50"].byteps_kn[-1] / models["resnet50"].linear[-1] == pytest.approx(0.975, abs=0.0005)
    for one in models.values():  # throughput of one GPU is the same at every size
        for gpus, value in zip(paper.fig15_16().gpus, one.linear, strict=True):
            assert value / gpus == pytest.approx(one.linear[0] / 8, rel=1e-3)


def test_simulated_records_are_read_from_beside_the_others_with_all_repetitions_oldest_first(tmp_path, made_up):
    of_paper = {"settings": {"machine": "one-gpu"}, "record_provenance": "simulated", "record_oracle": None}
    new, old = (made("byteps", 1.0, record_started_at=day, **of_paper) for day in ("2026-02-01", "2026-01-01"))
    emulated = made("byteps", 2.0)
    for name, one in (("fig12.sim", new), ("fig12.sim", old), ("fig12", emulated)):
        record.append(tmp_path / "raw" / f"{name}.jsonl", one)
    run = analysis.load(tmp_path, "fig12")
    assert (run.records, run.simulated) == ([emulated], (old, new))
    assert analysis.frame([old])["machine"].tolist() == ["one-gpu"]
    (tmp_path / "raw" / "fig12.jsonl").unlink()
    assert analysis.load(tmp_path, "fig12").source == "none"
    assert analysis.load(tmp_path, "fig12").simulated == (old, new)


def test_simulated_records_of_cases_that_nobody_asks_for_any_more_are_left_out(tmp_path):
    (asked, *_) = agenda.cases_of(agenda.load_simulation("fig12"), "reproduce")
    records = [
        make_record(case, provenance="simulated", oracle=None) for case in (asked, replace_case(asked, nbytes=1000))
    ]
    for one in records:
        record.append(tmp_path / "raw" / "fig12.sim.jsonl", one)
    assert analysis.load(tmp_path, "fig12").simulated == (records[0],)


def test_a_simulation_needs_no_sum_to_be_verified_but_an_error_undoes_it():
    simulated = {"record_provenance": "simulated", "record_oracle": None}
    assert made("byteps", 1.0, **simulated).verified
    assert not made("byteps", 1.0, record_error="no such machine", **simulated).verified
    assert not made("byteps", 1.0, record_oracle=None).verified


def test_the_machines_that_are_simulated_are_no_part_of_a_lines_name():
    name = {"machine": "nvlink", "local": "rule"}
    assert lines.line_of("byteps", name).label == lines.line_of("byteps", {}).label
