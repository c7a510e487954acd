"""`byteps bench`: how long a push_pull takes for every size, as a table in the manner of nccl-tests.

Every worker of a job runs it and rank 0 prints.  A row is one tensor: a checked call on data that depends on rank and
index, then timed calls in place on zeros (sums of sums would overflow), each time the slowest worker's.

    algbw    size / time: what the gradients of a worker get.  There is no bus bandwidth: the factor that turns one into
             the other belongs to the ring, and here it depends on the number of CPU machines
    NIC      bytes that the busiest machine's NIC carries each way, by the services' shares; a tensor of few partitions
             cannot be spread so evenly and costs more
    of opt   t_opt / time, where the rate of the NICs is known (BYTEPS_NIC_RATE): 1.00 cannot be beaten
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from byteps import api, theory
from byteps.assign import paper_shares
from byteps.errors import BytePSError
from byteps.kernels import Array
from byteps.settings import Settings
from byteps.units import format_nbytes, format_rate
from byteps.version import VERSION

_TIMED_SECONDS = 0.5
_MIN_ITERATIONS, _MAX_ITERATIONS = 3, 100
_PERIOD = 65521  # of the data; a prime, so that no cut of partitions lines up with it
_ITEM_NBYTES = 4


@dataclass(frozen=True, kw_only=True)
class Row:
    """One size, measured."""

    nbytes: int
    seconds: float
    wrong: int  # elements, over all workers


def sizes(least: int, greatest: int, factor: int) -> list[int]:
    """From least to greatest bytes, each `factor` times the one before."""
    if not _ITEM_NBYTES <= least <= greatest:
        raise BytePSError(f"--min {least} --max {greatest}: use sizes of 4 bytes or more, --min no larger than --max")
    if factor < 2:
        raise BytePSError(f"--factor {factor}: use 2 or more")
    result = []
    while least <= greatest:
        result.append(least // _ITEM_NBYTES * _ITEM_NBYTES)
        least *= factor
    return result


def header(settings: Settings, least: int, greatest: int) -> list[str]:
    """What is measured, and the names of the columns."""
    n, k = settings.num_workers, settings.num_servers
    nic = format_rate(settings.nic_bytes_per_s) if settings.nic_bytes_per_s else "unknown (BYTEPS_NIC_RATE)"
    return [
        f"# byteps {VERSION}: push_pull of {format_nbytes(least)} to {format_nbytes(greatest)}, in place",
        f"# workers: {n}, servers: {k}, partitions: {settings.partition}, NIC: {nic}",
        "# algbw = size / time; NIC = bytes of the busiest NIC each way; of opt = t_opt / time",
        "#",
        "#       size         count      type     op       time     algbw           NIC  of opt   #wrong",
        "#        (B)    (elements)                        (us)    (GB/s)           (B)",
    ]


def line(row: Row, settings: Settings) -> str:
    """A row of the table."""
    n, k = settings.num_workers, settings.num_servers
    busiest = row.nbytes if n == 1 else max(theory.traffic(row.nbytes, paper_shares(n, k)))
    rate = settings.nic_bytes_per_s * theory.TCP_PAYLOAD_FRACTION
    fraction = f"{theory.byteps_seconds(row.nbytes, n, k, rate) / row.seconds:.2f}" if rate else "-"
    return (
        f"{row.nbytes:>12} {row.nbytes // _ITEM_NBYTES:>13} {'float':>9} {'sum':>6} {row.seconds * 1e6:>10.1f} "
        f"{row.nbytes / row.seconds / 1e9:>9.3f} {busiest:>13.0f} {fraction:>7} {row.wrong:>8}"
    )


def run(settings: Settings, *, least: int, greatest: int, factor: int, iterations: int) -> int:
    """This worker's part; rank 0 prints.  The exit code: 1 if any sum was wrong anywhere, the same on all ranks."""
    wanted = sizes(least, greatest, factor)
    if not settings.distributed:
        raise BytePSError("one worker alone sends nothing; use more workers, or set BYTEPS_FORCE_DISTRIBUTED=1")
    api.init(settings)
    rank = api.rank()
    if rank == 0:
        print("\n".join(header(settings, wanted[0], wanted[-1])), flush=True)
    rows = []
    for row in _measure(wanted, iterations):
        rows.append(row)
        if rank == 0:
            print(line(row, settings), flush=True)
    wrong = sum(row.wrong for row in rows)
    if rank == 0:
        print(f"# wrong elements: {wrong} {'OK' if not wrong else 'FAILED'}", flush=True)
    api.shutdown()
    return 1 if wrong else 0


def _measure(wanted: list[int], iterations: int) -> Iterator[Row]:
    """One row per size.  All are declared together, since the first declaration fixes an automatic partition size."""
    shapes = {f"bench/{nbytes}": np.broadcast_to(np.float32(0), nbytes // _ITEM_NBYTES) for nbytes in wanted}
    api.declare(shapes, op="sum")
    for nbytes in wanted:
        name = f"bench/{nbytes}"
        buffer = np.resize(_pattern(api.rank()), nbytes // _ITEM_NBYTES)
        api.push_pull_inplace(buffer, name, op="sum")
        wrong = int(np.count_nonzero(buffer != np.resize(_expected(), len(buffer))))
        buffer[:] = 0
        count = iterations or _enough(_timed(buffer, name, 1))
        seconds = _timed(buffer, name, count)
        wrong += int(np.count_nonzero(buffer))
        yield Row(nbytes=nbytes, seconds=seconds, wrong=int(sum(_gather(wrong))))


def _timed(buffer: Array, name: str, count: int) -> float:
    """Seconds per call, of the slowest worker; all start together."""
    _gather(0)
    started = time.perf_counter()
    for _ in range(count):
        api.push_pull_inplace(buffer, name, op="sum")
    return max(_gather((time.perf_counter() - started) / count))


def _enough(seconds: float) -> int:
    return max(_MIN_ITERATIONS, min(_MAX_ITERATIONS, int(_TIMED_SECONDS / seconds)))


def _gather(value: float) -> list[float]:
    """Every worker's value, on every worker; also a barrier."""
    values = np.zeros(api.size())
    values[api.rank()] = value
    return [float(one) for one in api.push_pull(values, "bench/gather", op="sum")]


def _pattern(rank: int) -> Array:
    """One period of integers that depend on rank and index."""
    return ((np.arange(_PERIOD) * (rank + 3) + 11 * rank) % 1009).astype(np.float32)


def _expected() -> Array:
    total = np.zeros(_PERIOD)
    for rank in range(api.size()):
        total += _pattern(rank)
    return total.astype(np.float32)
