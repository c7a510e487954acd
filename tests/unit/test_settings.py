import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.partition import DEFAULT_PARTITION_BYTES
from byteps.settings import Settings, SettingsError, Steps, read_settings


def read(**environment: str) -> Settings:
    settings, warnings = read_settings(environment)
    assert warnings == []
    return settings


def test_nothing_set_is_one_worker_alone():
    settings = read()
    assert settings == Settings()
    assert not settings.distributed
    assert settings.partition == DEFAULT_PARTITION_BYTES == 4_096_000


@pytest.mark.parametrize(
    "text, value", [("4MB", 4_000_000), ("4MiB", 2**22), ("4096000", 4_096_000), (" 64 KiB ", 65536), ("auto", "auto")]
)
def test_a_partition_size_has_a_unit(text, value):
    assert read(BYTEPS_PARTITION_BYTES=text).partition == value


@pytest.mark.parametrize("text", ["abc", "-1", "4mb", "1e6", "0", "2GiB", "63"])
def test_a_wrong_size_names_the_variable_the_value_and_an_example(text):
    with pytest.raises(SettingsError) as caught:
        read_settings({"BYTEPS_PARTITION_BYTES": text})
    assert f"BYTEPS_PARTITION_BYTES={text!r} is not valid" in str(caught.value)
    assert "4MB" in str(caught.value)


@pytest.mark.parametrize("name", ["DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_WORKER_ID", "BYTEPS_SERVICE_PROCESSES"])
@pytest.mark.parametrize("text", ["-1", "two", "1.5", "0x2"])
def test_a_wrong_count_names_the_variable(name, text):
    with pytest.raises(SettingsError, match=rf"{name}='{text}' is not valid: use a whole number of 0 or more"):
        read_settings({name: text})


@pytest.mark.parametrize(
    "text, value",
    [
        ("1", True),
        ("true", True),
        ("ON", True),
        ("yes", True),
        ("0", False),
        ("False", False),
        ("off", False),
        ("", False),
    ],
)
def test_booleans_are_spelled_in_many_ways(text, value):
    assert read(BYTEPS_FORCE_DISTRIBUTED=text).force_distributed is value
    with pytest.raises(SettingsError, match="use 1, true, on, yes or 0, false, off, no"):
        read_settings({"BYTEPS_FORCE_DISTRIBUTED": "maybe"})


