"""Which cases of an experiment a cluster of hosts runs, and what is said of its records."""

import math

import msgspec
import pytest
from test_record import make_case, make_record

from byteps import theory
from byteps.hosts import parse_site
from experiments import agenda, analysis, cluster, record, traffic
from experiments.cluster import Ground

FAST, SLOW = 25e6, 12.5e6
SMALL = Ground(provenance="emulated", gpu_rates=(FAST, FAST), cpu_rates=(FAST, FAST))
FOUR_AND_TWO = {**{f"gpu{i}": FAST for i in range(4)}, "cpu0": FAST, "cpu1": SLOW}
UNEQUAL = Ground(provenance="emulated", gpu_rates=(FAST, FAST), cpu_rates=(FAST, SLOW))


def cases(name, ground, tier="reproduce"):
    return cluster.cases_of(agenda.load(name), tier, ground)[0]


def points(name, ground, contender="byteps"):
    return sorted({(case.n, case.k) for case in cases(name, ground) if case.contender == contender})


def test_two_and_two_hosts_still_give_figure_12():
    assert points("fig12", SMALL) == [(2, 0), (2, 1), (2, 2)]
    assert points("fig12", SMALL, "gloo-ring") == [(2, 0)]


def test_a_cluster_that_is_large_enough_runs_what_the_file_asks_for():
    large = Ground(provenance="measured", gpu_rates=(FAST,) * 8, cpu_rates=(FAST,) * 8)
    asked = agenda.cases_of(agenda.load("fig12"), "reproduce")
    assert [(one.contender, one.n, one.k, one.block, one.nbytes) for one in cases("fig12", large)] == [
        (one.contender, one.n, one.k, one.block, one.nbytes) for one in asked
    ]


def test_without_cpu_machines_everything_runs_with_none():
    none = Ground(provenance="measured", gpu_rates=(FAST,) * 4, cpu_rates=())
    assert points("fig4", none) == [(4, 0)]
    assert points("fig15_16", none) == [(1, 0), (2, 0), (4, 0)]


def test_what_is_left_out_is_said_once():
    _, said = cluster.cases_of(agenda.load("fig12"), "reproduce", SMALL)
    assert said == [
        "left out: n = 8; the cluster has 2 GPU machines",
        "left out: k = 4, 8; the cluster has 2 CPU machines",
    ]


def test_no_case_runs_twice_and_every_case_names_its_site():
    found = cases("fig12", SMALL)
    hashes = [record.case_hash(case) for case in found]
    assert len(set(hashes)) == len(hashes)
    assert {case.site for case in found} == {"emulated: gpu 2x200Mbit; cpu 2x200Mbit"}


def test_records_of_another_cluster_and_of_the_lab_answer_for_nothing():
    lab = {record.case_hash(case) for case in agenda.cases_of(agenda.load("fig12"), "smoke")}
    here = {record.case_hash(case) for case in cases("fig12", SMALL, "smoke")}
    measured = msgspec.structs.replace
    there = {record.case_hash(measured(case, site="elsewhere")) for case in cases("fig12", SMALL, "smoke")}
    assert len(here) == len(there)
    assert not lab & here
    assert not here & there


@pytest.mark.parametrize("ground", [SMALL, UNEQUAL, Ground(provenance="measured", gpu_rates=(3.125e9,), cpu_rates=())])
@pytest.mark.parametrize("cuda", [False, True])
def test_the_text_of_a_site_says_all_that_its_cases_follow_from(ground, cuda):
    ground = Ground(provenance=ground.provenance, gpu_rates=ground.gpu_rates, cpu_rates=ground.cpu_rates, cuda=cuda)
    assert cluster.parse_ground(str(ground)) == ground
    with pytest.raises(ValueError, match="site is 'here'"):
        cluster.parse_ground("here")


def test_current_hashes_are_those_of_the_cases():
    experiment = agenda.load("fig12")
    current = cluster.current_hashes(experiment, str(UNEQUAL))
    assert {record.case_hash(case) for case in cases("fig12", UNEQUAL)} <= current


def test_equal_nics_are_not_named_and_unequal_ones_are():
    assert all(not case.nics for case in cases("fig12", SMALL))
    named = {(case.n, case.k): case.nics for case in cases("fig12", UNEQUAL) if case.contender == "byteps"}
    assert named[2, 1] == {}
    assert named[2, 2] == {"gpu0": FAST, "gpu1": FAST, "cpu0": FAST, "cpu1": SLOW}


def test_a_slower_machine_makes_the_optimum_later_but_not_twice():
    case = make_case(n=4, k=2, nic_bytes_per_s=FAST)
    slow = msgspec.structs.replace(case, nics=FOUR_AND_TWO)
    equal = theory.byteps_seconds(case.nbytes, 4, 2, FAST * theory.TCP_PAYLOAD_FRACTION)
    assert cluster.optimum_seconds(case) == pytest.approx(equal)
    assert equal * 1.01 < cluster.optimum_seconds(slow) < equal * 2


