"""The torch API's calls in real jobs; the checks are in programs/torch_calls.py."""

import pytest
from jobs import launch


@pytest.mark.parametrize("workers, servers", [(1, 0), (2, 1), (3, 0), (4, 2)])
def test_calls_of_the_official_plug_in_and_of_horovod_work(workers, servers):
    result = launch("torch_calls.py", workers=workers, servers=servers)
    assert result.code == 0, result.output
    assert result.output.count("right") == workers
