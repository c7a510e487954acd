"""Workers of one machine as its NIC sees them: one, whose sum is exact."""

from pathlib import Path

import msgspec
import pytest

from experiments import launch, local, run
from experiments.emulated import Emulated
from scripts.lab import star
from scripts.netns import Lab


def test_a_nic_carries_one_gradient_each_way_however_many_workers_its_machine_has(tmp_path: Path) -> None:
    case = next(case for case in local.cases(blocks=0, lab_blocks=1, lab_iterations=1) if local.local_size(case) == 4)
    contender = local.contender(case.contender)
    with Lab(star(run.cluster_of([case]))) as lab:
        (outcome,) = launch.run([case], contender, Emulated(lab), logs=tmp_path, tell=lambda _case, _doing: None)
    assert not outcome.error, outcome.error
    assert outcome.max_error == 0.0
    assert outcome.checked == 8 * (case.warmups + case.iterations)
    one = msgspec.structs.replace(run.blank_record(case, contender, "emulated"), nics=outcome.nics)
    assert local.nic_nbytes(one) == pytest.approx(2 * case.nbytes, rel=0.01)  # k = n: no service on these machines
