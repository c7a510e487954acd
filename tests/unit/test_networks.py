"""The network that a case asks for: its lab, the order in which networks are built, and what cannot be emulated."""

import dataclasses
import re

import pytest
from synthetic import made_case

from experiments import agenda, cluster, networks, run
from scripts import lab
from scripts.lab import LabSpec, star

BBR = {"congestion": "bbr", "queue": "256KiB"}


def lines(spec: LabSpec, tool: str) -> list[tuple[str, str]]:
    batches = [batch for stage in lab.bring_up(spec, "run") for batch in stage if batch.tool == tool]
    return [(batch.namespace, line) for batch in batches for line in batch.lines]


def test_a_case_that_says_nothing_gets_the_usual_lab() -> None:
    hosts = run.cluster_of([made_case("byteps", n=2)])
    assert run.lab_of([made_case("byteps", n=2)]) == star(hosts)


def test_congestion_control_is_on_every_route_and_the_queue_on_the_ports_of_the_switch_alone() -> None:
    spec = run.lab_of([made_case("byteps", n=2, settings=BBR)])
    routes = [line for _, line in lines(spec, "ip") if line.startswith("route ")]
    assert routes
    assert all(line.endswith(" congctl bbr") for line in routes)
    limits = {(space == "run-switch", int(line.rpartition(" ")[2])) for space, line in lines(spec, "tc")}
    assert limits == {(True, 256 * 1024), (False, 1024 * 1024)}


def test_both_hold_on_bcube_too() -> None:
    spec = run.lab_of([made_case("schedule", n=9, settings={**BBR, "network": "bcube:3x2"})])
    assert (spec.congestion_control, spec.queue_bytes, spec.nics) == ("bbr", 256 * 1024, 2)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"congestion_control": "cubic; reboot"}, "congestion control 'cubic; reboot'"),
        ({"congestion_control": ""}, "congestion control ''"),
        ({"queue_bytes": 1000}, "queues of 1000 bytes: at least 32768"),
    ],
)
def test_a_lab_refuses_what_no_kernel_would_do(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        dataclasses.replace(star({"a": 25e6}), **change)  # type: ignore[arg-type]


def test_one_network_after_the_other_in_every_block_and_another_one_first() -> None:
    cases = [
        made_case(contender, block=block, settings={"queue": queue})
        for block in range(2)
        for contender in ("byteps", "gloo-ring")
        for queue in ("64KiB", "1MiB")
    ]
    ordered = networks.one_after_the_other(cases)
    assert [(one.block, one.settings["queue"]) for one in ordered] == [
        *[(0, "64KiB")] * 2,
        *[(0, "1MiB")] * 2,
        *[(1, "1MiB")] * 2,
        *[(1, "64KiB")] * 2,
    ]
    assert sorted(map(cases.index, ordered)) == list(range(8))


def test_a_star_is_a_star_whether_a_case_says_so_or_not() -> None:
    named = made_case("schedule", settings={"network": "star"})
    assert networks.network_of(named) == networks.network_of(made_case("gloo-ring"))


def test_cases_on_one_network_keep_their_order() -> None:
    cases = agenda.cases_of(agenda.load("fig12"), "reproduce")
    assert networks.one_after_the_other(cases) == cases


def test_what_this_kernel_lacks_is_named_with_what_to_do() -> None:
    cases = [made_case("byteps", settings={"congestion": name}) for name in ("reno", "nosuchcontrol")]
    assert networks.impossible(cases) == {
        "this kernel has no congestion control nosuchcontrol; as root: modprobe tcp_nosuchcontrol": [cases[1]]
    }


def test_real_hosts_are_not_asked_for_another_network() -> None:
    assert "congestion controls and queues" in cluster.why_not(agenda.load("congestion"))


def test_contenders_of_the_experiment_meet_on_the_same_networks() -> None:
    cases = agenda.cases_of(agenda.load("congestion"), "sweep")
    by_network: dict[tuple[str, ...], list[str]] = {}
    for case in cases:
        by_network.setdefault(networks.network_of(case), []).append(case.contender)
    assert len(by_network) == 12
    assert all(sorted(names) == ["byteps", "gloo-ring", "schedule-servers"] for names in by_network.values())
