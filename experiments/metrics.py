"""The metrics that claims may name: from the records of the claimed experiments, size and n to one value per block for
every part.

A metric sees records of the right provenance, experiment, n and size; it keeps the verified ones (the largest error
excepted, which must see wrong sums).  BytePS is judged by its main line: its own way, at its best knobs, the partition
size chosen automatically where nothing else is said.
"""

import itertools
from collections.abc import Callable
from functools import partial

from experiments import errors, lines, opponents, predictions
from experiments.analysis import frame
from experiments.opponents import Parts
from experiments.record import Record
from experiments.statistics import paired_ratios
from experiments.traffic import has_plan, traffic_deviation


def _main(records: list[Record], contender: str) -> list[Record]:
    """Verified launches of a contender as it is at its best."""
    name = lines.naming(one.case for one in records)
    return [one for one in records if one.verified and one.case.contender == contender and name(one.case).main]


def _by_block(records: list[Record], column: str) -> dict[int, float]:
    table = frame(records)
    return {int(block): float(value) for block, value in zip(table["block"], table[column], strict=True)}


def _per_k(records: list[Record], column: str) -> dict[int, dict[int, float]]:
    """k -> block -> value."""
    ks = sorted({one.case.k for one in records})
    return {k: _by_block([one for one in records if one.case.k == k], column) for k in ks}


def byteps_fraction_of_optimum(records: list[Record]) -> Parts:
    per_k = _per_k(_main(records, "byteps"), "of_optimum")
    return {f"k={k}": list(values.values()) for k, values in per_k.items()}


def byteps_gap_to_optimum(records: list[Record]) -> Parts:
    return {part: [1 - value for value in values] for part, values in byteps_fraction_of_optimum(records).items()}


def byteps_over_ring(records: list[Record]) -> Parts:
    """How many times faster than the ring of the same block."""
    ring = _by_block(_main(records, "gloo-ring"), "seconds")
    per_k = _per_k(_main(records, "byteps"), "seconds")
    return {f"k={k}": list(paired_ratios(ring, values).values()) for k, values in per_k.items()}


def goodput_step(records: list[Record]) -> Parts:
    """Goodput at one k over that at the k before, within a block."""
    per_k = _per_k(_main(records, "byteps"), "goodput")
    return {
        f"k={low}->{high}": list(paired_ratios(per_k[high], per_k[low]).values())
        for low, high in itertools.pairwise(per_k)
    }


def ring_fraction_of_bound(records: list[Record]) -> Parts:
    return {"all k": list(_by_block(_main(records, "gloo-ring"), "of_ring_bound").values())}


def fraction_of_bound(records: list[Record]) -> Parts:
    """Of every contender: its own algorithm's time over its time, launch by launch."""
    parts: Parts = {}
    table = frame([one for one in records if one.verified])
    for contender, rows in table[table["main"] & table["of_bound"].notna()].groupby("contender"):
        parts[str(contender)] = [float(value) for value in rows["of_bound"]]
    return parts


def ring_bytes_at_cpu_machines(records: list[Record]) -> Parts:
    """Bytes of the busiest CPU machine's NIC per iteration, over M."""
    values = []
    for one in _main(records, "gloo-ring"):
        moved = [max(nic.payload_sent, nic.payload_received) for host, nic in one.nics.items() if host[:3] == "cpu"]
        if moved:
            values.append(max(moved) / one.case.iterations / one.case.nbytes)
    return {"all k": values}


def traffic_as_planned(records: list[Record]) -> Parts:
    parts: Parts = {}
    for one in _main(records, "byteps"):
        if has_plan(one):
            parts.setdefault(f"k={one.case.k}", []).append(traffic_deviation(one))
    return parts


def largest_error(records: list[Record]) -> Parts:
    """Of every launch that had a sum to check, faithful or not."""
    parts: Parts = {}
    for one in records:
        if one.oracle:
            parts.setdefault(one.case.contender, []).append(one.oracle.max_error)
    return parts


def adder_gbit_per_s(records: list[Record]) -> Parts:
    parts: Parts = {}
    table = frame([one for one in records if one.verified and one.case.contender == "cpu-adder"])
    for (dtype, cores), rows in table.groupby(["dtype", "cores"]):
        parts[f"{dtype} {cores} {'core' if cores == '1' else 'cores'}"] = [float(value) for value in rows["gbit_per_s"]]
    return parts


def held_out_error(records: list[Record]) -> Parts:
    """Of every system: the median absolute error of the held-out numbers of Figures 13 to 16, if all are there."""
    parts: Parts = {}
    for system in dict.fromkeys(errors.SYSTEMS.values()):
        points = [
            point
            for point in errors.points(records)
            if (point.number.system, point.number.use) == (system, "held out")
            and point.number.figure not in ("Fig 4", "Fig 12")
        ]
        middle = errors.median_error(points)
        if middle is not None and len(errors.errors(points)) == len(points):
            parts[system] = [middle]
    return parts


def prediction_error(records: list[Record]) -> Parts:
    """Absolute errors of the speed, launch by launch, where the simulation was there before the launches."""
    parts: Parts = {}
    for pair in predictions.compare([one for one in records if one.provenance == "emulated"], records):
        if pair.predicted and pair.line.main:
            name = f"{pair.case.contender} k={pair.case.k}" if pair.line.uses_k else pair.case.contender
            parts.setdefault(name, []).extend(abs(error) for error in pair.errors)
    return parts


def _anywhere(_case: object) -> bool:
    return True


OF_ATTEMPTS = frozenset({"largest_error"})  # see every launch: a good repetition does not undo a wrong sum

METRICS: dict[str, Callable[[list[Record]], Parts]] = {
    "byteps_fraction_of_optimum": byteps_fraction_of_optimum,
    "byteps_gap_to_optimum": byteps_gap_to_optimum,
    "byteps_over_ring": byteps_over_ring,
    "goodput_step": goodput_step,
    "ring_fraction_of_bound": ring_fraction_of_bound,
    "fraction_of_bound": fraction_of_bound,
    "ring_bytes_at_cpu_machines": ring_bytes_at_cpu_machines,
    "traffic_deviation": traffic_as_planned,
    "largest_error": largest_error,
    "adder_gbit_per_s": adder_gbit_per_s,
    "held_out_error": held_out_error,
    "prediction_error": prediction_error,
    "over_best_on_replays": partial(opponents.over, opponent=opponents.anybody, situation=opponents.replay),
    "over_best_by_size": partial(opponents.over, opponent=opponents.anybody, situation=opponents.shaped_tensor),
    "over_best_allreduce_communication_bound": partial(
        opponents.over, opponent=opponents.all_reduce, situation=opponents.bound_by_communication
    ),
    "over_mxnet_push_pull": partial(opponents.over, opponent=opponents.push_then_pull, situation=_anywhere),
    "cpu_cost_over_horovod": partial(opponents.cpu_cost, contender="horovod"),
    **{
        f"over_{name.replace('-', '_')}{suffix}": partial(
            opponents.over, opponent=opponents.only(name), situation=situation
        )
        for name in ("mxnet-sync", "mxnet-p3")
        for suffix, situation in (("", _anywhere), ("_communication_bound", opponents.bound_by_communication))
    },
}
