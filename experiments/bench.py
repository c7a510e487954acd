"""`python -m experiments bench`: the benchmarks that have a bound, each a table and a record per launch.

    loopback     one worker and one server against a bare echo pair and MXNet
    small        10,000 tensors of 4 bytes against gloo
    training     a model of 200 tensors against DDP, over loopback and on emulated NICs
    knee         the highest NIC rate that the software keeps up with (needs root, as every emulated cluster)
    transports   the same tensor over sockets, shared memory, ZeroMQ, gRPC and UCX, from process to process
    codecs       both ends of a compressed tensor, per core, against a 10 Gbit/s NIC
    convergence  loss of BSP, SSP and asynchronous training, with and without a straggler, on emulated NICs
    compression  bytes, time and loss of every codec at three NIC rates, emulated
    optimiser    updating the weights where gradients are summed, against the sum alone
    local        workers of one machine, summed in shared memory, against copies; and on emulated NICs, which see one
    footprint    import time, and the memory of a server
    device       sums on the GPUs of this machine against its PCIe (needs CUDA)

Unlike `experiments run` it measures anew every time, unless it is told to resume; the newest record of a case counts.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from baselines import contenders
from baselines.launch import ROOT, Contender
from experiments import (
    bounds,
    codecs,
    compression,
    convergence,
    device,
    footprint,
    here,
    knee,
    local,
    loopback,
    optimiser,
    provenance,
    record,
    small_tensors,
    training,
    transports,
)
from experiments.bounds import Row
from experiments.document import Block, Heading, Paragraph
from experiments.record import Case, Record
from scripts.netns import LabError

RAW = ROOT / "results" / "raw"
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A line of the table: what it runs, and what its records say."""

    title: str
    experiment: str  # of its records
    cases: Callable[[], list[Case]]
    smoke: Callable[[], list[Case]]  # the smallest that exercises the same code
    contender: Callable[[str], Contender]
    execute: Callable[[Sequence[Case], Path, Tell], list[Record]]
    rows: Callable[[Sequence[Record]], list[Row]]
    figure: str = ""  # for the report
    absent: str = ""  # what the report says as long as there are no records


def _on_this_machine(contender: Callable[[str], Contender]) -> Callable[[Sequence[Case], Path, Tell], list[Record]]:
    def execute(cases: Sequence[Case], raw: Path, tell: Tell) -> list[Record]:
        """One launch after the other, each recorded as soon as it ends."""
        records = []
        for number, case in enumerate(cases, start=1):
            started = time.monotonic()
            logs = raw / "logs" / f"{record.case_hash(case)[:12]}-{time.time_ns()}"
            one = here.run(case, contender(case.contender), logs=logs)
            record.append(raw / f"{case.experiment}.jsonl", one)
            records.append(one)
            said = one.error or "  ".join(f"{value:.3f}" for value in one.seconds) + " s"
            tell(f"[{number}/{len(cases)}] {case.title}: {said} ({time.monotonic() - started:.0f} s)")
        return records

    return execute


