"""`python -m experiments bench`: the benchmarks with a bound, each a table and a record per launch.

python -m experiments bench all        loopback, small, knee, footprint
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from baselines.contenders import ROOT, Contender
from experiments import bounds, here, loopback, record, small_tensors
from experiments.record import Case, Record

RAW = ROOT / "results" / "raw"


def run_here(cases: Sequence[Case], contender: Callable[[str], Contender], raw: Path) -> list[Record]:
    """One launch after the other on this machine, each recorded as soon as it ends."""
    records = []
    for number, case in enumerate(cases, start=1):
        started = time.monotonic()
        logs = raw / "logs" / f"{record.case_hash(case)[:12]}-{time.time_ns()}"
        result = here.run(case, contender(case.contender), logs=logs)
        record.append(raw / f"{case.experiment}.jsonl", result)
        records.append(result)
        outcome = result.error or "  ".join(f"{value:.3f}" for value in result.seconds) + " s"
        print(f"[{number}/{len(cases)}] {case.title}: {outcome} ({time.monotonic() - started:.0f} s)", file=sys.stderr)
    return records


def main(names: Sequence[str], raw: Path = RAW) -> int:
    for name in names:
        module = {"loopback": loopback, "small": small_tensors}[name]
        records = run_here(module.cases(), module.contender, raw)
        print(bounds.table(module.rows(records)))
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
