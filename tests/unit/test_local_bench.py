"""The benchmark of a machine's workers: its plan, its formula, and its figure, from records that never were."""

import msgspec
import numpy as np
import pytest
from synthetic import loaded, summed_locally

from baselines.launch import Launch, Machine
from experiments import local
from experiments.figures.local import local_reduction
from experiments.record import Fidelity


def machine(number):
    return Machine(host=f"gpu{number}", address=f"10.0.0.{number + 1}", interface="eth0")


def planned(n, size, rate):
    machines = tuple(machine(number) for number in range(n))
    launch = Launch(
        gpu_machines=machines,
        cpu_machines=(),
        scheduler=machine(9),
        nic_bytes_per_s=rate,
        nbytes=1 << 20,
        settings={"local_size": str(size)},
        secret="00",
    )
    return local.plan(launch)


@pytest.mark.parametrize(("n", "size"), [(1, 2), (1, 4), (2, 1), (2, 4)])
def test_every_machine_has_its_workers_and_there_is_one_scheduler(n, size):
    processes = planned(n, size, 0.0)
    workers = [process for process in processes if process.rank >= 0]
    assert [worker.rank for worker in workers] == list(range(n * size))
    assert len({process.name for process in processes}) == len(processes)
    for worker in workers:
        place = (worker.host, worker.env["DMLC_WORKER_ID"], worker.env["BYTEPS_LOCAL_RANK"])
        assert place == (f"gpu{worker.rank // size}", str(worker.rank // size), str(worker.rank % size))
        assert worker.argv[worker.argv.index("--rank") + 1] == str(worker.rank)
        assert worker.argv[worker.argv.index("--size") + 1] == str(n * size)
    assert [process.name for process in processes if process.rank < 0] == ["scheduler"]
    assert {process.env["BYTEPS_LOCAL_SIZE"] for process in processes} == {str(size)}
    assert {process.env["DMLC_NUM_WORKER"] for process in processes} == {str(n)}
    assert all("BYTEPS_NIC_RATE" not in process.env for process in processes)


def test_workers_on_nics_are_told_their_rate():
    assert {process.env["BYTEPS_NIC_RATE"] for process in planned(2, 2, 25e6)} == {"200Mbit"}


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_bytes_that_move_are_those_of_the_three_steps(workers):
    nbytes = 1000
    filled = fetched = workers * (nbytes + nbytes)
    added = workers * nbytes + nbytes
    assert local.moved_nbytes(workers, nbytes) == filled + added + fetched


def test_every_line_runs_once_per_block_and_blocks_begin_differently():
    cases = local.cases(blocks=2, lab_blocks=2)
    keys = [(case.block, case.nic_bytes_per_s, case.workload, local.local_size(case)) for case in cases]
    assert len(set(keys)) == len(keys) == 2 * (2 * 4 + 3)
    assert {local.tensor_nbytes(case) for case in cases if not case.nic_bytes_per_s} == {
        1 << 20,
        4 << 20,
        16 << 20,
        64 << 20,
    }
    for shaped in (False, True):
        first, second = (
            [c for c in cases if c.block == block and bool(c.nic_bytes_per_s) == shaped] for block in (0, 1)
        )
        assert first[0].settings != second[0].settings or first[0].workload != second[0].workload


def test_rows_are_ratios_within_blocks_and_against_copies():
    rows = {row.what: row for row in local.rows([summed_locally(case) for case in local.cases(blocks=2, lab_blocks=2)])}
    assert rows["4 workers, tensors of 1 MiB: goodput / copies"].values == pytest.approx((1.0, 1.0))
    assert rows["100Mbit NICs, 4 workers per machine: bytes / 1 worker's"].values == (1.0, 1.0)
    longer = rows["100Mbit NICs, 4 workers per machine: time / 1 worker's"]
    assert longer.values == pytest.approx((1.06, 1.06))
    assert longer.verdict == "not met"
    assert rows["100Mbit NICs, 2 workers per machine: time / 1 worker's"].verdict == "met"


def test_a_busy_machine_costs_the_times_and_not_the_bytes():
    busy = Fidelity(verdict="cpu-bound")
    records = [
        msgspec.structs.replace(summed_locally(case), fidelity=busy) for case in local.cases(blocks=0, lab_blocks=1)
    ]
    rows = {row.what: row for row in local.rows(records)}
    assert rows["100Mbit NICs, 2 workers per machine: bytes / 1 worker's"].values == (1.0,)
    assert rows["100Mbit NICs, 2 workers per machine: time / 1 worker's"].values == ()
    assert rows["100Mbit NICs, 1 worker per machine: iteration"].note == "1 of 1 not faithful"


def test_the_figure_is_drawn_also_where_launches_are_missing(tmp_path):
    records = [summed_locally(case) for case in local.cases(blocks=2, lab_blocks=2)]
    for some in (records, records[:3], records[-2:], records[:1]):
        assert all(path.stat().st_size for path in local_reduction(loaded("local", some), tmp_path))


def test_copies_of_all_threads_count_together():
    alone = local.copied_bytes_per_s(1, 1 << 20, 1 << 18)
    assert np.isfinite(alone)
    assert local.copied_bytes_per_s(2, 1 << 20, 1 << 18) > 0