BENCHMARKS: dict[str, Benchmark] = {
    "loopback": Benchmark(
        title="1 worker, 1 server, 256 MiB over unshaped loopback, against a bare echo pair and MXNet",
        experiment=loopback.NAME,
        cases=loopback.cases,
        smoke=lambda: loopback.cases(blocks=1, iterations=1, nbytes=32 << 20, tier="smoke"),
        contender=loopback.contender,
        execute=_on_this_machine(loopback.contender),
        rows=loopback.rows,
    ),
    "small": Benchmark(
        title="10,000 tensors of 4 bytes, 4 workers, 2 servers, against gloo one by one",
        experiment=small_tensors.NAME,
        cases=small_tensors.cases,
        smoke=lambda: small_tensors.cases(blocks=1, tensors=500, tier="smoke"),
        contender=small_tensors.contender,
        execute=_on_this_machine(small_tensors.contender),
        rows=small_tensors.rows,
    ),
    "training": Benchmark(
        title="training a model of 200 tensors and 25 million parameters, 4 workers, against DDP",
        experiment=training.NAME,
        cases=training.cases,
        smoke=lambda: training.cases(blocks=1, lab_blocks=0, iterations=1, steps=2, layers=5, tier="smoke"),
        contender=training.contender,
        execute=training.execute,
        rows=training.rows,
    ),
    "knee": Benchmark(
        title="the fastest NICs that BytePS keeps up with, n = k = 2, emulated on this machine",
        experiment=knee.NAME,
        cases=knee.cases,
        smoke=lambda: knee.cases(rates=["0.2Gbit"], iterations=1, tier="smoke"),
        contender=contenders.get,
        execute=knee.execute,
        rows=knee.rows,
    ),
    "transports": Benchmark(
        title="256 MiB from one process to another on this machine, over each transport",
        experiment=transports.NAME,
        cases=transports.cases,
        smoke=lambda: transports.cases(blocks=1, iterations=1, nbytes=32 << 20, tier="smoke"),
        contender=transports.contender,
        execute=_on_this_machine(transports.contender),
        rows=transports.rows,
        figure="transports_cost",
    ),
    "codecs": Benchmark(
        title="codecs, one core, against a 10 Gbit/s NIC",
        experiment=codecs.NAME,
        cases=codecs.cases,
        smoke=lambda: codecs.cases(blocks=1, iterations=1, nbytes=8 << 20, tier="smoke"),
        contender=codecs.contender,
        execute=codecs.execute,
        rows=codecs.rows,
    ),
    "convergence": Benchmark(
        title="BSP, SSP and asynchronous training with and without a straggler, 4 workers, 100 Mbit/s NICs",
        experiment=convergence.NAME,
        cases=convergence.cases,
        smoke=lambda: convergence.cases(seconds=2, tasks=["digits"], modes=["async"], tier="smoke"),
        contender=convergence.contender,
        execute=convergence.execute,
        rows=convergence.rows,
        figure="convergence_loss",
    ),
    "compression": Benchmark(
        title="a small language model with every codec, 4 workers, NICs of 25, 100 and 500 Mbit/s",
        experiment=compression.NAME,
        cases=compression.cases,
        smoke=lambda: compression.cases(steps=10, rates=["100Mbit"], codecs=["none", "onebit"], tier="smoke"),
        contender=compression.contender,
        execute=compression.execute,
        rows=compression.rows,
        figure="compression_cost",
    ),
    "optimiser": Benchmark(
        title="optimisers on the CPU that sums, 64 MiB of float32, against the sum alone (Figure 9a)",
        experiment=optimiser.NAME,
        cases=optimiser.cases,
        smoke=lambda: optimiser.cases(blocks=1, iterations=1, nbytes=8 << 20, tier="smoke"),
        contender=optimiser.contender,
        execute=optimiser.execute,
        rows=optimiser.rows,
        figure="fig9a_optimisers",
    ),
    "local": Benchmark(
        title="the workers of one machine in shared memory, against copies, and on 100 Mbit/s NICs",
        experiment=local.NAME,
        cases=local.cases,
        smoke=lambda: local.cases(blocks=1, lab_blocks=0, iterations=1, nbytes=8 << 20, counts=(2,), tier="smoke"),
        contender=local.contender,
        execute=local.execute,
        rows=local.rows,
        figure="local_reduction",
    ),
    "footprint": Benchmark(
        title="import time and memory",
        experiment=footprint.NAME,
        cases=footprint.cases,
        smoke=lambda: footprint.cases(blocks=1, tier="smoke"),
        contender=contenders.get,
        execute=footprint.execute,
        rows=footprint.rows,
    ),
    "device": Benchmark(
        title="sums on the GPUs of this machine, 256 MiB of gradients, against copies over its PCIe",
        experiment=device.NAME,
        cases=device.cases,
        smoke=lambda: device.cases(blocks=1, iterations=1, nbytes=1 << 20, tier="smoke"),
        contender=device.contender,
        execute=device.execute,
        rows=device.rows,
        absent=device.ABSENT,
    ),
}


