"""What a case takes without being run: by simulation, or by the closed forms.

A case that names a `machine` is one of the paper's cluster, with the constants of `systems.toml`; its full-size
workloads go through `experiments.scale`.  A case that names none is one of the emulated cluster (`experiments.twins`),
with the settings that it has there and no fitted constant.
Pure except for the files of workloads, machines and constants; the same for the same files.
"""

import math
from dataclasses import dataclass, field
from functools import cache

from byteps.flowsim import Outcome
from byteps.predict import Job, transfer
from byteps.theory import TCP_PAYLOAD_FRACTION
from experiments import analysis, scale, spec, systems, twins, workloads
from experiments.record import Case
from experiments.scale import Site
from experiments.systems import Systems


@dataclass(frozen=True, kw_only=True)
class Result:
    """How long it takes, and what there is to say about it."""

    seconds: float
    facts: dict[str, str] = field(default_factory=dict)


@cache
def _systems() -> Systems:
    return systems.load()


def simulated(case: Case) -> Result:
    """With the constants of `systems.toml`."""
    on_paper = "machine" in case.settings
    outcome = of_the_paper(case, _systems()) if on_paper else twins.simulate(case, _systems().lab.latency_seconds.value)
    sent = {link: nbytes for link, nbytes in outcome.carried.items() if link.endswith(".out")}
    facts = {f"bytes {link}": f"{nbytes:.0f}" for link, nbytes in sent.items()}
    return Result(seconds=outcome.seconds, facts={"bottleneck": outcome.bottleneck, **facts})


def has_closed_form(case: Case) -> bool:
    """Of the contender's algorithm, for one synchronisation; there is none for training."""
    return not spec.is_model(case.workload) and math.isfinite(analysis.bound_seconds(case))


def by_theory(case: Case) -> Result:
    """The time of a case that has a closed form, if nothing but NICs costs time."""
    return Result(seconds=analysis.bound_seconds(case))


def of_the_paper(case: Case, constants: Systems) -> Outcome:
    """A case of the paper's cluster."""
    site = Site(
        machine=case.settings["machine"],
        n=case.n,
        k=case.k,
        nic_bytes_per_s=case.nic_bytes_per_s * TCP_PAYLOAD_FRACTION,
    )
    framework = scale.framework_of(case.workload.partition("@")[0])
    job = _job(case, framework)
    match case.contender, case.settings.get("strategy", "plain"):
        case "byteps", "plain":
            return scale.byteps(job, site, case.settings.get("local", "rule"), constants)
        case "horovod", "plain":
            return scale.all_reduce(job, site, constants)
        case "horovod", "scheduled":
            return scale.scheduled_all_reduce(job, site, constants)
        case "mxnet-sync" | "tensorflow-ps" as server, strategy:
            framework = "MXNet" if server == "mxnet-sync" else "TensorFlow"
            if strategy == "plain":
                return scale.parameter_server(job, site, framework, constants)
            if strategy == "scheduled":
                return scale.scheduled_parameter_server(job, site, framework, constants)
    raise ValueError(
        f"{case.title}: simulated are byteps, horovod, mxnet-sync and tensorflow-ps, the last three also with "
        "strategy = scheduled"
    )


def _job(case: Case, framework: str) -> Job:
    if not spec.is_model(case.workload):
        return transfer(case.nbytes, parts=int(case.workload.partition(":")[2] or 1))
    model, timing = workloads.named(case.workload)
    return scale.training(workloads.with_times(model, timing), overlap_forward=scale.OVERLAPS_FORWARD[framework])
