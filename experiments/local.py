"""Workers of one machine, summed in shared memory: against memory, and that the NIC does not see how many they are.

On this machine, unshaped: one machine of L workers, 64 MiB of float32 each, in tensors of 1 to 64 MiB; no network.
Which bytes move, for M bytes per worker (`byteps.local_layout`):

    every worker copies its gradient into its slot     L M read, L M written
    all add up the slots, each a part                  L M read,   M written
    every worker copies the result out                 L M read, L M written      (5 L + 1) M in all

A copy of X bytes reads X and writes X, so the goodput is (5 L + 1) M / 2 over the time, in bytes copied.  Its yardstick
is what L threads of one process copy at the same time, in pieces as large as the tensors, before and after the launch:
the best of all, which makes it hard: ours is a median.  Asked for: half of it.  Cache lines that a write fetches first
count in neither.

On emulated NICs: two machines of L workers, two servers.  The payload on a machine's NIC must not grow with L (1 %, for
the heartbeats of more workers), nor the time (5 %).  The emulated machines share the cores of this one, so that more
workers have fewer each.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from baselines.contenders import get
from baselines.launch import Contender, Launch, Process, driver_argv
from baselines.peers import byteps
from byteps.units import format_nbytes, parse_rate
from experiments import record
from experiments.bounds import Row
from experiments.record import Case, Record
from experiments.small_tensors import without_nic
from experiments.statistics import launch_seconds, paired_ratios
from experiments.training import run_once
from scripts.netns import why_no_lab

NAME: Final = "local"
NBYTES: Final = 64 << 20
COUNTS: Final = (64, 16, 4, 1)  # of tensors
SIZES: Final = (2, 4)  # workers of the machine
NIC: Final = "100Mbit"
NIC_NBYTES: Final = 8 << 20
NIC_SIZES: Final = (1, 2, 4)
HALF: Final = 0.5
MORE_BYTES, MORE_SECONDS = 1.01, 1.05  # at most, of more workers over one
COPY: Final = "copied bytes per s"
_COPIES: Final = 5
_DEADLINE_SECONDS: Final = 60.0


def cases(
    *,
    blocks: int = 3,
    lab_blocks: int = 2,
    iterations: int = 5,
    lab_iterations: int = 3,
    nbytes: int = NBYTES,
    counts: Sequence[int] = COUNTS,
    tier: str = "reproduce",
) -> list[Case]:
    """Every size of a machine with every size of a tensor; then machines on emulated NICs.  The order moves on."""

    def one(block: int, position: int, local_size: int, **others: object) -> Case:
        return Case(
            experiment=NAME,
            tier=tier,
            contender="byteps",
            settings={"local_size": str(local_size)},
            warmups=2,
            block=block,
            position=position,
            **others,  # type: ignore[arg-type]
        )

    found = []
    for block in range(blocks):
        lines = [(size, count) for size in SIZES for count in counts]
        turn = block * 3 % len(lines)
        for position, (size, count) in enumerate(lines[turn:] + lines[:turn]):
            workload = "tensor" if count == 1 else f"tensors:{count}"
            there = {"n": 1, "k": 0, "nic_bytes_per_s": 0.0, "nbytes": nbytes, "workload": workload}
            found.append(one(block, position, size, iterations=iterations, **there))
    for block in range(lab_blocks):
        turn = block % len(NIC_SIZES)
        for position, size in enumerate(NIC_SIZES[turn:] + NIC_SIZES[:turn]):
            there = {"n": 2, "k": 2, "nic_bytes_per_s": parse_rate(NIC), "nbytes": NIC_NBYTES}
            found.append(one(block, position, size, iterations=lab_iterations, **there))
    return found


def contender(name: str) -> Contender:
    """BytePS, with several workers per machine."""
    one = get(name)
    return replace(one, plan=plan, sources=(*one.sources, "experiments/local.py", "experiments/here.py"))


def plan(launch: Launch) -> list[Process]:
    """The roles of a job, and as many workers on every GPU machine as the setting `local_size` says."""
    size = int(launch.settings["local_size"])
    wide = replace(launch, gpu_machines=tuple(machine for machine in launch.gpu_machines for _ in range(size)))
    planned = []
    for process in byteps.plan(launch, forced=size > 1):
        env = dict(process.env) if launch.nic_bytes_per_s else without_nic(process.env)
        env["BYTEPS_LOCAL_SIZE"] = str(size)
        if process.rank < 0:
            planned.append(replace(process, env=env))
            continue
        start = process.argv[: process.argv.index("--") + 1]
        for local in range(size):
            rank = process.rank * size + local
            argv = (*start, *driver_argv("byteps_adapter", rank, wide, launch.settings))
            there = {**env, "BYTEPS_LOCAL_RANK": str(local)}
            planned.append(replace(process, name=f"worker {rank}", rank=rank, argv=argv, env=there))
    return planned


def copied_bytes_per_s(threads: int, nbytes: int, piece_nbytes: int) -> float:
    """What so many threads together copy, each its own `nbytes` in such pieces; the best of a few times."""
    barrier = threading.Barrier(threads, timeout=_DEADLINE_SECONDS)

    def copy() -> list[tuple[float, float]]:
        source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
        found = []
        for _ in range(_COPIES):
            barrier.wait()
            begun = time.perf_counter()
            for start in range(0, nbytes, piece_nbytes):
                np.copyto(target[start : start + piece_nbytes], source[start : start + piece_nbytes])
            found.append((begun, time.perf_counter()))
        return found

    with ThreadPoolExecutor(threads) as pool:
        spans = [future.result(_DEADLINE_SECONDS) for future in [pool.submit(copy) for _ in range(threads)]]
    times = [max(end for _, end in turn) - min(begun for begun, _ in turn) for turn in zip(*spans, strict=True)]
    return float(threads * nbytes / min(times))


def execute(wanted: Sequence[Case], raw: Path, tell: Callable[[str], None]) -> list[Record]:
    """One launch after the other, each recorded as soon as it ends; those with shaped NICs only where a lab can be."""
    records = []
    for number, case in enumerate(wanted, start=1):
        title = f"[{number}/{len(wanted)}] {case.title}"
        if case.nic_bytes_per_s and (reason := why_no_lab()):
            tell(f"{title}: not run: {reason}")
            continue
        started = time.monotonic()
        one = measure(case, raw / "logs" / f"{record.case_hash(case)[:12]}-{time.time_ns()}")
        record.append(raw / f"{NAME}.jsonl", one)
        records.append(one)
        said = one.error or f"{launch_seconds(one.seconds) * 1e3:.1f} ms"
        if COPY in one.facts and not one.error:
            said += f", {of_copying(one):.2f} of copying"
        tell(f"{title}: {said} ({time.monotonic() - started:.0f} s)")
    return records


def measure(case: Case, logs: Path) -> Record:
    """One launch; a failure is a record with its error."""
    if case.nic_bytes_per_s:
        return run_once(case, contender(case.contender), logs)
    yardstick = (local_size(case), case.nbytes, tensor_nbytes(case))
    before = copied_bytes_per_s(*yardstick)
    one = run_once(case, contender(case.contender), logs)
    best = max(before, copied_bytes_per_s(*yardstick))
    return msgspec.structs.replace(one, facts={**one.facts, COPY: repr(best)})


def local_size(case: Case) -> int:
    """Workers per machine."""
    return int(case.settings["local_size"])


def tensor_nbytes(case: Case) -> int:
    """Of one tensor."""
    _, _, count = case.workload.partition(":")
    return case.nbytes // int(count or "1")


def moved_nbytes(workers: int, nbytes: int) -> int:
    """Read and written in memory by all together, for so many bytes of each worker."""
    return (5 * workers + 1) * nbytes


def goodput(one: Record) -> float:
    """In bytes copied per second: half of what is read and written."""
    return moved_nbytes(local_size(one.case), one.case.nbytes) / 2 / launch_seconds(one.seconds)


def of_copying(one: Record) -> float:
    """The goodput over what copies reach."""
    return goodput(one) / float(one.facts[COPY])


def nic_nbytes(one: Record) -> float:
    """Payload of a machine's NIC per iteration, both ways, the mean over machines."""
    nics = [nic for host, nic in one.nics.items() if host.startswith("gpu")]
    return sum(nic.payload_sent + nic.payload_received for nic in nics) / len(nics) / one.case.iterations