def report_blocks(results: Path, sources: Sequence[str], picture: Callable[[str], list[Block]]) -> list[Block]:
    """The report's section: every benchmark from the first of `sources` that has records of it."""
    blocks: list[Block] = []
    absent: list[Block] = []
    for benchmark in BENCHMARKS.values():
        found = next(filter(None, (_kept(results / source, benchmark) for source in sources)), [])
        if found:
            title = f"{benchmark.title[0].upper()}{benchmark.title[1:]} ({found[0].provenance}):"
            blocks += [Paragraph(text=title), bounds.block(benchmark.rows(found))]
            blocks += picture(benchmark.figure) if benchmark.figure else []
        elif benchmark.absent:
            absent.append(Paragraph(text=benchmark.absent))
    return [Heading(title="Benchmarks with a bound"), *blocks, *absent] if blocks else []


def keep(results: Path) -> list[Path]:
    """Copy the newest record of every case from `raw` to `reference`; what was not run keeps what is there."""
    written = []
    for benchmark in BENCHMARKS.values():
        path = results / "reference" / f"{benchmark.experiment}.jsonl"
        if found := _kept(results / "raw", benchmark):
            path.unlink(missing_ok=True)
            for one in found:
                record.append(path, one)
            written.append(path)
    return written


def _kept(folder: Path, benchmark: Benchmark) -> list[Record]:
    found, _ = record.read(folder / f"{benchmark.experiment}.jsonl")
    latest = [one for one in record.latest(found) if not one.error]
    for cases in (benchmark.cases(), benchmark.smoke()):
        known = {record.case_hash(case) for case in cases}
        if kept := [one for one in latest if one.case_hash in known]:
            return kept
    return []


def _is_done(benchmark: Benchmark, case: Case, kept: Sequence[Record]) -> bool:
    contender = benchmark.contender(case.contender)
    version, code = contender.version(), provenance.code_of(contender)
    return any(record.done(one, case, contender_version=version, code=code) for one in kept)


def _possible(benchmark: Benchmark, cases: Sequence[Case]) -> list[Case]:
    """Without those of contenders that are not installed; says which, and how to install them."""
    missing = {name: benchmark.contender(name).missing() for name in {case.contender for case in cases}}
    for name, reason in sorted(missing.items()):
        if reason:
            print(f"without {name}: {reason}", flush=True)
    return [case for case in cases if not missing[case.contender]]


def main(names: Sequence[str], raw: Path = RAW, *, smoke: bool = False, resume: bool = False) -> int:
    """Run benchmarks and print their tables; 1 if a launch failed (a missed bound is a result), 2 for unknown names.

    With `resume` a benchmark is skipped whose records are all there, of the code as it is now.
    """
    wanted = list(BENCHMARKS) if list(names) == ["all"] else list(names)
    if unknown := [name for name in wanted if name not in BENCHMARKS]:
        print(f"experiments: no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}, all", file=sys.stderr)
        return 2
    failed = 0
    for name in wanted:
        benchmark = BENCHMARKS[name]
        print(f"\n{name}: {benchmark.title}", flush=True)
        cases = _possible(benchmark, benchmark.smoke() if smoke else benchmark.cases())
        kept, _ = record.read(raw / f"{benchmark.experiment}.jsonl")
        if resume and all(_is_done(benchmark, case, kept) for case in cases):
            print("its records are there", flush=True)
            continue
        try:
            records = benchmark.execute(cases, raw, lambda text: print(text, file=sys.stderr, flush=True))
        except LabError as error:
            print(f"not run: {error}", flush=True)
            continue
        print(bounds.table(benchmark.rows(records)), flush=True)
        failed += sum(bool(one.error) for one in records)
    return 1 if failed else 0
