"""How the processes of an allocation become the hosts of a cluster."""

import pytest

from experiments import join, rollcall
from experiments.rollcall import Caller, JoinError

SRUN = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n[1-4]"}


def caller(rank: int, **changes: object) -> Caller:
    fields = {
        "rank": rank,
        "host": f"n{rank}",
        "address": f"10.0.0.{rank + 1}",
        "interface": "eth0",
        "nic_bytes_per_s": 1e9,
        "suite": f"/home/{rank}",
        "conductor": "10.0.0.1",
    }
    return Caller(**{**fields, **changes})


@pytest.mark.parametrize(
    ("servers", "gpus", "names"),
    [
        (-1, -1, ["gpu0", "gpu1", "gpu2", "gpu3"]),
        (0, -1, ["gpu0", "gpu1", "gpu2", "gpu3"]),
        (1, -1, ["gpu0", "gpu1", "gpu2", "cpu0"]),
        (-1, 2, ["gpu0", "gpu1", "cpu0", "cpu1"]),
        (2, 2, ["gpu0", "gpu1", "cpu0", "cpu1"]),
    ],
)
def test_the_first_nodes_are_gpu_machines(servers, gpus, names):
    assert join.roles(4, servers=servers, gpu_machines=gpus) == names


@pytest.mark.parametrize(("servers", "gpus"), [(3, -1), (-1, 5), (-1, 1), (1, 2)])
def test_numbers_that_do_not_fit_are_refused_with_both(servers, gpus):
    with pytest.raises(JoinError, match=rf"--gpu-machines {gpus} --servers {servers}: 4 nodes"):
        join.roles(4, servers=servers, gpu_machines=gpus)


def test_every_rank_becomes_a_host_with_its_own_rate_and_suite():
    site = join.site_of([caller(0), caller(1, nic_bytes_per_s=5e8), caller(2)], ["gpu0", "gpu1", "cpu0"])
    assert [(host.name, host.role, host.address, host.suite) for host in site.hosts] == [
        ("gpu0", "gpu", "10.0.0.1", "/home/0"),
        ("gpu1", "gpu", "10.0.0.2", "/home/1"),
        ("cpu0", "cpu", "10.0.0.3", "/home/2"),
    ]
    assert [host.nic_bytes_per_s for host in site.hosts] == [1e9, 5e8, 1e9]
    assert site.provenance == "measured"


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({}, "no allocation here: start one process per node"),
        ({**SRUN, "SLURM_NTASKS": "8"}, "Slurm started 2 processes on a node; one per node is needed"),
        ({**SRUN, "SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "n1"}, "Slurm started 1 process"),
        ({**SRUN, "SLURM_PROCID": "9"}, "SLURM_PROCID='9'"),
    ],
)
def test_an_allocation_that_gives_no_cluster_is_refused_with_what_to_do(env, text):
    with pytest.raises(ValueError if "PROCID" in text else JoinError) as caught:
        join.allocation(env)
    assert text in str(caught.value)


def test_without_a_secret_only_loopback_is_joined():
    assert rollcall.secret_of({}, "127.0.0.1", 9) == b"loopback 9"
    assert rollcall.secret_of({"BYTEPS_JOB_SECRET": "s"}, "10.1.2.3", 9) == b"s"
    with pytest.raises(JoinError, match=r"export BYTEPS_JOB_SECRET=\$\(openssl rand -hex 16\)"):
        rollcall.secret_of({}, "10.1.2.3", 9)


def test_the_rate_of_a_nic_is_the_kernels_or_must_be_said(tmp_path):
    (tmp_path / "eth0").mkdir()
    (tmp_path / "eth0" / "speed").write_text("25000\n")
    assert rollcall.link_rate("eth0", tmp_path) == 3.125e9
    (tmp_path / "eth0" / "speed").write_text("-1\n")
    for name in ("eth0", "eth1"):
        with pytest.raises(ValueError, match=f"rate of {name}; say it, such as --nic 25Gbit"):
            rollcall.link_rate(name, tmp_path)
