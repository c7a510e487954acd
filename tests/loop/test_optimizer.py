"""DistributedOptimizer in real jobs against one process.  The checks are in programs/equivalence.py."""

import pytest
from jobs import launch


@pytest.mark.timeout(200)
@pytest.mark.parametrize("workers, servers", [(1, 0), (2, 0), (2, 1), (2, 2), (3, 1), (4, 0), (4, 2)])
def test_workers_train_as_one_process_with_all_their_samples(workers, servers):
    result = launch("equivalence.py", workers=workers, servers=servers, seconds=150)
    assert result.code == 0, result.output
    assert result.output.count("right") == workers
