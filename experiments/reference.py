"""Makes a full run the committed reference run: `results/reference/`.

One record per case, the newest; its figures and its report beside it.  Failed launches stay, so that the report is the
same when it is written again from there, but the text of their errors loses what names this machine.  What only a sweep
runs keeps its records where there are no new ones.
"""

from pathlib import Path

import msgspec

from baselines.launch import ROOT
from experiments import agenda, bench, figures, record, report
from experiments.analysis import load


class NoRunError(ValueError):
    """There is no full run to keep."""


def keep(results: Path) -> list[Path]:
    """Replace the reference run by the raw one; returns the files written."""
    folder = results / "reference"
    written: list[Path] = []
    for name in report.experiments():
        loaded = load(results, name)
        if loaded.source != "raw" and "reproduce" not in agenda.load(name).tier:
            continue
        if loaded.source != "raw":
            raise NoRunError(f"{name} has no records in {results / 'raw'}: run it first")
        lines = [msgspec.structs.replace(one, error=one.error.replace(str(ROOT), ".")) for one in loaded.records]
        path = folder / f"{name}.jsonl"
        path.unlink(missing_ok=True)
        for one in lines:
            record.append(path, one)
        written.append(path)
        written += figures.draw(load(results, name, sources=("reference",)), folder / "figures")
    written += bench.keep(results)
    text, _ = report.compose(results, sources=("reference",))
    (folder / "REPORT.md").write_text(text, encoding="utf-8")
    return [*written, folder / "REPORT.md"]
