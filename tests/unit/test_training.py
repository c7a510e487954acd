"""The training benchmark: what runs, with which processes, and how rows follow from records."""

from collections import Counter, defaultdict
from collections.abc import Mapping

import pytest

from baselines.launch import Launch, Machine, Process
from byteps.units import parse_rate
from experiments import trainer, training, unequal
from experiments.bounds import Row
from experiments.record import SCHEMA_VERSION, Case, OracleCheck, Record, case_hash

torch = pytest.importorskip("torch")


def plan(way: str, *, k: int = 0, rate: float = 0.0) -> list[Process]:
    def machines(kind: str, count: int) -> tuple[Machine, ...]:
        return tuple(Machine(host=f"{kind}{i}", address=f"10.0.0.{i + 1}", interface="eth0") for i in range(count))

    launch = Launch(
        gpu_machines=machines("gpu", 4),
        cpu_machines=machines("cpu", k),
        scheduler=machines("scheduler", 1)[0],
        nic_bytes_per_s=rate,
        nbytes=4,
        settings={"way": way, "layers": "50", "samples": "8", "steps": "3"},
        secret="00",
    )
    made = training.contender("byteps" if way in training.OURS else "ddp").plan
    assert made is not None
    return made(launch)


def record(case: Case, seconds: float, facts: Mapping[str, str] = {}) -> Record:
    return Record(
        schema=SCHEMA_VERSION,
        case=case,
        case_hash=case_hash(case),
        code_hash="",
        contender_version="",
        provenance="measured",
        started_at="",
        seconds=[seconds],
        oracle=OracleCheck(max_error=0.0, tolerance=0.0, checked=1, passed=True),
        facts=dict(facts),
    )


def test_every_way_runs_once_per_block_and_no_two_blocks_begin_with_the_same():
    places = defaultdict(list)
    for case in training.cases(blocks=3, lab_blocks=2, unequal_blocks=0):
        places[case.k].append((case.block, case.position, case.settings["way"]))
    for k, ways in ((0, training.LABELS), (training.WORKERS, ("ddp", "optimizer"))):
        blocks = Counter((block, way) for block, _, way in places[k])
        assert blocks == Counter({(block, way): 1 for block, _, _ in places[k] for way in ways})
        first = [way for _, position, way in places[k] if position == 0]
        assert len(set(first)) == len(first)


@pytest.mark.parametrize("way", training.LABELS)
def test_workers_train_in_the_way_that_is_asked_for_and_servers_stay_what_they_are(way):
    processes = plan(way)
    workers = {process.rank: list(process.argv) for process in processes if process.rank >= 0}
    assert sorted(workers) == [0, 1, 2, 3]
    for rank, argv in workers.items():
        words = argv[argv.index("experiments.trainer") :]
        assert (words[words.index("--way") + 1], words[words.index("--rank") + 1]) == (way, str(rank))
    assert len({argv[argv.index("--rendezvous") + 1] for argv in workers.values()}) == 1
    others = [process.name for process in processes if process.rank < 0]
    assert others == (["scheduler"] if way in training.OURS else [])


def test_unshaped_a_user_says_nothing_and_with_nics_their_rate():
    for process in plan("optimizer"):
        assert process.env["BYTEPS_PARTITION_BYTES"] == "4096000"
        assert "BYTEPS_NIC_RATE" not in process.env
    shaped = plan("optimizer", k=4, rate=25e6)
    assert [process.name for process in shaped if process.rank < 0] == ["scheduler", *(f"server {i}" for i in range(4))]
    assert {process.env["BYTEPS_NIC_RATE"] for process in shaped} == {"200Mbit"}
    assert {process.env["BYTEPS_PARTITION_BYTES"] for process in shaped} == {"auto"}


def test_ratios_are_taken_within_blocks_and_bounded():
    seconds = {"local": 0.1, "ddp": 1.0, "optimizer": 1.05, "hook": 1.2, "backend": 0.9}
    records = []
    for case in training.cases(blocks=3, lab_blocks=1, unequal_blocks=0):
        one = (
            seconds[case.settings["way"]] * (1 + case.block) * (0.5 if case.settings["way"] != "ddp" and case.k else 1)
        )
        traced = {"traced exposed": "0.25", "traced overlap": "0.75"} if case.contender == "byteps" else {}
        records.append(record(case, one, traced))
    rows = {row.what: row for row in training.rows(records)}

    def found(what: str) -> tuple[list[float], str]:
        row: Row = rows[what]
        return [round(value, 9) for value in row.values], row.verdict

    assert found("BytePS, DistributedOptimizer / DDP") == ([1.05] * 3, "met")
    assert found("BytePS, DDP hook / DDP") == ([1.2] * 3, "not met")
    assert found("BytePS, DDP on our backend / DDP") == ([0.9] * 3, "met")
    assert found("iteration, without synchronisation") == ([0.1, 0.2, 0.3], "")
    assert found("exposed, BytePS, DDP hook") == ([0.25] * 3, "")
    assert found(f"BytePS, DistributedOptimizer / DDP, n = k = 4, {training.NIC} NICs") == ([0.525], "met")


