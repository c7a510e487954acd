"""The emulated NICs carry what they promise, and the watch sees who carries it."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.calibrate import calibrate
from scripts.fidelity import Watch
from scripts.lab import star
from scripts.netns import Lab, LabError

ROOT = Path(__file__).resolve().parents[2]


def test_three_200_mbit_nics_reach_the_expected_goodput_both_ways() -> None:
    with Lab(star({"a": 25e6, "b": 25e6, "c": 25e6})) as lab, Watch(lab.pids) as watch:
        calibration = calibrate(lab, seconds=1.5)
        assert lab.pids() == []
    assert calibration.faithful, calibration.describe()
    assert {flow.src for flow in calibration.flows} == {flow.dst for flow in calibration.flows} == {"a", "b", "c"}
    fidelity = watch.fidelity
    assert fidelity.wall_seconds > 2.0
    assert 0.0 < fidelity.lateness_p50_seconds <= fidelity.lateness_p99_seconds
    assert 0.0 < fidelity.run_queue_wait_share < 1.0
    assert 0.0 <= fidelity.idle_share <= 1.0


def test_every_nic_has_its_own_rate() -> None:
    with Lab(star({"a": 12.5e6, "b": 25e6, "c": 62.5e6})) as lab:
        calibration = calibrate(lab, seconds=1.0)
    assert calibration.faithful, calibration.describe()
    expected = {(flow.src, flow.dst): round(flow.expected_bytes_per_s * 1514 / 1448) for flow in calibration.flows}
    assert expected == {("a", "b"): 12_500_000, ("b", "c"): 25_000_000, ("c", "a"): 12_500_000}


def test_a_link_that_is_not_shaped_as_told_is_not_faithful() -> None:
    with Lab(star({"a": 25e6, "b": 25e6})) as lab:
        slower = "qdisc replace dev eth0 root tbf rate 180mbit burst 32768 limit 262144"
        subprocess.run(["tc", "-n", lab.namespace("a"), *slower.split()], check=True)
        calibration = calibrate(lab, seconds=0.5)
    assert not calibration.faithful
    assert (calibration.worst.src, calibration.worst.dst) == ("a", "b")
    assert calibration.worst.ratio == pytest.approx(0.9, abs=0.03)


def test_calibration_of_one_host_and_of_a_lab_that_is_down_is_refused() -> None:
    with Lab(star({"a": 25e6})) as lab, pytest.raises(ValueError, match="at least 2 hosts"):
        calibrate(lab)
    with pytest.raises(LabError, match="not up"):
        calibrate(Lab(star({"a": 25e6, "b": 25e6})))


def test_the_command_says_what_is_wrong_with_its_arguments() -> None:
    for arguments, reason in (
        (["--rate", "200"], "Gbit or 200Mbit"),
        (["--hosts", "1"], "at least 2 hosts"),
        (["--hosts", "900", "--rate", "1Gbit"], "use fewer hosts"),
    ):
        command = [sys.executable, "-m", "scripts.calibrate", *arguments]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert result.returncode == 1
        assert reason in result.stderr
        assert len(result.stderr.splitlines()) == 1
