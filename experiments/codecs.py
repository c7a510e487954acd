"""How fast codecs are, per core, against a 10 Gbit/s NIC: whether compressing costs more time than it saves.

Both ends of a tensor of 64 MiB as in a job (`byteps.coding`), in partitions of 4,096,000 bytes, without the network
between them; larger than any cache, so memory takes part.  Rates are of the gradient's own float32 bytes:

    push        the worker adds what is left to the gradient and encodes it
    add         the service decodes and adds
    answer      the service encodes the sum, with what is left of earlier ones
    result      the worker decodes
    copy        of the same tensor, in the same launch: what no codec can be faster than by much

One thread.  The service's two rates are per worker's contribution and per answer.  fp16 is the cast of the same
partitions by numpy, as a process without torch does it.  Checked: over all iterations, what was answered and what both
ends still keep is what was given.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from baselines.launch import Contender
from byteps import kernels
from byteps.coding import EncodedSum, TensorCoding, with_codec
from byteps.kernels import Array
from byteps.partition import DEFAULT_PARTITION_BYTES
from byteps.summation import Push
from byteps.wire import CODING, ENCODED, HEADER_NBYTES, Op, TensorEntry, TensorSpec
from experiments import record
from experiments.bounds import Row
from experiments.record import Case, OracleCheck, Record
from experiments.run import blank_record

NAME = "codecs"
NBYTES = 64 << 20
NIC_BYTES_PER_S = 10e9 / 8
CODECS = ("fp16", "onebit", "topk:0.01", "topk:0.001", "randomk:0.01")
STAGES = ("push", "add", "answer", "result")
# Fewer bytes than float32, with every header: what the codec promises.
FEWER = {"fp16": 2 * 0.99, "onebit": 25.0}
_FP16 = np.dtype(np.float16)

CONTENDER = Contender(
    name="codec",
    label="codecs",
    colour="#0072B2",
    marker="o",
    uses_k=False,
    version=lambda: np.__version__,
    sources=("byteps/codecs/*.py", "byteps/coding.py", "byteps/kernels.py", "experiments/codecs.py"),
    plan=None,
)


def contender(name: str) -> Contender:
    """The only one."""
    if name != CONTENDER.name:
        raise ValueError(f"contender {name!r} is none of this benchmark; its cases have {CONTENDER.name!r}")
    return CONTENDER


def cases(*, blocks: int = 5, iterations: int = 5, nbytes: int = NBYTES, tier: str = "reproduce") -> list[Case]:
    """Every codec in every block, the order moving on by one."""
    return [
        Case(
            experiment=NAME,
            tier=tier,
            contender=CONTENDER.name,
            settings={"codec": CODECS[(block + position) % len(CODECS)]},
            n=1,
            k=0,
            nic_bytes_per_s=0.0,
            nbytes=nbytes,
            warmups=1,
            iterations=iterations,
            block=block,
            position=position,
        )
        for block in range(blocks)
        for position in range(len(CODECS))
    ]


@dataclass
class Ends:
    """A worker's and a service's, of one tensor of one worker."""

    coding: TensorCoding
    sums: dict[int, EncodedSum] = field(default_factory=dict)
    totals: dict[int, Array] = field(default_factory=dict)  # of codecs that services do not know
    nbytes: int = 0  # on the wire, one way


def execute(wanted: Sequence[Case], raw: Path, tell: Callable[[str], None]) -> list[Record]:
    """Each measured in this process and recorded."""
    records = []
    for case in wanted:
        one = measure(case)
        record.append(raw / f"{NAME}.jsonl", one)
        records.append(one)
        rates = "  ".join(f"{stage} {case.nbytes / float(one.facts[stage]) / 1e9:.2f}" for stage in STAGES)
        tell(f"{case.title}: {rates} GB/s")
    return records


def measure(case: Case) -> Record:
    """One codec; the record's seconds are those of all stages together, its facts their medians."""
    spelling = case.settings["codec"]
    numel = case.nbytes // 4
    rng = np.random.default_rng(case.block)
    gradient = rng.standard_normal(numel, np.float32)
    result, copied, answered = np.empty_like(gradient), np.empty_like(gradient), np.zeros(numel)
    step = DEFAULT_PARTITION_BYTES // 4
    parts = [slice(start, start + step) for start in range(0, numel, step)]
    run, left, fewer = (
        _cast(gradient, result, parts) if spelling == "fp16" else _coded(spelling, gradient, result, parts)
    )
    seconds: dict[str, list[float]] = {stage: [] for stage in (*STAGES, "copy")}
    for iteration in range(case.warmups + case.iterations):
        spent = run(iteration)
        started = time.perf_counter()
        np.copyto(copied, gradient)
        spent["copy"] = time.perf_counter() - started
        answered += result
        if iteration >= case.warmups:
            for stage, value in spent.items():
                seconds[stage].append(value)
    given = gradient.astype(np.float64) * (case.warmups + case.iterations)
    error = float(np.abs(answered + left() - given).max())
    tolerance = float(np.abs(given).max()) * (2**-11 if spelling == "fp16" else 1e-5)
    facts = {stage: repr(statistics.median(values)) for stage, values in seconds.items()}
    return msgspec.structs.replace(
        blank_record(case, CONTENDER, "measured"),
        seconds=[sum(values) for values in zip(*(seconds[stage] for stage in STAGES), strict=True)],
        oracle=OracleCheck(max_error=error, tolerance=tolerance, checked=1, passed=error <= tolerance),
        facts=facts | {"fewer": repr(fewer)},
    )


