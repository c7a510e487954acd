"""Makes a full run the committed reference run: `results/reference/`.

One record per case, the newest; its figures and its report beside it.  Failed launches stay, so that the report is the
same when it is written again from there, but the text of their errors loses what names this machine.  What only a sweep
runs keeps its records where there are no new ones, and so does what is simulated.  Of a simulated case the oldest
record stays too that says what the newest does: it tells since when its prediction stands.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from baselines.launch import ROOT
from experiments import agenda, bench, figures, record, report
from experiments.analysis import SIMULATED, load
from experiments.document import markdown
from experiments.predictions import standing
from experiments.record import Record


class NoRunError(ValueError):
    """There is no full run to keep."""


def keep(results: Path) -> list[Path]:
    """Replace the reference run by the raw one; returns the files written."""
    folder = results / "reference"
    written = _keep_simulations(results)
    for name in report.experiments():
        loaded = load(results, name)
        if loaded.source != "raw" and "reproduce" not in agenda.load(name).tier:
            continue
        if loaded.source != "raw":
            raise NoRunError(f"{name} has no records in {results / 'raw'}: run it first")
        written.append(_write(folder / f"{name}.jsonl", loaded.records))
        written += figures.draw(load(results, name, sources=("reference",)), folder / "figures")
    for name in report.simulated_only():
        written += figures.draw(load(results, name, sources=("reference",)), folder / "figures")
    written += [path for draw in figures.COMPUTED for path in draw(folder / "figures")]
    written += bench.keep(results)
    document, _ = report.compose(results, sources=("reference",), figures=folder / "figures")
    (folder / "REPORT.md").write_text(markdown(document), encoding="utf-8")
    return [*written, folder / "REPORT.md"]


def _keep_simulations(results: Path) -> list[Path]:
    written = []
    for name in agenda.simulations():
        if found := load(results, name, sources=("raw",)).simulated:
            path = results / "reference" / SIMULATED.format(name)
            kept = [one for pair in standing(found) for one in (pair[:1] if pair[0] is pair[1] else pair)]
            written.append(_write(path, kept))
    return written


def _write(path: Path, records: Iterable[Record]) -> Path:
    path.unlink(missing_ok=True)
    for one in records:
        record.append(path, msgspec.structs.replace(one, error=one.error.replace(str(ROOT), ".")))
    return path
