"""The examples do what they say, with tiny settings."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import Result, launch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str, *options: str, workers: int = 2, servers: int = 1) -> Result:
    result = launch(str(EXAMPLES / name), *options, workers=workers, servers=servers, seconds=100)
    assert result.code == 0, result.output
    return result


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py") if path.name != "push_pull.py"))
def test_help_says_what_it_is_and_nothing_is_started(name):
    command = [sys.executable, str(EXAMPLES / name), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "usage:" in done.stdout


def test_the_smallest_program_is_right_on_every_worker():
    assert example("push_pull.py").output.count("right") == 2


def test_digits_are_learned():
    output = example("digits.py", "--epochs", "3").output
    accuracies = [float(word) for word in re.findall(r"\[worker 0\] epoch \d: .* test accuracy (\d\.\d+)", output)]
    assert len(accuracies) == 3
    assert accuracies[-1] > 0.85  # a tenth by chance
    assert "[worker 1] epoch" not in output


def test_the_character_model_learns_and_writes():
    output = example("char_model.py", "--steps", "40", "--length", "32", "--write", "30").output
    losses = [float(word) for word in re.findall(r"\[worker 0\] step \d+: loss (\d\.\d+)", output)]
    assert len(losses) == 3
    assert losses[-1] < losses[0] - 1.0  # 4.6 is knowing nothing
    written = output.partition(f"step 39: loss {losses[-1]:.3f}\n")[2].replace("\n[worker 0] ", "\n")
    assert len(written.partition("[worker 0] ")[2].rstrip("\n")) >= 25
    assert "[worker 1] step" not in output


def test_the_synthetic_benchmark_prints_the_lines_that_scrapers_of_horovod_look_for():
    small = ("--image-size", "32", "--batch-size", "4", "--num-warmup-batches", "1", "--num-batches-per-iter", "2")
    output = example("imagenet_synthetic.py", "--no-cuda", "--num-iters", "3", *small).output
    assert re.findall(r"\[worker 0\] Iter #(\d): \d+\.\d img/sec per CPU\n", output) == ["0", "1", "2"]
    (one, one_spread) = re.findall(r"Img/sec per CPU: (\S+) \+-(\S+)\n", output)[0]
    (both, both_spread) = re.findall(r"Total img/sec on 2 CPU\(s\): (\S+) \+-(\S+)\n", output)[0]
    assert float(both) == pytest.approx(2 * float(one), abs=0.11)
    assert float(both_spread) == pytest.approx(2 * float(one_spread), abs=0.11)
    for line in ("Model: small", "Batch size: 4", "Number of CPUs: 2", "Running warmup...", "Running benchmark..."):
        assert f"[worker 0] {line}\n" in output
