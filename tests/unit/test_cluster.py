import pytest

from byteps.cluster import Cluster, Machine, load_cluster, parse_cluster, uniform_cluster

TEXT = """
[[machine]]
name = "gpu"
role = "gpu"
nic = "25Gbit"
count = 2

[[machine]]
name = "old"
role = "cpu"
nic = "10Gbit"
"""


def test_a_counted_table_stands_for_numbered_machines():
    assert parse_cluster(TEXT, "my.toml") == Cluster(
        machines=(
            Machine(name="gpu0", role="gpu", nic_bytes_per_s=3.125e9),
            Machine(name="gpu1", role="gpu", nic_bytes_per_s=3.125e9),
            Machine(name="old", role="cpu", nic_bytes_per_s=1.25e9),
        )
    )


def test_a_cluster_knows_the_papers_n_and_k():
    cluster = parse_cluster(TEXT, "my.toml")
    assert (cluster.n, cluster.k, cluster.equal_nics) == (2, 1, False)
    assert [machine.name for machine in cluster.gpu_machines] == ["gpu0", "gpu1"]
    assert [machine.name for machine in cluster.cpu_machines] == ["old"]


def test_a_uniform_cluster_has_equal_nics():
    cluster = uniform_cluster(3, 2, 25e6)
    assert [machine.name for machine in cluster.machines] == ["gpu0", "gpu1", "gpu2", "cpu0", "cpu1"]
    assert (cluster.n, cluster.k, cluster.equal_nics) == (3, 2, True)


def test_a_cluster_is_read_from_its_file(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(TEXT)
    assert load_cluster(path) == parse_cluster(TEXT, "my.toml")


@pytest.mark.parametrize(
    "right, wrong, named",
    [
        ("nic =", "nick =", "nick.*machine"),
        ('"cpu"', '"tpu"', r"tpu.*machine\[1\].role"),
        ('"25Gbit"', '"25"', r"machine\[0\].nic: '25'.*25Gbit"),
        ('"25Gbit"', "25", r"machine\[0\].nic"),
        ("count = 2", "count = 0", r"machine\[0\].count is 0.*1 or more"),
        ("count = 2", 'count = "2"', r"machine\[0\].count"),
        ('name = "old"', "", r"name.*machine\[1\]"),
        ('"old"', '""', r"machine\[1\].name is empty"),
        ('"old"', '"gpu1"', "'gpu1' is used more than once"),
        ('role = "gpu"', 'role = "cpu"', 'at least 1 machine of role "gpu"'),
        ("[[machine]]", "[[machines]]", "machines"),
        ("=", "", "line"),
    ],
)
def test_errors_name_the_file_and_the_key(right, wrong, named):
    assert right in TEXT
    with pytest.raises(ValueError, match=rf"^my\.toml: .*{named}"):
        parse_cluster(TEXT.replace(right, wrong), "my.toml")


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_nic_without_a_rate_is_refused(rate):
    with pytest.raises(ValueError, match="nic_bytes_per_s of 'a'"):
        Machine(name="a", role="gpu", nic_bytes_per_s=rate)