@pytest.mark.parametrize(
    "environment, text",
    [
        ({"DMLC_NUM_WORKER": "0"}, "a job has at least 1 worker"),
        ({"DMLC_NUM_WORKER": "2", "DMLC_WORKER_ID": "2"}, "DMLC_WORKER_ID is 2; with DMLC_NUM_WORKER=2 use 0 to 1"),
        ({"DMLC_NUM_SERVER": "1", "DMLC_SERVER_ID": "1"}, "DMLC_SERVER_ID is 1; with DMLC_NUM_SERVER=1 use 0 to 0"),
        ({"DMLC_ROLE": "joint"}, "DMLC_ROLE='joint' is not valid: use scheduler, server or worker"),
        ({"DMLC_PS_ROOT_PORT": "99999"}, "use a port from 1 to 65535"),
        ({"BYTEPS_LOCAL_RANK": "2", "BYTEPS_LOCAL_SIZE": "2"}, "BYTEPS_LOCAL_RANK is 2"),
        ({"BYTEPS_LOCAL_SIZE": "2", "BYTEPS_REDUCE_ROOTS": "1,2"}, "use local ranks 0 to 1"),
        ({"BYTEPS_REDUCE_ROOTS": "GPU2"}, "BYTEPS_REDUCE_ROOTS='GPU2' is not valid: use local ranks, such as 2,3"),
        ({"BYTEPS_LOCAL_SIZE": "4", "BYTEPS_PCIE_SWITCH_SIZE": "3"}, "use one that divides BYTEPS_LOCAL_SIZE=4"),
        ({"BYTEPS_NIC_RATE": "25"}, "BYTEPS_NIC_RATE='25' is not valid"),
        ({"BYTEPS_HEARTBEAT_TIMEOUT": "0"}, "use more than 0 seconds"),
        ({"BYTEPS_STALL_WARNING": "2min"}, "BYTEPS_STALL_WARNING (120 s) must be below BYTEPS_STALL_TIMEOUT (60 s)"),
        ({"BYTEPS_KEY_HASH_FN": "md5"}, "use exact"),
        ({"BYTEPS_TRACE_STEPS": "10"}, "BYTEPS_TRACE_STEPS='10' is not valid: use FIRST:END, such as 10:20"),
        ({"BYTEPS_TRACE_STEPS": "20:20"}, "use FIRST:END"),
    ],
)
def test_what_cannot_be_is_refused_in_words(environment, text):
    with pytest.raises(SettingsError) as caught:
        read_settings(environment)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "name, warning",
    [
        (
            "BYTEPS_PARTITON_BYTES",
            "BYTEPS_PARTITON_BYTES is not a variable of BytePS; did you mean BYTEPS_PARTITION_BYTES?",
        ),
        ("DMLC_NUM_WORKERS", "DMLC_NUM_WORKERS is not a variable of BytePS; did you mean DMLC_NUM_WORKER?"),
        ("BYTEPS_XYZZY_PLUGH_42", "BYTEPS_XYZZY_PLUGH_42 is not a variable of BytePS"),
        ("BYTEPS_TRACE_ON", "BYTEPS_TRACE_ON has no effect in this implementation"),
    ],
)
def test_names_without_effect_are_warned_about_with_the_nearest_match(name, warning):
    settings, warnings = read_settings({name: "1", "PATH": "/bin"})
    assert warnings == [warning]
    assert settings == Settings()


SECONDS = st.floats(0.001, 1e6)
SETTINGS = st.builds(
    Settings,
    role=st.sampled_from(["scheduler", "server", "worker"]),
    root_host=st.sampled_from(["127.0.0.1", "::1", "node-7"]),
    root_port=st.integers(1, 65535),
    num_workers=st.integers(5, 2**40),
    num_servers=st.integers(3, 9),
    worker_id=st.integers(-1, 4),
    server_id=st.integers(-1, 2),
    interface=st.sampled_from(["", "eth1", "10.1.0.0/16"]),
    local_rank=st.integers(0, 3),
    local_size=st.just(4),
    machine=st.sampled_from(["", "pcie-only", "my machine.toml"]),
    reduce_roots=st.sampled_from(["", "2", "2,3"]),
    pcie_switch_size=st.sampled_from([0, 2, 4]),
    job_secret=st.sampled_from(["", "0123abcd"]),
    force_distributed=st.booleans(),
    partition=st.one_of(st.just("auto"), st.integers(64, 2**30)),
    placement=st.sampled_from(["exact", "hash"]),
    plan=st.sampled_from(["", "plans/my plan.json"]),
    nic_bytes_per_s=st.one_of(st.just(0.0), st.floats(1e-3, 1e13)),
    credit_bytes=st.integers(0, 2**50),
    service_processes=st.integers(0, 64),
    trace=st.sampled_from(["", "traces/my trace.json"]),
    trace_steps=st.builds(lambda first, count: Steps(first, first + count), st.integers(0, 99), st.integers(1, 99)),
    start_seconds=SECONDS,
    heartbeat_seconds=SECONDS,
    stall_warn_seconds=st.floats(0.001, 1.0),
    stall_seconds=st.floats(2.0, 1e6),
)


@given(SETTINGS)
def test_to_environment_is_the_inverse_of_reading(settings):
    environment = settings.to_environment()
    assert read_settings(environment) == (settings, [])
    # Whatever the parent's environment says, the child gets these settings.
    inherited = dict.fromkeys(environment, "1")
    assert read_settings(inherited | environment) == (settings, [])