def here(records: Sequence[Record], size: int, nbytes: int) -> list[Record]:
    """Launches on this machine with so many workers and tensors of so many bytes."""
    alike = [one for one in records if one.verified and not one.case.nic_bytes_per_s]
    return [one for one in alike if local_size(one.case) == size and tensor_nbytes(one.case) == nbytes]


def sizes_of(records: Sequence[Record]) -> list[int]:
    """Bytes of the tensors that were summed here."""
    return sorted({tensor_nbytes(one.case) for one in records if one.verified and not one.case.nic_bytes_per_s})


def on_nics(records: Sequence[Record], size: int) -> dict[int, Record]:
    """Launches on emulated NICs with so many workers per machine, by block; bytes are right on a busy machine, too."""
    alike = [one for one in records if one.correct and one.case.nic_bytes_per_s]
    return {one.case.block: one for one in alike if local_size(one.case) == size}


def over_one(records: Sequence[Record], size: int, quantity: Callable[[Record], float]) -> Mapping[int, float]:
    """A quantity with so many workers per machine over the same with one, by block."""
    ours, alone = ({block: quantity(one) for block, one in on_nics(records, workers).items()} for workers in (size, 1))
    return paired_ratios(ours, alone)


def seconds(one: Record) -> float:
    """Of an iteration."""
    return launch_seconds(one.seconds)


