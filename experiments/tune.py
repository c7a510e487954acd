"""Tuning: every contender gets the same number of trials, on workloads that no figure reports; the best knobs win.

The trials are the experiment `tune` (`cases/tune.toml`), run and recorded as any other.  The best combination of a
contender's knobs has the least geometric mean, over the workloads, of the iteration times; a trial that failed on one
of them is out.  The result, `experiments/tuned.toml`, is data of the other experiments, and part of their cases.
"""

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from experiments.record import Record
from experiments.spec import tuning_name
from experiments.statistics import launch_seconds

NAME = "tune"
TUNED = Path(__file__).parent / "tuned.toml"
HEADER = """\
# The best knobs of each contender, found by `python -m experiments tune` (see experiments/tune.py); sizes are those of
# full-size tensors.
"""


@dataclass(frozen=True, kw_only=True)
class Winner:
    """The best trial of a contender."""

    name: str  # as spec.tuning_name has it
    knobs: Mapping[str, str]
    seconds: float  # geometric mean over the workloads
    worst_seconds: float  # of the trials that ended
    trials: int
    failed: int


def load(path: Path = TUNED) -> dict[str, dict[str, str]]:
    """The best knobs by contender; none before the first tuning."""
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def winners(records: Iterable[Record]) -> list[Winner]:
    """The best trial of every contender, from the records of the trials."""
    records = list(records)
    workloads = {one.case.workload for one in records}
    trials: dict[str, dict[tuple[tuple[str, str], ...], dict[str, list[float]]]] = {}
    for one in records:
        name = tuning_name(one.case.contender, one.case.settings)
        trial = trials.setdefault(name, {}).setdefault(tuple(sorted(one.case.settings.items())), {})
        if one.verified:
            trial.setdefault(one.case.workload, []).append(launch_seconds(one.seconds))
    found = []
    for name, by_settings in sorted(trials.items()):
        means = {
            settings: _geometric_mean([_geometric_mean(times) for times in by_workload.values()])
            for settings, by_workload in by_settings.items()
            if by_workload.keys() == workloads
        }
        if means:
            best = min(means, key=lambda settings: means[settings])
            found.append(
                Winner(
                    name=name,
                    knobs={key: value for key, value in best if key != "strategy"},
                    seconds=means[best],
                    worst_seconds=max(means.values()),
                    trials=len(by_settings),
                    failed=len(by_settings) - len(means),
                )
            )
    return found


def _geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def text(found: Iterable[Winner], earlier: Mapping[str, Mapping[str, str]] = MappingProxyType({})) -> str:
    """The file that `load` reads; `earlier` are knobs of contenders of which no trial succeeded this time."""
    parts = [HEADER]
    for one in found:
        failed = f", {one.failed} of them failed" if one.failed else ""
        parts.append(
            f"\n# {one.trials} trials{failed}: {one.seconds:.3f} s, the worst {one.worst_seconds:.3f} s\n"
            f'["{one.name}"]\n' + "".join(f'{key} = "{value}"\n' for key, value in sorted(one.knobs.items()))
        )
    for name, knobs in sorted(earlier.items()):
        lines = "".join(f'{key} = "{value}"\n' for key, value in sorted(knobs.items()))
        parts.append(f'\n# from earlier trials\n["{name}"]\n{lines}')
    return "".join(parts)
