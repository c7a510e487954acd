"""What `byteps plan` computes, against closed forms and against itself, and what it prints and writes."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from byteps import cli, theory
from byteps.assign import cluster_shares
from byteps.cluster import Cluster, Machine, parse_cluster, uniform_cluster
from byteps.errors import BytePSError
from byteps.plan import load_plan, parse_plan
from byteps.plan_view import share_text, view
from byteps.planning import MODELS, Forecast, forecast, gradient_nbytes
from experiments import workloads

B = 12.5e9
M = 512_000_000
PAYLOAD = B * theory.TCP_PAYLOAD_FRACTION


def schemes(found: Forecast) -> dict[str, float]:
    return {one.name: one.seconds for one in (found.byteps, *found.alternatives)}


@pytest.mark.parametrize(("n", "k"), [(2, 1), (4, 2), (8, 8), (8, 0), (3, 5)])
def test_equal_machines_take_the_times_of_theory(n: int, k: int) -> None:
    found = schemes(forecast(uniform_cluster(n, k, B), M))
    assert found["BytePS"] == pytest.approx(theory.byteps_seconds(M, n, k, PAYLOAD), rel=0.01)
    assert found["ring all-reduce"] == pytest.approx(theory.ring_seconds(M, n, PAYLOAD), rel=0.01)
    assert found["parameter server on GPU machines"] == pytest.approx(theory.ring_seconds(M, n, PAYLOAD), rel=0.01)
    if k:
        servers = theory.noncolocated_ps_seconds(M, n, k, PAYLOAD)
        assert found["parameter server on CPU machines"] == pytest.approx(servers, rel=0.01)


def test_nothing_is_faster_than_byteps_where_only_nics_limit() -> None:
    nics = [1e9, 2e9, 5e9, 1e10]
    gpu = [Machine(name=f"g{i}", role="gpu", nic_bytes_per_s=rate) for i, rate in enumerate(nics)]
    cpu = [Machine(name=f"c{i}", role="cpu", nic_bytes_per_s=rate) for i, rate in enumerate(nics[:2])]
    found = forecast(Cluster(machines=(*gpu, *cpu)), M)
    assert found.byteps.seconds <= min(one.seconds for one in found.alternatives) * 1.005
    busiest = max(
        carried / (machine.nic_bytes_per_s * theory.TCP_PAYLOAD_FRACTION)
        for carried, machine in zip(theory.traffic(M, found.shares), found.cluster.machines, strict=True)
    )
    assert found.byteps.seconds == pytest.approx(busiest, rel=0.01)


def test_several_nics_carry_what_one_of_their_sum_does() -> None:
    one = uniform_cluster(4, 2, B)
    two = replace(one, machines=tuple(replace(machine, nics=(B / 2, B / 2)) for machine in one.machines))
    assert forecast(two, M).byteps.seconds == pytest.approx(forecast(one, M).byteps.seconds)


def test_one_more_cpu_machine_is_worth_what_planning_for_it_says() -> None:
    now, larger = forecast(uniform_cluster(8, 2, B), M), forecast(uniform_cluster(8, 3, B), M)
    assert now.one_more.seconds == pytest.approx(larger.byteps.seconds)
    enough = forecast(uniform_cluster(4, 4, B), M)
    assert enough.one_more.seconds == pytest.approx(enough.byteps.seconds, rel=0.01)


CLUSTER = """
[[machine]]
name = "gpu"
role = "gpu"
nic = "100Gbit"
count = 8
gpus = 8
machine = "nvlink"
price = 25.0
[[machine]]
name = "cpu"
role = "cpu"
nic = "100Gbit"
count = 4
price = 4.2
"""


def test_inside_the_papers_nvlink_machine_the_nic_stays_the_limit_and_opponents_share_its_switch() -> None:
    found = schemes(forecast(parse_cluster(CLUSTER, "c.toml"), M))
    assert found["BytePS"] == pytest.approx(theory.byteps_seconds(M, 8, 4, PAYLOAD), rel=0.03)
    ring_through_host = 2 * 63 / 64 * 2 * M / 13.125e9  # NIC and GPU copies both pass P0
    assert found["ring all-reduce"] == pytest.approx(ring_through_host, rel=0.01)


def test_oversubscribed_uplinks_are_planned_for_and_named() -> None:
    racks = CLUSTER.replace('role = "gpu"', 'role = "gpu"\nrack = "a"').replace(
        'role = "cpu"', 'role = "cpu"\nrack = "b"'
    )
    flat = forecast(parse_cluster(racks, "c.toml"), M)
    tight = forecast(parse_cluster(racks + "[network]\noversubscription = 8.0\n", "c.toml"), M)
    assert tight.byteps.seconds > flat.byteps.seconds
    assert sum(tight.shares.cpu) < sum(flat.shares.cpu)
    assert any("uplink of" in one.bottleneck for one in tight.alternatives)


def test_byteps_is_no_slower_than_servers_where_links_inside_fill_before_nics() -> None:
    found = forecast(parse_cluster(CLUSTER.replace("100Gbit", "200Gbit"), "c.toml"), M)
    assert found.byteps.seconds <= min(one.seconds for one in found.alternatives)
    assert sum(found.shares.gpu) < 0.2 * sum(cluster_shares(found.cluster).gpu)


RACKS = """
[[machine]]
name = "gpu"
role = "gpu"
nic = "100Gbit"
count = 4
{gpu_rack}
[[machine]]
name = "cpu"
role = "cpu"
nic = "100Gbit"
count = 4
rack = "r"
[network]
oversubscription = 4.0
"""


def test_uplinks_are_those_of_the_cluster_whichever_machines_sum() -> None:
    found = schemes(forecast(parse_cluster(RACKS.format(gpu_rack='rack = "g"'), "c.toml"), M))
    assert found["BytePS without CPU machines"] == pytest.approx(found["parameter server on GPU machines"])
    core = forecast(parse_cluster(RACKS.format(gpu_rack=""), "c.toml"), M)  # only CPU machines have a rack
    assert min(core.shares.all) >= 0
    assert core.one_more.seconds < core.byteps.seconds  # at the core, behind no uplink


def test_every_service_gets_several_partitions_of_small_models() -> None:
    found = forecast(uniform_cluster(8, 4, B), 10_000_000)
    assert found.partition_bytes * 12 * 8 <= 10_000_000


def test_one_gpu_machine_has_nothing_to_plan() -> None:
    with pytest.raises(ValueError, match="a plan needs 2 or more"):
        forecast(uniform_cluster(1, 1, B), M)


def test_the_view_names_machines_schemes_limits_and_cost() -> None:
    text = view(forecast(parse_cluster(CLUSTER, "c.toml"), M), "c.toml")
    for words in (
        "gpu0 .. gpu7 (8)",
        "reduce-broadcast",
        "times as fast",
        "One more CPU machine",
        "per hour",
        "15.91%",
    ):
        assert words in text


def test_nics_that_are_equal_are_counted() -> None:
    text = CLUSTER.replace('machine = "nvlink"\n', "")
    shown = text.replace('nic = "100Gbit"\ncount = 8', f"nic = {['100Gbit'] * 8}\ncount = 8")
    mixed = text.replace('nic = "100Gbit"\ncount = 8', 'nic = ["100Gbit", "100Gbit", "25Gbit"]\ncount = 8')
    assert "  8 x 100 Gbit/s  " in view(forecast(parse_cluster(shown, "c.toml"), M), "c.toml")
    assert "  2 x 100 Gbit/s + 25 Gbit/s  " in view(forecast(parse_cluster(mixed, "c.toml"), M), "c.toml")


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0.00%"),
        (0.1591, "15.91%"),
        (1.0, "100.00%"),
        (0.001, "0.10%"),
        (0.0002, "0.020%"),
        (0.0000123, "0.0012%"),
        (1e-9, "<0.00001%"),
    ],
)
def test_a_small_share_is_not_printed_as_none(share: float, text: str) -> None:
    assert share_text(share) == text


def test_prices_that_are_missing_are_said_to_be() -> None:
    def said(text: str) -> str:
        return view(forecast(parse_cluster(text, "c.toml"), M), "c.toml")

    assert "Costs are not compared" not in said(CLUSTER)
    without = said(CLUSTER.replace("price = 25.0", ""))
    assert "Costs are not compared: gpu0 and 7 more without a `price`" in without
    assert "what a CPU machine costs is not known" in said(CLUSTER.split('[[machine]]\nname = "cpu"')[0])


def test_models_have_the_sizes_of_the_workloads() -> None:
    for name, nbytes in MODELS.items():
        model = workloads.load(workloads.path(name.replace("-", "_")).read_text(encoding="utf-8"))
        assert workloads.with_times(model, "").nbytes == nbytes, name
    assert gradient_nbytes("BERT_large") == MODELS["bert-large"]
    assert gradient_nbytes("2MB") == 2_000_000
    with pytest.raises(ValueError, match="'bert' is no model and no size: use resnet50"):
        gradient_nbytes("bert")


def test_the_command_writes_a_plan_that_the_runtime_loads(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CLUSTER, encoding="utf-8")
    output = tmp_path / "plan.json"
    result = CliRunner().invoke(
        cli.app, ["plan", str(tmp_path / "c.toml"), "--model", "vgg16", "--output", str(output)], catch_exceptions=False
    )
    assert result.exit_code == 0
    assert f"BYTEPS_PLAN={output}" in result.output
    plan = load_plan(output)
    shares = cluster_shares(parse_cluster(CLUSTER, "c.toml"))
    assert plan.shares.all == pytest.approx(shares.all)
    assert plan.gpu_machines[0].local is not None
    assert plan.cpu_machines[0].local is None
    assert parse_plan(output.read_bytes(), "again") == plan


def test_the_plan_does_not_replace_the_clusters_own_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(CLUSTER, encoding="utf-8")
    with pytest.raises(BytePSError, match="is the cluster's own file"):
        CliRunner().invoke(cli.app, ["plan", str(path), "--output", str(path)], catch_exceptions=False)
    assert path.read_text(encoding="utf-8") == CLUSTER


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (CLUSTER.replace("count = 8", "count = 1000000000"), "use 1 to 100000"),
        (CLUSTER.replace('nic = "100Gbit"\ncount = 4', 'nic = "1bit"\ncount = 4'), "check the units"),
        (CLUSTER.replace('"nvlink"', '"dgx-9"'), "dgx-9"),
        (CLUSTER.replace("gpus = 8", "gpus = 4"), "has 4 GPUs, but 'nvlink' describes 8"),
        (CLUSTER.replace('nic = "100Gbit"\ncount = 8', 'nic = ["50Gbit", "50Gbit"]\ncount = 8'), "has 2 NICs, but"),
        ("", "machine"),
    ],
)
def test_bad_clusters_are_one_clear_error_and_write_nothing(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "c.toml").write_text(text, encoding="utf-8")
    output = tmp_path / "plan.json"
    with pytest.raises(BytePSError, match=complaint):
        CliRunner().invoke(cli.app, ["plan", str(tmp_path / "c.toml"), "--output", str(output)], catch_exceptions=False)
    assert not output.exists()
