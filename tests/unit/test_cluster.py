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


def one(keys: str, source: str = "my.toml") -> Machine:
    (machine, *_) = parse_cluster(f'[[machine]]\nname = "a"\nrole = "gpu"\nnic = "8Gbit"\n{keys}', source).machines
    return machine


def test_several_nics_count_as_their_sum():
    (machine,) = parse_cluster(TEXT.replace('"25Gbit"', '["100Gbit", "50Gbit"]', 1), "my.toml").machines[:1]
    assert machine.nics == (12.5e9, 6.25e9)
    assert machine.nic_bytes_per_s == 18.75e9
    assert one("").nics == (1e9,)
    with pytest.raises(ValueError, match=r"nics of 'a' are \(1.0, 2.0\); they must sum to 4.0"):
        Machine(name="a", role="gpu", nic_bytes_per_s=4.0, nics=(1.0, 2.0))


def test_a_gpu_machine_has_one_gpu_unless_it_says_otherwise():
    assert [machine.gpus for machine in parse_cluster(TEXT, "my.toml").machines] == [1, 1, 0]
    assert one("gpus = 8").gpus == 8


def test_what_was_not_given_is_nothing():
    machine = one("")
    assert (machine.machine, machine.price, machine.rack) == ("", 0.0, "")
    machine = one('price = 3\nrack = "r1"')
    assert (machine.price, machine.rack) == (3.0, "r1")


@pytest.mark.parametrize(
    "written, kept",
    [
        ("nvlink", "nvlink"),
        ("dgx-a100", "dgx-a100"),
        ("box.xml", "lab/box.xml"),
        ("/etc/box", "/etc/box"),
        ("box", "lab/box"),
    ],
)
def test_the_path_of_a_description_is_relative_to_the_clusters_file(written, kept):
    assert one(f'machine = "{written}"', "lab/my.toml").machine == kept


def test_an_uplink_is_what_its_rack_could_send_over_the_oversubscription():
    text = TEXT.replace("count = 2", 'count = 2\nrack = "r1"') + 'rack = "r2"\n[network]\noversubscription = 2.5'
    assert parse_cluster(text, "my.toml").uplinks == {"r1": 2.5e9, "r2": 0.5e9}
    without = parse_cluster(text.replace('rack = "r2"', ""), "my.toml")
    assert without.uplinks == {"r1": 2.5e9}
    assert parse_cluster(TEXT, "my.toml").uplinks == {}


def test_a_cluster_is_read_from_its_file(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(TEXT)
    assert load_cluster(path) == parse_cluster(TEXT, "my.toml")


def test_a_description_that_is_neither_a_preset_nor_there_is_named_with_its_machine(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(TEXT.replace("count = 2", 'count = 2\nmachine = "nvlnk"'))
    with pytest.raises(ValueError, match=r"my.toml: machine\[0\].machine of 'gpu' is 'nvlnk': .*use a preset .*nvlink"):
        load_cluster(path)
    (tmp_path / "nvlnk").write_text("a description")
    assert load_cluster(path).machines[0].machine == str(tmp_path / "nvlnk")


def test_a_file_may_begin_with_a_byte_order_mark_but_must_be_utf8(tmp_path):
    path = tmp_path / "my.toml"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert load_cluster(path).n == 2
    path.write_bytes(TEXT.encode("utf-16"))
    with pytest.raises(ValueError, match=r"my.toml: byte 0xff at 0 is not UTF-8; save the file as UTF-8"):
        load_cluster(path)
    with pytest.raises(ValueError, match=r"none.toml: No such file"):
        load_cluster(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "right, wrong, named",
    [
        ("nic =", "nick =", r"machine\[0\] of 'gpu' has an unknown key 'nick', perhaps 'nic' is meant"),
        ('"cpu"', '"tpu"', r"machine\[1\].role of 'old' is 'tpu'; use \"gpu\" or \"cpu\""),
        ('"25Gbit"', '"25"', r"machine\[0\].nic of 'gpu' is '25': .*25Gbit"),
        ('"25Gbit"', "25", r"machine\[0\].nic"),
        ('"25Gbit"', "[]", r"machine\[0\].nic of 'gpu' is \[\]; .*100Gbit"),
        ('"25Gbit"', '["25Gbit", "25"]', r"machine\[0\].nic of 'gpu' is \['25Gbit', '25'\]: '25' is .*25Gbit"),
        ("count = 2", "gpus = 0", r"machine\[0\].gpus of 'gpu' is 0; a GPU machine has 1 or more"),
        ("count = 2", "gpus = -1", r"machine\[0\].gpus of 'gpu' is -1; use a whole number"),
        ('"10Gbit"', '"10Gbit"\ngpus = 1', r"machine\[1\].gpus of 'old' is 1; .* a CPU machine 0"),
        ("count = 2", "price = -1.5", r"machine\[0\].price of 'gpu' is -1.5; use 0 or more"),
        ("count = 2", "price = nan", r"machine\[0\].price of 'gpu' is nan"),
        ("count = 2", "rack = 1", r"machine\[0\].rack"),
        ('"10Gbit"', '"10Gbit"\n[network]\nuplink = 1', "network has an unknown key 'uplink'"),
        ('"10Gbit"', '"10Gbit"\nrack = "r"\n[network]\noversubscription = 0.5', "oversubscription is 0.5; use 1.0"),
        ('"10Gbit"', '"10Gbit"\n[network]\noversubscription = 4', "is 4.0, but no machine has a rack"),
        ("count = 2", "count = 0", r"machine\[0\].count of 'gpu' is 0; use 1 to 100000"),
        ("count = 2", 'count = "2"', r"machine\[0\].count"),
        ('name = "old"', "", r"machine\[1\] has no key 'name'"),
        ('"old"', '""', r"machine\[1\].name is ''"),
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