def test_the_line_of_the_optimum_is_the_closed_form_but_on_unequal_nics():
    assert cluster.optimum_goodput("", 8, 3) == theory.goodput(8, 3, 1.0)
    assert cluster.optimum_goodput(str(SMALL), 2, 1) == theory.goodput(2, 1, 1.0)
    unequal = Ground(provenance="measured", gpu_rates=(FAST,) * 4, cpu_rates=(FAST, SLOW))
    lower = cluster.optimum_goodput(str(unequal), 4, 2)
    assert theory.goodput(4, 1, 1.0) < lower < theory.goodput(4, 2, 1.0)
    assert math.isnan(cluster.optimum_goodput(str(unequal), 4, 3))


def test_equal_nic_formulas_are_not_applied_to_unequal_nics():
    nics = {"gpu0": FAST, "gpu1": SLOW}
    ring = make_case(contender="gloo-ring", n=2, k=0, nic_bytes_per_s=FAST, nics=nics)
    assert analysis.bound_seconds(ring) == pytest.approx(
        theory.ring_seconds(ring.nbytes, 2, SLOW * theory.TCP_PAYLOAD_FRACTION)
    )
    assert math.isnan(analysis.bound_seconds(msgspec.structs.replace(ring, contender="mxnet-sync")))


def test_the_plan_of_unequal_nics_sends_all_bytes_and_the_slow_one_least():
    case = make_case(n=4, k=2, nbytes=64 << 20, nic_bytes_per_s=FAST, nics=FOUR_AND_TWO)
    planned = traffic.planned_payload(make_record(case=case))
    assert planned["cpu1"] < 0.6 * planned["cpu0"]
    assert max(planned.values()) / FAST == pytest.approx(
        cluster.optimum_seconds(case) * theory.TCP_PAYLOAD_FRACTION, rel=0.02
    )


def test_a_replay_is_scaled_down_only_as_far_as_nics_are_slow():
    slow = {case.scale for case in cases("fig4", SMALL)}
    fast = Ground(provenance="measured", gpu_rates=(12.5e9,) * 4, cpu_rates=(12.5e9,) * 4)
    whole = cases("fig4", fast)
    assert slow == {128.0}
    assert {case.scale for case in whole} == {1.0}
    assert all(case.dilation == pytest.approx(90 / (100 * theory.TCP_PAYLOAD_FRACTION)) for case in whole)


def test_experiments_about_nic_rates_or_this_machine_stay_in_the_lab():
    assert cluster.why_not(agenda.load("rates")) == "rates compares NIC rates, and a host's is what it is"
    assert "compares networks" in cluster.why_not(agenda.load("topologies"))
    assert "needs no cluster" in cluster.why_not(agenda.load("fig9b"))
    assert cluster.why_not(agenda.load("fig12")) == ""
    assert "fig12" in cluster.experiments_of("smoke")


def test_a_cap_holds_for_every_host_and_one_gpu_machine_is_too_few():
    machine = '[[machine]]\nname = "{0}"\nrole = "{1}"\nnic = "{2}"\naddress = "{3}"\n'
    two = machine.format("a", "gpu", "25Gbit", "10.0.0.1") + machine.format("b", "gpu", "1Gbit", "10.0.0.2")
    site = parse_site(two + '[network]\ncap = "10Gbit"\n', "my.toml")
    assert cluster.ground_of(site).gpu_rates == (1.25e9, 0.125e9)
    with pytest.raises(agenda.RunError, match="1 machine of role gpu"):
        cluster.ground_of(parse_site(machine.format("a", "gpu", "25Gbit", "10.0.0.1"), "my.toml"))


def test_cases_that_need_a_lost_machine_are_told_apart():
    left = cluster.without(cases("fig12", SMALL), ["cpu1"])
    assert {(case.n, case.k) for case in left} == {(2, 0), (2, 1)}
    assert cluster.without(cases("fig12", SMALL), ["gpu0"]) == []


def test_contenders_that_cannot_leave_one_machine_say_why():
    assert "namespaces" in cluster.not_run("mpi-ring")


def test_only_nics_beyond_the_knee_are_remarked():
    how = cluster.beyond_knee(3.125e9, 8, 62.5e6)
    assert how.startswith("25 Gbit/s on 8 cores are 3.1 Gbit/s per core")
    assert cluster.beyond_knee(62.5e6 * 8, 8, 62.5e6) == ""
    assert cluster.beyond_knee(3.125e9, 8, 0.0) == ""
    (remark, *_) = cluster.remarks([make_record(facts={cluster.BEYOND_KNEE: how})])
    assert remark.startswith("NICs faster than the software")
    assert "[network] cap" in remark
    assert not any("faster" in line for line in cluster.remarks([make_record()]))


def test_code_that_never_met_its_hardware_is_named_until_a_record_exists():
    never = "Never run on the hardware that it is for: torch.distributed with NCCL"
    assert any(line.startswith(never) for line in cluster.remarks([]))
    nccl = make_record(case=make_case(contender="gloo-ring", settings={"backend": "nccl"}))
    assert not any(line.startswith(never) for line in cluster.remarks([nccl]))
    failed = msgspec.structs.replace(nccl, error="no GPU")
    assert any(line.startswith(never) for line in cluster.remarks([failed]))
