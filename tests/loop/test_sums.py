"""Sums of real jobs against an oracle.  The checks are in programs/conformance.py: few jobs, many checks in each."""

import re

import pytest
from jobs import launch

# Small partitions make many of them cheap.
PARTITION = 4096


def passed(output: str) -> list[int]:
    return sorted(int(rank) for rank in re.findall(r"rank (\d+): \d+ checks passed", output))


@pytest.mark.parametrize("servers", [0, 1, 2])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_sum_equals_the_oracle(workers, servers):
    result = launch(
        "conformance.py", str(PARTITION), workers=workers, servers=servers, BYTEPS_PARTITION_BYTES=str(PARTITION)
    )
    assert result.code == 0, result.output
    assert passed(result.output) == list(range(workers))


@pytest.mark.parametrize(
    "workers, servers, environment",
    [
        pytest.param(1, 1, {"BYTEPS_FORCE_DISTRIBUTED": "1"}, id="forced 1x1"),
        pytest.param(1, 0, {"BYTEPS_FORCE_DISTRIBUTED": "1"}, id="forced 1x0"),
        pytest.param(3, 2, {"BYTEPS_KEY_HASH_FN": "hash"}, id="hash placement"),
        pytest.param(2, 1, {"BYTEPS_SERVICE_PROCESSES": "2"}, id="two processes per service"),
        pytest.param(2, 3, {}, id="more servers than workers"),
        pytest.param(2, 2, {"BYTEPS_SCHEDULING_CREDIT": "12KB"}, id="three partitions in flight"),
        pytest.param(2, 1, {"BYTEPS_PARTITION_BYTES": "auto"}, id="automatic partitions"),
    ],
)
def test_every_sum_equals_the_oracle_under_options(workers, servers, environment):
    environment = {"BYTEPS_PARTITION_BYTES": str(PARTITION)} | environment
    result = launch("conformance.py", str(PARTITION), workers=workers, servers=servers, **environment)
    assert result.code == 0, result.output
    assert passed(result.output) == list(range(workers))


@pytest.mark.parametrize("workers, servers", [(1, 1), (2, 0), (3, 0), (3, 2), (4, 1)])
def test_some_ranks_take_part_some_contribute_some_want_the_answer(workers, servers):
    result = launch(
        "rounds.py",
        str(PARTITION),
        workers=workers,
        servers=servers,
        BYTEPS_PARTITION_BYTES=str(PARTITION),
        BYTEPS_FORCE_DISTRIBUTED="1",
    )
    assert result.code == 0, result.output
    assert passed(result.output) == list(range(workers))
