import pytest

from byteps.flowsim import Flow, simulate


def test_two_flows_into_one_link_share_it_by_weight():
    flows = [Flow(loads={"in": 1.0}, nbytes=30.0, weight=3.0), Flow(loads={"in": 1.0}, nbytes=30.0)]
    outcome = simulate(flows, {"in": 10.0})
    assert outcome.end == pytest.approx([4.0, 6.0])  # 7.5 and 2.5 bytes/s, then 10
    assert outcome.carried == {"in": 60.0}
    assert outcome.bottleneck == "in"
