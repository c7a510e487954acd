"""What there is to run: the experiments by name, and the cases that their files ask for now.

Records of other cases (of earlier knobs, scales or trials) answer for nothing any more; whoever reads records asks here
which ones are current.  Nothing here runs or measures: files are read, and cases follow from them.
"""

from pathlib import Path

from baselines import contenders
from baselines.launch import ROOT
from experiments import catalogue, spec, tune
from experiments.record import Case, case_hash

CASES = ROOT / "experiments" / "cases"


class RunError(RuntimeError):
    """The experiment cannot run here; the text says what to do."""


def experiments() -> dict[str, Path]:
    """All experiments by name."""
    return {path.stem: path for path in sorted(CASES.glob("*.toml"))}


def load(name: str) -> spec.Experiment:
    """An experiment by its name, or from a file of one's own: a path that ends in .toml."""
    known = experiments()
    if name in known:
        return spec.load(known[name])
    path = Path(name)
    if path.suffix != ".toml":
        raise RunError(f"no experiment {name!r}; there are {', '.join(known)}, or name a .toml file of your own")
    if not path.is_file():
        raise RunError(f"{name}: there is no such file")
    experiment = spec.load(path)
    if experiment.name in known and path.resolve() != known[experiment.name].resolve():
        raise RunError(f"{name}: its name {experiment.name!r} is an experiment of this suite; give it another name")
    return experiment


def of_tier(tier: spec.Tier) -> list[str]:
    """The names of the experiments that this tier runs."""
    return [name for name in experiments() if tier in load(name).tier]


def cases_of(experiment: spec.Experiment, tier: spec.Tier) -> list[Case]:
    """All cases of a tier; none if the experiment has no such tier."""
    if tier not in experiment.tier:
        return []
    return spec.expand(experiment, tier, uses_k=contenders.USES_K, model_size=catalogue.model_size, tuned=tune.load())


def current_hashes(experiment: spec.Experiment) -> set[str]:
    """The hashes of the cases that the experiment asks for now, in any tier."""
    return {case_hash(case) for tier in experiment.tier for case in cases_of(experiment, tier)}