Run = Callable[[int], dict[str, float]]


def _coded(
    spelling: str, gradient: Array, result: Array, parts: Sequence[slice]
) -> tuple[Run, Callable[[], Array], float]:
    """An iteration of all partitions, what both ends keep, and how many times fewer bytes than float32 go each way."""
    spec = with_codec(TensorSpec(name=NAME, shape=(gradient.size,), dtype="float32", op=Op.SUM), spelling)
    entry = TensorEntry(spec=spec, number=0, cut_nbytes=DEFAULT_PARTITION_BYTES, owners=(0,) * len(parts))
    ends = Ends(TensorCoding(entry))

    def run(iteration: int) -> dict[str, float]:
        spent = dict.fromkeys(STAGES, 0.0)
        ends.nbytes = 0
        for part, place in enumerate(parts):
            marks = [time.perf_counter()]
            dtype, flags, payload = ends.coding.push(part, _bytes(gradient[place]), iteration)
            marks.append(time.perf_counter())
            pushed = np.frombuffer(payload, np.uint8)
            if flags & ENCODED:
                coding = bytes(pushed[: CODING.size])
                form = Push(0, 0, pushed.size, dtype, Op.SUM, coding=coding)
                mine = ends.sums.get(part) or ends.sums.setdefault(part, EncodedSum(form))
                mine.add(pushed, 1.0)
                marks.append(time.perf_counter())
                answer = mine.answer()
            else:
                total = ends.totals.setdefault(part, np.zeros(pushed.size // 4, np.float32))
                total.fill(0)
                kernels.accumulate(total, pushed.view(np.float32))
                marks.append(time.perf_counter())
                answer = _bytes(kernels.finish(total, Op.SUM, 1, total.dtype))
            marks.append(time.perf_counter())
            target = _bytes(result[place])
            ends.coding.place(part, target)[:] = answer
            ends.coding.decode(part, target, iteration)
            marks.append(time.perf_counter())
            ends.nbytes += HEADER_NBYTES + len(payload)
            for stage, begun, ended in zip(STAGES, marks, marks[1:], strict=False):
                spent[stage] += ended - begun
        return spent

    def left() -> Array:
        kept = ends.coding.left.astype(np.float64)
        for part, mine in ends.sums.items():
            kept[parts[part]] += mine.left
        return kept

    run(0)  # buffers, and the number of bytes
    ends.coding.left.fill(0)
    for mine in ends.sums.values():
        mine.left.fill(0)
    return run, left, gradient.nbytes / ends.nbytes


def _cast(gradient: Array, result: Array, parts: Sequence[slice]) -> tuple[Run, Callable[[], Array], float]:
    """The same for the cast to 16 bits, which keeps nothing."""
    totals = [np.zeros(gradient[place].size, np.float32) for place in parts]

    def run(iteration: int) -> dict[str, float]:
        spent = dict.fromkeys(STAGES, 0.0)
        for total, place in zip(totals, parts, strict=True):
            marks = [time.perf_counter()]
            half = gradient[place].astype(_FP16)
            marks.append(time.perf_counter())
            total.fill(0)
            kernels.accumulate(total, half)
            marks.append(time.perf_counter())
            answer = kernels.finish(total, Op.SUM, 1, _FP16)
            marks.append(time.perf_counter())
            np.copyto(result[place], answer)
            marks.append(time.perf_counter())
            for stage, begun, ended in zip(STAGES, marks, marks[1:], strict=False):
                spent[stage] += ended - begun
        return spent

    nbytes = gradient.size * _FP16.itemsize + len(parts) * HEADER_NBYTES
    return run, lambda: np.zeros(1), gradient.nbytes / nbytes


def _bytes(array: Array) -> memoryview:
    return array.view(np.uint8).data


def rows(records: Sequence[Record]) -> list[Row]:
    """Every stage of every codec, and the copy that bounds them."""
    found = [one for one in records if not one.error]
    table = []
    for codec in CODECS:
        mine = [one for one in found if one.case.settings["codec"] == codec]
        for stage in STAGES:
            table.append(
                Row(
                    what=f"{codec}: {stage}",
                    unit="GB/s",
                    values=tuple(one.case.nbytes / float(one.facts[stage]) / 1e9 for one in mine),
                    bound=NIC_BYTES_PER_S / 1e9,
                    note="of a core; a 10 Gbit/s NIC" if stage == STAGES[0] else "",
                )
            )
        table.append(
            Row(
                what=f"{codec}: fewer bytes than float32",
                unit="times",
                values=tuple(float(one.facts["fewer"]) for one in mine),
                bound=FEWER.get(codec),
            )
        )
    copies = tuple(one.case.nbytes / float(one.facts["copy"]) / 1e9 for one in found)
    table.append(Row(what="copy of the same tensor", unit="GB/s", values=copies))
    return table
