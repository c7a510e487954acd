"""Figure 9a: what it costs to update the weights on the CPU that sums, too.

A server process with the real summation service, and a worker that pushes a tensor in partitions and takes the answers,
over a socket pair, so that no network is slower than memory.  `optimisers` says what the server does beside the sum.
Relative throughput is the time of a round without an optimiser over that with one, in the same block.

The paper's figure is another quantity: the training speed of VGG-16 over a 100 Gbit/s network, in which part of the
optimiser's time is hidden; its worker is one GPU machine, ours one process.  Adam, of which the paper says that it
takes more than ten times the memory accesses, has no bar there.

Checked: at the end the weights of a sample of elements against the same formulas in float64.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from baselines.launch import ROOT, Contender
from byteps.kernels import Array
from byteps.net import Connection, ConnectionLost, Flusher
from byteps.partition import DEFAULT_PARTITION_BYTES
from byteps.wire import HEADER, HEADER_NBYTES, Kind, Op
from experiments import record
from experiments.bounds import Row
from experiments.optimisers import UPDATES, Partition
from experiments.record import Case, OracleCheck, Record
from experiments.run import blank_record
from experiments.statistics import launch_seconds, paired_ratios

NAME = "optimiser"
NBYTES = 64 << 20
NONE = "none"
OPTIMISERS = (NONE, *UPDATES)
LABELS = {NONE: "sum only", "sgd": "SGD", "momentum": "momentum", "rmsprop": "RMSProp", "adam": "Adam"}
_FLOAT32 = 0  # in `wire.DTYPES`
_DEADLINE_SECONDS = 300.0
_SAMPLE = 997  # every so many elements are checked: a prime, so that all places in a chunk have their turn
_TOLERANCE = 1e-4

CONTENDER = Contender(
    name="cpu-optimiser",
    label="Optimiser on the CPU",
    colour="#0072B2",
    marker="o",
    uses_k=False,
    version=lambda: np.__version__,
    sources=("byteps/service.py", "byteps/kernels.py", "byteps/net.py", "experiments/optimise*.py"),
    plan=None,
)


def contender(name: str) -> Contender:
    """The only one."""
    if name != CONTENDER.name:
        raise ValueError(f"contender {name!r} is none of this benchmark; its cases have {CONTENDER.name!r}")
    return CONTENDER


def cases(*, blocks: int = 5, iterations: int = 9, nbytes: int = NBYTES, tier: str = "reproduce") -> list[Case]:
    """Every optimiser in every block, the order moving on by one."""
    return [
        Case(
            experiment=NAME,
            tier=tier,
            contender=CONTENDER.name,
            settings={"optimiser": OPTIMISERS[(block + position) % len(OPTIMISERS)]},
            n=1,
            k=1,
            nic_bytes_per_s=0.0,
            nbytes=nbytes,
            warmups=2,  # the first are the weights
            iterations=iterations,
            block=block,
            position=position,
        )
        for block in range(blocks)
        for position in range(len(OPTIMISERS))
    ]


def execute(wanted: Sequence[Case], raw: Path, tell: Callable[[str], None]) -> list[Record]:
    """Each with a server process of its own, and recorded."""
    records = []
    for number, case in enumerate(wanted, start=1):
        one = measure(case)
        record.append(raw / f"{NAME}.jsonl", one)
        records.append(one)
        said = one.error or "  ".join(f"{value:.3f}" for value in one.seconds) + " s"
        tell(f"[{number}/{len(wanted)}] {case.settings['optimiser']}: {said}")
    return records


def gradient(numel: int, round_: int) -> Array:
    """What the worker pushes in a round, of either sign and of no two rounds or neighbours the same."""
    return (np.arange(numel, dtype=np.float32) % 1009 - 504) / 504 * (1 + round_ % 3)


def measure(case: Case) -> Record:
    """One launch; a failure is a record with its error."""
    optimiser = case.settings["optimiser"]
    if optimiser not in OPTIMISERS:
        raise ValueError(f"optimiser {optimiser!r} is none; use one of {', '.join(OPTIMISERS)}")
    blank = blank_record(case, CONTENDER, "measured")
    mine, theirs = socket.socketpair()
    command = [sys.executable, "-m", "experiments.optimisers", optimiser, str(theirs.fileno())]
    flusher = Flusher()
    connection = Connection(mine, flusher)
    started = time.perf_counter()
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, env=os.environ) as server:
        theirs.close()
        watchdog = threading.Timer(_DEADLINE_SECONDS, server.kill)  # which ends whatever waits for it
        watchdog.start()
        try:
            seconds, answer = [], np.empty(case.nbytes // 4, np.float32)
            for round_ in range(case.warmups + case.iterations):
                pushed = gradient(answer.size, round_)
                begun = time.perf_counter()
                _round(connection, round_, pushed, answer)
                seconds.append(time.perf_counter() - begun)
        except ConnectionLost:
            server.kill()
            error = f"the server left after {time.perf_counter() - started:.0f} s, exit code {server.wait()}"
            return msgspec.structs.replace(blank, error=error)
        finally:
            watchdog.cancel()
            connection.close()
            flusher.abandon()
    return msgspec.structs.replace(
        blank,
        warmup_seconds=seconds[: case.warmups],
        seconds=seconds[case.warmups :],
        oracle=_check(optimiser, answer, len(seconds)),
    )


def parts(numel: int) -> Iterator[slice]:
    """The partitions of a tensor."""
    step = DEFAULT_PARTITION_BYTES // 4
    return (slice(start, min(start + step, numel)) for start in range(0, numel, step))


def _round(connection: Connection, round_: int, pushed: Array, answer: Array) -> None:
    """All partitions there and back; the sending is the Flusher's thread's."""
    places = list(parts(pushed.size))
    for key, place in enumerate(places):
        payload = pushed[place].view(np.uint8).data
        header = HEADER.pack(Kind.PUSH, _FLOAT32, Op.SUM, 0, 0, round_, key, len(payload))
        connection.send(header, payload, later=True)
    answered = bytearray(HEADER_NBYTES)
    for _ in places:
        connection.receive_exactly(memoryview(answered))
        key = HEADER.unpack(answered)[6]
        connection.receive_exactly(answer[places[key]].view(np.uint8).data)


def _check(optimiser: str, answer: Array, rounds: int) -> OracleCheck:
    """Against float64."""
    sample = [gradient(answer.size, round_)[::_SAMPLE].astype(np.float64) for round_ in range(rounds)]
    expected = sample[-1]
    if optimiser != NONE:
        update, states = UPDATES[optimiser]
        partition = Partition(sample[0], states)
        for one in sample[1:]:
            partition.step(update, one)
        expected = partition.weights
    error = float(np.abs(answer[::_SAMPLE] - expected).max())
    tolerance = _TOLERANCE * float(np.abs(expected).max())
    return OracleCheck(max_error=error, tolerance=tolerance, checked=expected.size, passed=error <= tolerance)


def relative(records: Sequence[Record], optimiser: str) -> dict[int, float]:
    """Throughput relative to that without an optimiser, by block."""
    return paired_ratios(_seconds(records, NONE), _seconds(records, optimiser))


def _seconds(records: Sequence[Record], optimiser: str) -> dict[int, float]:
    return {
        one.case.block: launch_seconds(one.seconds)
        for one in records
        if one.verified and one.case.settings["optimiser"] == optimiser
    }


def rows(records: Sequence[Record]) -> list[Row]:
    """Every optimiser beside the sum alone."""
    alone = tuple(one.case.nbytes / launch_seconds(one.seconds) / 1e9 for one in records if _is(one, NONE))
    return [Row(what="sum only", unit="GB/s", values=alone)] + [
        Row(what=f"{LABELS[name]}: relative throughput", unit="times", values=tuple(relative(records, name).values()))
        for name in UPDATES
    ]


def _is(one: Record, optimiser: str) -> bool:
    return one.verified and one.case.settings["optimiser"] == optimiser
