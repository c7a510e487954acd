"""How far the simulation lies from the paper.

Every number of the paper's Figures 4 and 12 to 16 is paired with the simulated case that answers to it.  With t an
iteration's time,

    Figure 12         goodput     M / t
    Figures 4, 15, 16 throughput  linear scaling * computation / t
    Figures 13, 14    speed-up    t of all-reduce on the same machines / t

    error = simulated / paper - 1

A number is *fitted* if the systems' constants were fitted on it: Figure 12, and 16 GPUs in Figures 15 and 16; not the
parameter server's without servers (k = 0), of which the paper does not say what it was.  It is of *one machine* if no
network takes part: 8 GPUs.  All others are *held out*: predicted.
Pure: no I/O except reading the paper's numbers.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

from experiments import analysis, paper, record, spec
from experiments.record import Case, Record
from experiments.statistics import launch_seconds

Use = Literal["fitted", "held out", "one machine"]
USES: tuple[Use, ...] = ("fitted", "held out", "one machine")
System = Literal["BytePS", "All-reduce", "Parameter server"]
SYSTEMS: Mapping[str, System] = {
    "byteps": "BytePS",
    "horovod": "All-reduce",
    "mxnet-sync": "Parameter server",
    "tensorflow-ps": "Parameter server",
}
FITTED_GPUS = 16
THE_PAPERS_WAY = ("rule", "planned", "")  # to sum inside a machine: the first that was simulated
BIG_ERROR = 0.15  # larger ones are listed one by one

OF_FIGURE_15 = ("resnet50", "vgg16", "ugatit")
PS_OF_FRAMEWORK = {"MXNet": "mxnet-sync", "TensorFlow": "tensorflow-ps"}


class Wanted(NamedTuple):
    """The simulated case that answers to a number."""

    experiment: str
    machine: str
    contender: str
    n: int
    k: int = 0
    model: str = ""
    strategy: str = "plain"


@dataclass(frozen=True, kw_only=True)
class Number:
    """A number of the paper."""

    figure: str
    line: str
    where: str
    value: float
    use: Use
    wanted: Wanted
    ways: tuple[str, ...] = THE_PAPERS_WAY  # to sum inside a machine, of BytePS
    linear: float = 0.0  # throughput of linear scaling; 0: no throughput
    over_all_reduce: bool = False  # a speed-up

    @property
    def system(self) -> System:
        return SYSTEMS[self.wanted.contender]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A number of the paper and what the simulation says; None without a usable record."""

    number: Number
    simulated: float | None

    @property
    def error(self) -> float | None:
        return None if self.simulated is None else self.simulated / self.number.value - 1


def published() -> list[Number]:
    """Every number of the paper that the simulation answers to."""
    return [*_fig4(), *_fig12(), *_fig13(), *_fig14(), *_fig15_16()]


def _fig4() -> Iterator[Number]:
    data = paper.fig4()
    for contender, strategy, line, values in (
        ("byteps", "plain", "BytePS", data.byteps),
        ("horovod", "plain", "All-reduce", data.allreduce),
        ("horovod", "scheduled", "All-reduce + ByteScheduler", data.allreduce_bytescheduler),
        ("mxnet-sync", "plain", "MXNet PS", data.ps),
        ("mxnet-sync", "scheduled", "MXNet PS + ByteScheduler", data.ps_bytescheduler),
    ):
        for k, where, value in _against_k(contender, data.k, values):
            wanted = Wanted("fig4", "nvlink", contender, data.n, k, "vgg16", strategy)
            yield Number(
                figure="Fig 4",
                line=line,
                where=where,
                value=value,
                use="held out",
                wanted=wanted,
                linear=data.linear,
            )


def _fig12() -> Iterator[Number]:
    data = paper.fig12()
    for contender, line, values in (
        ("byteps", "BytePS", data.byteps),
        ("horovod", "All-reduce", data.allreduce),
        ("mxnet-sync", "MXNet PS", data.ps),
    ):
        for k, where, value in _against_k(contender, data.k, values):
            wanted = Wanted("fig12", "one-gpu", contender, data.n, k)
            use: Use = "held out" if (contender, k) == ("mxnet-sync", 0) else "fitted"
            yield Number(figure="Fig 12", line=line, where=where, value=value, use=use, wanted=wanted)


def _against_k(contender: str, ks: Sequence[int], values: Sequence[float]) -> list[tuple[int, str, float]]:
    """(k, its words, value); once where k makes no difference."""
    if contender == "horovod":
        return [(0, "any k", values[0])]
    return [(k, f"k = {k}", value) for k, value in zip(ks, values, strict=True)]


