"""Both ends of every transport, as the benchmark starts them, with tensors that no message size divides."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from baselines.launch import Launch, Process
from experiments import here, transports
from experiments.record import Record
from experiments.transports import CARRIERS

NBYTES = (1 << 20) + 4 * 1237
MESSAGES = (4100, 1 << 21)  # not whole pages, and more of them than there are slots; larger than the tensor


def launched(
    name: str,
    message: int,
    logs: Path,
    change: Callable[[Process], Process] = lambda process: process,
) -> Record:
    (case,) = transports.cases(blocks=1, nbytes=NBYTES, messages=[message], carriers=[name], tier="smoke")
    contender = transports.contender(name)
    if reason := contender.missing():
        pytest.skip(reason)

    def plan(launch: Launch) -> list[Process]:
        assert contender.plan is not None
        return [change(process) for process in contender.plan(launch)]

    return here.run(case, replace(contender, plan=plan), logs=logs)


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("name", CARRIERS)
def test_every_byte_arrives_in_every_iteration(name: str, message: int, tmp_path: Path) -> None:
    record = launched(name, message, tmp_path)
    assert not record.error
    assert record.verified
    assert record.oracle is not None
    assert (record.oracle.checked, record.oracle.max_error) == (2 * (1 + 3), 0.0)
    assert record.cpu_seconds > 0
    assert record.facts["carrier"] == name
    assert "killed at the end" not in record.facts


@pytest.mark.parametrize("name", ["socket", "shm-write", "zmq-copy", "grpc-stream", "ucx-tcp"])
@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_an_end_that_dies_is_named_at_once(name: str, role: str, tmp_path: Path) -> None:
    def dying(process: Process) -> Process:
        return replace(process, argv=(sys.executable, "-c", "raise SystemExit(3)")) if process.name == role else process

    started = time.monotonic()
    record = launched(name, 1 << 16, tmp_path, dying)
    assert record.error.startswith(f"{role} exited 3 while others were waiting for it")
    assert time.monotonic() - started < 15.0


def test_bytes_of_another_tensor_are_found(tmp_path: Path) -> None:
    """The sender writes what belongs to another rank."""
    swap = "import sys; from baselines import data; fill = data.fill; " + (
        "data.fill = lambda array, rank, iteration: fill(array, rank + 1, iteration); "
        "from experiments.carriers import program; sys.argv[0] = 'x'; program.main()"
    )

    def lying(process: Process) -> Process:
        if process.name != "sender":
            return process
        return replace(process, argv=(process.argv[0], "-c", swap, *process.argv[3:]))

    record = launched("socket", 1 << 16, tmp_path, lying)
    assert not record.error
    assert not record.verified
