"""What srun and torchrun tell a process about itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.allocation import AllocationError, expand_nodes, from_environment

SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "3",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_NODELIST": "node[01-02],big",
}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.7",
    "MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ["node1"]),
        ("node[01-03,7],gpu-a[1-2]", ["node01", "node02", "node03", "node7", "gpu-a1", "gpu-a2"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a[1]-ib.example.org", ["a1-ib.example.org"]),
        ("127.0.0.[1-2]", ["127.0.0.1", "127.0.0.2"]),
    ],
)
def test_a_node_list_is_expanded(text, names):
    assert list(expand_nodes(text)) == names


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,", "a[1", "a]1[", "a[[1]]", "a[]", "a[1-]", "a[x]", "a[3-1]", "a[1-999999999]", "a,a", "a[1,1]"],
)
def test_a_node_list_that_is_none_is_an_error_that_names_the_variable(text):
    with pytest.raises(AllocationError, match=r"SLURM_STEP_NODELIST=.* is not a list of nodes"):
        expand_nodes(text, variable="SLURM_STEP_NODELIST")


@given(st.integers(0, 10**6), st.integers(0, 50), st.integers(1, 7), st.sampled_from(["n", "gpu-", "a.b-c"]))
def test_a_range_has_all_its_numbers_in_order_and_no_two_alike(first, more, width, prefix):
    low, high = str(first).zfill(width), str(first + more)
    names = expand_nodes(f"{prefix}[{low}-{high}]")
    assert [int(name.removeprefix(prefix)) for name in names] == list(range(first, first + more + 1))
    assert all(len(name) - len(prefix) >= len(low) for name in names)


@given(st.lists(st.from_regex(r"[a-z]{1,5}-[0-9]{1,3}", fullmatch=True), min_size=1, unique=True))
def test_a_list_without_brackets_is_itself(names):
    assert list(expand_nodes(",".join(names))) == names


def test_srun_tells_rank_size_and_nodes():
    found = from_environment(SRUN)
    assert (found.source, found.rank, found.size, found.node, found.local_rank) == ("Slurm", 2, 3, 2, 0)
    assert found.hosts == ("node01", "node02", "big")
    assert found.conductor == "node01"
    assert found.one_per_node


def test_the_step_counts_before_the_job():
    step = {"SLURM_STEP_NODELIST": "big", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_NODEID": "0"}
    found = from_environment({**SRUN, **step, "SLURM_LOCALID": "1"})
    assert (found.hosts, found.size, found.local_size, found.local_rank) == (("big",), 2, 2, 1)
    assert not found.one_per_node


def test_tasks_per_node_may_differ():
    env = {**SRUN, "SLURM_NTASKS": "5", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"}
    assert from_environment(env).local_size == 1
    assert from_environment({**env, "SLURM_NODEID": "0"}).local_size == 2
    with pytest.raises(AllocationError, match="SLURM_STEP_TASKS_PER_NODE='2x2'"):
        from_environment({**env, "SLURM_STEP_TASKS_PER_NODE": "2x2"})


def test_every_rank_of_a_step_finds_the_same_port_and_another_step_finds_another():
    ports = {from_environment({**SRUN, "SLURM_PROCID": str(rank)}).port for rank in range(3)}
    assert len(ports) == 1
    assert from_environment({**SRUN, "SLURM_STEP_ID": "1"}).port not in ports


def test_torchrun_tells_rank_size_and_the_first_host_and_wins_over_srun():
    found = from_environment({**SRUN, **TORCHRUN})
    assert (found.source, found.rank, found.size, found.local_rank, found.local_size) == ("torchrun", 3, 4, 1, 2)
    assert (found.conductor, found.port, found.node) == ("10.0.0.7", 29501, 1)


def test_outside_of_both_there_is_none():
    assert from_environment({"HOME": "/root"}) is None
    assert from_environment({"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "4"}) is None  # a batch script outside srun


@pytest.mark.parametrize(
    ("env", "change", "text"),
    [
        (SRUN, {"SLURM_PROCID": "3"}, "SLURM_PROCID='3' is not valid; it takes a whole number from 0 to 2"),
        (SRUN, {"SLURM_PROCID": "-1"}, "SLURM_PROCID='-1'"),
        (SRUN, {"SLURM_NTASKS": "many"}, "SLURM_NTASKS='many'"),
        (SRUN, {"SLURM_NTASKS": ""}, "SLURM_NTASKS is missing"),
        (SRUN, {"SLURM_NODEID": "3"}, "SLURM_NODEID='3'"),
        (SRUN, {"SLURM_JOB_NODELIST": ""}, "SLURM_JOB_NODELIST=''"),
        (TORCHRUN, {"RANK": "4"}, "RANK='4'"),
        (TORCHRUN, {"WORLD_SIZE": "0"}, "WORLD_SIZE='0'"),
        (TORCHRUN, {"LOCAL_RANK": "2"}, "LOCAL_RANK='2'"),
        (TORCHRUN, {"MASTER_ADDR": ""}, "MASTER_ADDR is missing"),
        (TORCHRUN, {"MASTER_PORT": "70000"}, "MASTER_PORT='70000'"),
        (TORCHRUN, {"MASTER_PORT": ""}, "MASTER_PORT is missing"),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_variable(env, change, text):
    with pytest.raises(AllocationError) as caught:
        from_environment({**env, **change})
    assert text in str(caught.value)