def _fig13() -> Iterator[Number]:
    data = paper.fig13()
    for part, (machine, models) in zip("ab", data.speedup.items(), strict=True):
        for model, values in models.items():
            for k, value in zip(data.k, values, strict=True):
                yield Number(
                    figure=f"Fig 13{part}",
                    line=paper.TITLES[model],
                    where=f"k = {k}",
                    value=value,
                    use="held out",
                    wanted=Wanted("fig13", machine, "byteps", data.n, k, model),
                    over_all_reduce=True,
                )


def _fig14() -> Iterator[Number]:
    data = paper.fig14()
    for part, (machine, models) in zip("ab", data.speedup.items(), strict=True):
        for model, values in models.items():
            for way, value in values.items():
                yield Number(
                    figure=f"Fig 14{part}",
                    line=paper.TITLES[model],
                    where=way,
                    value=value,
                    use="held out",
                    wanted=Wanted("fig14", machine, "byteps", data.n, 0, model),
                    ways=THE_PAPERS_WAY if way == "optimal" else (way,),
                    over_all_reduce=True,
                )


def _fig15_16() -> Iterator[Number]:
    data = paper.fig15_16()
    for model, training in data.model.items():
        for contender, line, with_cpus, values in (
            ("byteps", "BytePS, k = 0", False, training.byteps_k0),
            ("byteps", "BytePS, k = n", True, training.byteps_kn),
            ("horovod", "All-reduce", False, training.allreduce),
            (PS_OF_FRAMEWORK.get(training.framework, ""), f"{training.framework} PS, k = n", True, training.ps),
        ):
            for gpus, n, linear, value in zip(data.gpus, data.machines, training.linear, values, strict=False):
                yield Number(
                    figure="Fig 15" if model in OF_FIGURE_15 else "Fig 16",
                    line=line,
                    where=f"{paper.TITLES[model]}, {gpus} GPUs",
                    value=value,
                    use="one machine" if n == 1 else "fitted" if gpus == FITTED_GPUS else "held out",
                    wanted=Wanted("scale", "nvlink", contender, n, n if with_cpus and n > 1 else 0, model),
                    linear=linear,
                )


@dataclass(frozen=True)
class Simulation:
    """The newest usable simulated record of every case on the paper's machines."""

    found: Mapping[Wanted, Mapping[str, Record]]

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Simulation":
        found: dict[Wanted, dict[str, Record]] = defaultdict(dict)
        for one in record.latest(one for one in records if one.provenance == "simulated"):
            if one.verified:
                found[wanted_of(one.case)][one.case.settings.get("local", "")] = one
        return cls(found=found)

    def get(self, wanted: Wanted, ways: Sequence[str] = THE_PAPERS_WAY) -> Record | None:
        """Opponents know of one way to sum inside a machine, whatever it is called."""
        by_way = self.found.get(wanted, {})
        names = ways if wanted.contender == "byteps" else sorted(by_way)
        return next((by_way[way] for way in names if way in by_way), None)

    def value(self, number: Number) -> float | None:
        """In the number's unit."""
        one = self.get(number.wanted, number.ways)
        if one is None:
            return None
        seconds = launch_seconds(one.seconds)
        if number.linear:
            return number.linear * analysis.linear_seconds(one.case) / seconds
        if not number.over_all_reduce:
            return one.case.nbytes * 8e-9 / seconds
        other = self.get(number.wanted._replace(contender="horovod", k=0))
        return launch_seconds(other.seconds) / seconds if other else None


def wanted_of(case: Case) -> Wanted:
    """What the case answers to."""
    strategy, machine = case.settings.get("strategy", "plain"), case.settings.get("machine", "")
    model = case.workload.partition("@")[0] if spec.is_model(case.workload) else ""
    return Wanted(case.experiment, machine, case.contender, case.n, case.k, model, strategy)


def points(records: Iterable[Record]) -> list[Point]:
    """Every number of the paper with the simulation's."""
    simulation = Simulation.of(records)
    return [Point(number=number, simulated=simulation.value(number)) for number in published()]


def errors(some: Iterable[Point]) -> list[float]:
    return [point.error for point in some if point.error is not None]


def median_error(some: Iterable[Point]) -> float | None:
    """Of the absolute errors; None without any."""
    known = [abs(error) for error in errors(some)]
    return median(known) if known else None


def worst(some: Iterable[Point]) -> Point | None:
    known = [point for point in some if point.error is not None]
    return max(known, key=lambda point: abs(point.error or 0.0), default=None)
