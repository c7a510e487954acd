"""From records to tables, figures and the report."""

import pytest
from test_record import make_case, make_record

from byteps import theory
from experiments import analysis, figures, metrics, paper, record, report
from experiments.record import Fidelity, NicBytes, NicCounters, OracleCheck

KS = (0, 1, 2, 4, 8)


def nics(case, factor=1.0):
    """Counters as if the plan had been carried out `factor` times."""
    planned = analysis.planned_payload(make_record(case)) if case.contender == "byteps" else {}
    zero = NicCounters(
        tx_bytes=0, rx_bytes=0, tx_packets=0, rx_packets=0, tx_wire_bytes=0, rx_wire_bytes=0, dropped_packets=0
    )
    result = {}
    for host, nbytes in planned.items():
        moved = int(nbytes * case.iterations * factor)
        packets = moved // 16384
        total = moved + packets * record.HEADER_BYTES
        after = NicCounters(
            tx_bytes=total,
            rx_bytes=total,
            tx_packets=packets,
            rx_packets=packets,
            tx_wire_bytes=0,
            rx_wire_bytes=0,
            dropped_packets=0,
        )
        result[host] = NicBytes(before=zero, after=after)
    return result


def launches(fraction=0.96, blocks=2, **changes):
    """Records of a whole Figure 12 in which BytePS reaches `fraction` of the optimum and the ring 0.97 of its bound."""
    rate = 25e6 * theory.TCP_PAYLOAD_FRACTION
    result = []
    for block in range(blocks):
        for contender, k in [("byteps", k) for k in KS] + [("gloo-ring", 0)]:
            settings = {"partition": "auto"} if contender == "byteps" else {}
            case = make_case(
                n=8, k=k, nbytes=2**26, contender=contender, settings=settings, block=block, tier="reproduce"
            )
            bound = theory.byteps_seconds(2**26, 8, k, rate)
            seconds = bound / (fraction if contender == "byteps" else 0.97)
            host = {"cores": "2", "cpu": "test", "memory_bytes": "1", "system": "test"}
            fields = {"seconds": [seconds] * 3, "nics": nics(case), "host": host}
            result.append(make_record(case, **{**fields, **changes}))
    return result


def loaded(records):
    return analysis.Loaded(
        experiment="fig12", tier="reproduce", source="raw", records=records, attempts=records, bad=[]
    )


def verdicts(records):
    return {one.claim.id: one.word for one in report.judge_all(report.load_claims(report.CLAIMS), [loaded(records)])}


def test_the_fraction_of_the_optimum_counts_headers():
    table = analysis.frame(launches(fraction=0.96))
    assert table[table["contender"] == "byteps"]["of_optimum"].tolist() == pytest.approx([0.96] * 10)
    assert table[table["contender"] == "gloo-ring"]["of_ring_bound"].tolist() == pytest.approx([0.97] * 2)


def test_a_launch_that_failed_has_no_times_and_stays_visible():
    table = analysis.frame([make_record(error="boom", seconds=[])])
    assert table["seconds"].isna().all()
    assert table["error"].tolist() == ["boom"]


def test_a_good_run_reproduces_every_emulated_claim():
    words = verdicts(launches())
    assert {words[name] for name in words if not name.startswith(("adder", "ring-ignores"))} == {"reproduced"}
    assert words["adder-outruns-100g"] == "not testable here"


def test_a_slow_run_does_not():
    words = verdicts(launches(fraction=0.85))
    assert words["byteps-near-optimal"] == words["fig12-gap"] == words["byteps-beats-ring"] == "not reproduced"
    assert words["goodput-rises-with-k"] == "reproduced"


def test_unfaithful_launches_enter_no_claim_about_speed():
    words = verdicts(launches(fidelity=Fidelity(verdict="cpu-bound")))
    assert words["byteps-near-optimal"] == "inconclusive"


def test_a_wrong_sum_is_not_hidden_by_being_unverified():
    wrong = OracleCheck(max_error=1.0, tolerance=0.0, checked=8, passed=False)
    assert verdicts(launches(oracle=wrong))["sums-exact"] == "not reproduced"


def test_traffic_off_the_plan_is_seen():
    case = make_case(n=8, k=4, nbytes=2**26)
    assert analysis.traffic_deviation(make_record(case, nics=nics(case))) < 1e-6
    assert analysis.traffic_deviation(make_record(case, nics=nics(case, 1.02))) == pytest.approx(0.02, rel=1e-3)


def test_the_planned_traffic_of_the_optimum_is_the_same_on_every_machine_to_a_partition():
    case = make_case(n=8, k=4, nbytes=2**26)
    planned = analysis.planned_payload(make_record(case)).values()
    assert max(planned) - min(planned) <= 8 * 65536


def test_goodput_steps_are_named_after_their_ks():
    assert list(metrics.goodput_step(launches())) == ["k=0->1", "k=1->2", "k=2->4", "k=4->8"]


def test_raw_records_come_before_the_reference_run_and_bigger_tiers_before_smaller(tmp_path):
    record.append(tmp_path / "reference" / "fig12.jsonl", make_record(make_case(tier="reproduce")))
    assert (analysis.load(tmp_path, "fig12").source, analysis.load(tmp_path, "fig9b").source) == ("reference", "none")
    record.append(tmp_path / "raw" / "fig12.jsonl", make_record(make_case(tier="smoke")))
    assert analysis.load(tmp_path, "fig12").source == "raw"
    record.append(tmp_path / "raw" / "fig12.jsonl", make_record(make_case(tier="paper")))
    assert analysis.load(tmp_path, "fig12").tier == "paper"


def test_figures_and_report_are_made_from_any_records_and_from_none(tmp_path):
    for name, records in (
        ("full", launches()),
        ("single", launches(blocks=1)),
        ("failed", launches(error="x")),
        ("no", []),
    ):
        results = tmp_path / name
        for one in records:
            record.append(results / "raw" / "fig12.jsonl", one)
        paths = figures.draw_all(results)
        assert [path.name for path in paths] == [
            "fig12_goodput.png",
            "fig12_goodput.pdf",
            "fig9b_adder.png",
            "fig9b_adder.pdf",
        ]
        path, _ = report.write(results)
        assert "## Claims" in path.read_text()


def test_the_papers_numbers_are_transcribed_whole():
    fig12 = paper.fig12()
    lines = (fig12.k, fig12.optimal, fig12.byteps, fig12.allreduce, fig12.ps)
    assert {len(line) for line in lines} == {9}
    optimum = [theory.goodput(8, k, fig12.nic_goodput_gbps) for k in fig12.k]
    assert fig12.optimal == pytest.approx(optimum, abs=0.01)
