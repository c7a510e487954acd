"""Simulations that never ran: records that say what the paper says, times a factor."""

from synthetic import made

from byteps import theory
from experiments import analysis, catalogue, errors
from experiments.errors import Number
from experiments.record import Record
from experiments.spec import is_model

NIC = 90e9 / 8 / theory.TCP_PAYLOAD_FRACTION  # carries 90 Gbit/s
NBYTES = 2**26
ALL_REDUCE_SECONDS = 2.0  # where only the ratio to it counts
DAY = "2026-03-01T00:00:00Z"


def simulated(contender: str, seconds: float, workload: str = "tensor", **changes: object) -> Record:
    """One simulated case; `record_` fields of the record, others of the case."""
    nbytes = catalogue.model_size(workload, 1.0, NIC)[0] if is_model(workload) else NBYTES
    fields = {"nic_bytes_per_s": NIC, "nbytes": nbytes, "workload": workload, "iterations": 1, "warmups": 0}
    own = {"record_provenance": "simulated", "record_oracle": None, "record_started_at": DAY}
    return made(contender, seconds, **{**fields, **own, **changes})


def answer(number: Number, factor: float = 1.0, **changes: object) -> list[Record]:
    """The record that answers to a number with `factor` times what the paper says, and the all-reduce it is over."""
    wanted = number.wanted
    model = f"{wanted.model}@fig4" if wanted.experiment == "fig4" else wanted.model
    settings = {"machine": wanted.machine}
    settings |= {"strategy": wanted.strategy} if wanted.strategy != "plain" else {}
    case = {"experiment": wanted.experiment, "n": wanted.n, "workload": model or "tensor", **changes}
    value = number.value * factor
    if number.over_all_reduce:
        own = simulated(
            "byteps", ALL_REDUCE_SECONDS / value, k=wanted.k, settings={**settings, "local": number.ways[0]}, **case
        )
        return [own, simulated("horovod", ALL_REDUCE_SECONDS, settings=settings, **case)]
    if wanted.contender == "byteps":
        settings |= {"local": number.ways[0]}
    guess = simulated(wanted.contender, 1.0, k=wanted.k, settings=settings, **case)
    at_one_second = number.linear * analysis.linear_seconds(guess.case) if number.linear else NBYTES * 8e-9
    return [simulated(wanted.contender, at_one_second / value, k=wanted.k, settings=settings, **case)]


def everything(factor: float = 1.0, **changes: object) -> list[Record]:
    """Of every number of the paper."""
    return [one for number in errors.published() for one in answer(number, factor, **changes)]


def of_experiment(name: str, factor: float = 1.0, **changes: object) -> tuple[Record, ...]:
    return tuple(
        one
        for number in errors.published()
        if number.wanted.experiment == name
        for one in answer(number, factor, **changes)
    )


def in_the_lab(run: list[Record], factor: float = 1.0, started_at: str = DAY) -> tuple[Record, ...]:
    """Predictions of emulated launches: `factor` times as long as the first block took."""
    return tuple(
        made(
            one.case.contender,
            one.seconds[0] * factor,
            record_provenance="simulated",
            record_oracle=None,
            record_started_at=started_at,
            **{key: getattr(one.case, key) for key in ("experiment", "n", "k", "nbytes", "workload", "settings")},
        )
        for one in run
        if one.case.block == 0
    )
