"""The processes of an MPI job, and what gets its ranks onto other hosts and onto the orchestrator's streams."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from baselines import enter, scratch
from baselines.launch import Launch, Machine, Process
from baselines.peers import mpi


def launch(n: int, **settings: str) -> Launch:
    def machine(host: str, number: int) -> Machine:
        return Machine(host=host, address=f"10.77.0.{number}", interface="eth0")

    return Launch(
        gpu_machines=tuple(machine(f"gpu{i}", i + 1) for i in range(n)),
        cpu_machines=(),
        scheduler=machine("scheduler", 99),
        nic_bytes_per_s=25e6,
        nbytes=1 << 20,
        settings=settings,
        secret="00",
        port=29_417,
    )


def mpirun_of(processes: list[Process]) -> Process:
    (process,) = [process for process in processes if process.rank < 0]
    return process


def test_there_is_a_worker_per_gpu_machine_and_one_mpirun_on_the_first() -> None:
    processes = mpi.plan(launch(3), ring=True)
    assert [(p.rank, p.host) for p in processes] == [(0, "gpu0"), (1, "gpu1"), (2, "gpu2"), (-1, "gpu0")]
    argv = mpirun_of(processes).argv
    assert argv[argv.index("--host") + 1] == "10.77.0.1:1,10.77.0.2:1,10.77.0.3:1"
    assert argv[argv.index("-n") + 1] == "3"


def test_workers_offer_their_driver_under_the_name_that_mpirun_lets_its_ranks_join() -> None:
    *workers, mpirun = mpi.plan(launch(2), ring=True)
    for rank, worker in enumerate(workers):
        offered, driver = worker.argv[: worker.argv.index("--")], worker.argv[worker.argv.index("--") + 1 :]
        assert offered[-2:] == ("offer", mpirun.argv[-1])
        assert driver[driver.index("--rank") + 1] == str(rank)
        assert json.loads(driver[driver.index("--settings") + 1])["algorithm"] == "ring"


def test_only_the_ring_contender_forces_an_algorithm() -> None:
    ring, own = (mpi.parameters(launch(2), ring=forced) for forced in (True, False))
    assert {key: value for key, value in ring.items() if key not in own} == {
        "coll_tuned_use_dynamic_rules": "1",
        "coll_tuned_allreduce_algorithm": "4",
    }


def test_polling_sleeps_as_long_as_the_setting_says_and_spinning_does_not() -> None:
    poll = mpi.parameters(launch(2, sleep="50"), ring=True)
    assert poll["threads_pthreads_nanosleep_time"] == "50000"
    assert not any("nanosleep" in key for key in mpi.parameters(launch(2, wait="spin"), ring=True))


@pytest.mark.parametrize("settings", [{"wait": "pool"}, {"sleep": "0"}, {"sleep": "0.5ms"}])
def test_a_setting_that_makes_no_sense_is_refused_by_name(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        mpi.plan(launch(2, **settings), ring=True)


def test_only_the_ring_has_a_formula() -> None:
    formulas = {contender.name: contender.nic_nbytes for contender in mpi.CONTENDERS}
    assert formulas["mpi"] is None
    assert formulas["mpi-ring"] is not None
    assert formulas["mpi-ring"](4, 0, 100) == 150


def test_the_other_hosts_namespace_follows_from_the_own_one() -> None:
    hosts = {"10.77.0.1": "gpu0", "10.77.0.12": "gpu11"}
    assert enter.target(hosts, "byteps-1-2-ab-gpu0", "10.77.0.12") == "byteps-1-2-ab-gpu11"
    with pytest.raises(SystemExit, match=r"10\.77\.0\.9"):
        enter.target(hosts, "byteps-1-2-ab-gpu0", "10.77.0.9")
    with pytest.raises(SystemExit, match="none of the hosts"):
        enter.target(hosts, "byteps-1-2-ab-cpu0", "10.77.0.12")


def test_who_joins_gets_the_streams_and_the_command_and_its_end_is_noticed(tmp_path: Path) -> None:
    name = f"test-relay-{tmp_path}"
    relay = [sys.executable, "-m", "baselines.relay"]
    talk = "print(input()[::-1]); import sys; print('log', file=sys.stderr)"
    with subprocess.Popen([*relay, "join", name], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as joiner:
        offer = [*relay, "offer", name, "--", sys.executable, "-c", talk]
        offered = subprocess.run(offer, input="hello\n", capture_output=True, text=True, timeout=30, check=True)
        assert joiner.wait(timeout=30) == 0
    assert offered.stdout == "olleh\n"
    assert offered.stderr.startswith("log\nrelay: ")


def test_temporary_files_go_with_the_command_even_when_it_is_told_to_end() -> None:
    write = "import os, sys, time; open(os.environ['TMPDIR'] + '/left', 'w'); print(os.environ['TMPDIR'], flush=True)"
    command = [sys.executable, "-m", "baselines.scratch", sys.executable, "-c", f"{write}; time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir()
        process.terminate()
        assert process.wait(timeout=30) == 128 + 15
    assert not folder.exists()


def test_folders_of_dead_creators_are_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, foreign = tmp_path / "baselines-4194999-x", tmp_path / "baselines-notes-x"
    dead.mkdir()
    foreign.mkdir()
    assert scratch.folder().is_dir()
    assert not dead.exists()
    assert foreign.exists()