@pytest.fixture
def launches() -> dict[tuple[str, str], list[Process]]:
    """The processes of every case of unequal machines, by theme and side."""
    made = {}
    for case in unequal.cases(training.NAME, 500_000, blocks=1, iterations=1, tier="smoke"):
        rates = {host: case.nics.get(host, case.nic_bytes_per_s) for host in ("gpu0", "gpu1", "cpu0", "cpu1")}
        machines = {
            host: Machine(host=host, address=f"10.0.0.{i}", interface="eth0", nic_bytes_per_s=rates[host])
            for i, host in enumerate(rates)
        }
        launch = Launch(
            gpu_machines=(machines["gpu0"], machines["gpu1"]),
            cpu_machines=(machines["cpu0"], machines["cpu1"])[: case.k],
            scheduler=Machine(host="scheduler", address="10.0.0.9", interface="eth0"),
            nic_bytes_per_s=case.nic_bytes_per_s,
            nbytes=case.nbytes,
            settings=case.settings,
            secret="00",
        )
        plan = training.contender(case.contender).plan
        assert plan is not None
        made[case.settings["theme"], case.settings["side"]] = plan(launch)
    return made


def test_machines_differ_in_one_thing_and_the_settings_follow_it_or_do_not(launches):
    def rates(theme: str, side: str) -> list[float]:
        return [parse_rate(process.env["BYTEPS_NIC_RATE"]) * 8 / 1e6 for process in launches[theme, side]]

    assert rates("NICs", "fitting") == [300, 400, 100, 300, 300]  # scheduler, servers, workers
    assert rates("NICs", "alike") == [300] * 5
    assert set(rates("two NICs", "fitting")) == {200}
    assert set(rates("two NICs", "alike")) == {100}
    for side, interfaces in (("fitting", "eth0,eth1"), ("alike", "eth0")):
        assert {process.env["DMLC_INTERFACE"] for process in launches["two NICs", side]} == {interfaces}
        assert {process.env["DMLC_NODE_HOST"] for process in launches["two NICs", side]} == {""}
    for side, samples in (("fitting", "12,4"), ("alike", "8,8")):
        worker = list(launches["batches", side][-1].argv)
        assert worker[worker.index("--samples") + 1] == samples
        assert worker[worker.index("--pace") + 1] == "10,30"


def test_unequal_machines_are_judged_by_the_setting_that_fits_against_the_one_alike():
    cases = unequal.cases(training.NAME, 500_000, blocks=2, iterations=1, tier="smoke")
    records = [record(case, 0.5 + case.block if case.settings["side"] == "fitting" else 1.0) for case in cases]
    rows = {row.what: row for row in training.rows(records)}
    for theme in unequal.THEMES.values():
        assert rows[theme.title].values == (0.5, 1.5)
        assert rows[theme.title].verdict == "not met"
    assert all(not row.values for what, row in rows.items() if "BytePS" in what)


def test_batches_of_different_sizes_count_by_their_samples():
    one = trainer.Training("local", rank=1, size=2, layers=5, samples=[12, 4], rendezvous="", pace=[0.001, 0.002])
    assert one.samples == [12, 4]
    assert one.waits == pytest.approx(0.008)
    assert one.step_and_compare() == 0.0


def test_the_model_has_200_tensors_of_mixed_sizes_and_25_million_parameters():
    sizes = [parameter.numel() for parameter in trainer.build(training.LAYERS).parameters()]
    assert (len(sizes), sum(sizes)) == (200, training.PARAMETERS)
    assert (min(sizes), max(sizes)) == (256, 786_432)
    few = sum(parameter.numel() for parameter in trainer.build(5).parameters())
    assert few == training.PARAMETERS * 5 // training.LAYERS


def training_of(way: str = "local") -> trainer.Training:
    return trainer.Training(way, rank=1, size=2, layers=5, samples=[3], rendezvous="")


def test_a_step_that_is_not_that_of_all_data_is_seen():
    right = training_of()
    assert right.step_and_compare() == 0.0
    right.step()
    assert right.step_and_compare() == 0.0
    half = training_of()
    half.optimizer.param_groups[0]["lr"] *= 0.99
    assert half.step_and_compare() == pytest.approx(0.01, rel=0.1)
    alone = training_of()
    alone.alone = False  # it says that it sums with rank 0, and does not
    assert alone.step_and_compare() > 0.1