def faithful(records: Sequence[Record]) -> list[Record]:
    """Whose times count."""
    return [one for one in records if one.faithful]


def rows(records: Sequence[Record]) -> list[Row]:
    """Goodput against copies, then bytes and time on NICs against one worker per machine."""
    return [*_rows_of_memory(records), *_rows_of_nics(records)]


def _rows_of_memory(records: Sequence[Record]) -> list[Row]:
    found = []
    for size in SIZES:
        for nbytes in sizes_of(records):
            some = here(records, size, nbytes)
            what = f"{size} workers, tensors of {format_nbytes(nbytes)}"
            rates = tuple(goodput(one) / 1e9 for one in some)
            copies = tuple(float(one.facts[COPY]) / 1e9 for one in some)
            found += [
                Row(what=f"{what}: goodput, as copies", values=rates, unit="GB/s"),
                Row(what=f"{what}: copies alone", values=copies, unit="GB/s", note=f"{size} threads"),
                Row(what=f"{what}: goodput / copies", values=tuple(map(of_copying, some)), bound=HALF),
            ]
    return found


def _rows_of_nics(records: Sequence[Record]) -> list[Row]:
    found = []
    for size in NIC_SIZES:
        some = list(on_nics(records, size).values())
        timed = faithful(some)
        note = f"{len(some) - len(timed)} of {len(some)} not faithful" if len(timed) < len(some) else ""
        what = f"{NIC} NICs, {size} worker{'s' * (size > 1)} per machine"
        found.append(Row(what=f"{what}: iteration", values=tuple(map(seconds, timed)), unit="s", note=note))
        found.append(Row(what=f"{what}: NIC", values=tuple(nic_nbytes(one) / 1e6 for one in some), unit="MB"))
        if size > 1:
            more = over_one(records, size, nic_nbytes).values()
            longer = over_one(faithful(records), size, seconds).values()
            found += [
                Row(what=f"{what}: bytes / 1 worker's", values=tuple(more), bound=MORE_BYTES, direction="at most"),
                Row(what=f"{what}: time / 1 worker's", values=tuple(longer), bound=MORE_SECONDS, direction="at most"),
            ]
    return found
