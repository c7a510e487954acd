"""What there is to run: the experiments by name, and the cases that their files ask for now.

`cases/NAME.toml` runs here, on an emulated cluster or on this machine; `cases/NAME.sim.toml` is simulated.  A name may
have both: what is simulated of Figure 12 is the paper's cluster, and the emulated one.

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


def parse_tier(text: str) -> spec.Tier:
    """RunError for a word that is none."""
    for tier in spec.TIERS:
        if text == tier:
            return tier
    raise RunError(f"tier {text!r}: use one of {', '.join(spec.TIERS)}")


def experiments() -> dict[str, Path]:
    """All experiments that run here, by name."""
    return {path.stem: path for path in sorted(CASES.glob("*.toml")) if not path.stem.endswith(".sim")}


def simulations() -> dict[str, Path]:
    """All that are simulated, by name."""
    return {path.stem.removesuffix(".sim"): path for path in sorted(CASES.glob("*.sim.toml"))}


def load(name: str) -> spec.Experiment:
    """An experiment that runs here by its name, or one from a file of one's own: a path that ends in .toml."""
    if name in simulations() and name not in experiments():
        raise RunError(f"{name} does not run here, it is simulated: use --on sim")
    return _load(name, experiments())


def load_simulation(name: str) -> spec.Experiment:
    """The same for one that is simulated."""
    if name in experiments() and name not in simulations():
        raise RunError(f"{name} is not simulated; simulated are {', '.join(simulations())}")
    return _load(name, simulations())


def _load(name: str, known: dict[str, Path]) -> spec.Experiment:
    if name in known:
        return spec.load(known[name])
    path = Path(name)
    if path.suffix != ".toml":
        there_are = ", ".join(sorted({*experiments(), *simulations()}))
        raise RunError(f"no experiment {name!r}; there are {there_are}, or name a .toml file of your own")
    if not path.is_file():
        raise RunError(f"{name}: there is no such file")
    experiment = spec.load(path)
    suite = {**experiments(), **simulations(), **known}
    if experiment.name in suite and path.resolve() != suite[experiment.name].resolve():
        raise RunError(f"{name}: its name {experiment.name!r} is an experiment of this suite; give it another name")
    return experiment


def of_tier(tier: spec.Tier) -> list[str]:
    """The names of the experiments that this tier runs."""
    return [name for name in experiments() if tier in load(name).tier]


def simulations_of_tier(tier: spec.Tier) -> list[str]:
    return [name for name in simulations() if tier in load_simulation(name).tier]


def cases_of(experiment: spec.Experiment, tier: spec.Tier) -> list[Case]:
    """All cases of a tier; none if the experiment has no such tier."""
    if tier not in experiment.tier:
        return []
    size = _full_size if experiment.provenance == "simulated" else catalogue.model_size
    return spec.expand(experiment, tier, uses_k=contenders.USES_K, model_size=size, tuned=tune.load())


def _full_size(workload: str, _scale: float, nic_bytes_per_s: float, _real: float) -> tuple[int, float]:
    """A simulation divides and dilates nothing."""
    return catalogue.model_size(workload, 1.0, nic_bytes_per_s)[0], 1.0


def current_hashes(experiment: spec.Experiment) -> set[str]:
    """The hashes of the cases that the experiment asks for now, in any tier."""
    return {case_hash(case) for tier in experiment.tier for case in cases_of(experiment, tier)}
