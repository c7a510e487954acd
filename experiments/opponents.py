"""BytePS against its opponents, block by block.

A *situation* is what all contenders have in common: experiment, workload and its size, machines and their NICs.  In a
situation BytePS is its line without strategy, at its best knobs; an opponent at k is every line of every other
contender that ran with the same k, or that makes no use of CPU machines; only verified launches count.  A ratio is the
opponent's seconds over BytePS's of the same block: above 1, BytePS is faster.

"The best" is the fastest of the opponents in a block.  A block in which one that ran in the situation has no verified
launch gives no ratio, since the best may be what is missing.  An opponent that was CPU-bound whenever it ran there
enters no ratio and holds none up; it is named beside them.
Pure: no I/O.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from byteps.units import format_nbytes, format_rate
from experiments import groups, lines, spec
from experiments.analysis import NOT_RUN, communication_bound, core_seconds_per_gib
from experiments.record import Case, Record
from experiments.statistics import launch_seconds, paired_ratios

Parts = dict[str, list[float]]
Test = Callable[[Case], bool]
PerBlock = dict[int, float]


@dataclass(frozen=True, kw_only=True)
class _Situation:
    experiment: str
    workload: str
    nbytes: int
    scale: float
    dilation: float
    n: int
    nic_bytes_per_s: float


@dataclass(kw_only=True)
class Contest:
    """One situation: who took how long in which block."""

    case: Case  # any of its cases
    byteps: dict[int, PerBlock] = field(default_factory=dict)  # k -> block -> value
    # (line, k) -> block -> value; nothing for blocks in which it ran and left no verified launch
    others: dict[tuple[lines.Line, int], PerBlock] = field(default_factory=dict)
    cpu_bound: set[tuple[lines.Line, int]] = field(default_factory=set)  # whenever they ran; not among the others

    def opponents(self, k: int, wanted: Callable[[lines.Line], bool] = lambda _: True) -> list[PerBlock]:
        """Of BytePS with k CPU machines."""
        return [values for (line, at), values in self.others.items() if wanted(line) and (at == k or not line.uses_k)]

    def left_out(self, k: int) -> list[str]:
        """The opponents at k that were CPU-bound whenever they ran."""
        return sorted(line.label for line, at in self.cpu_bound if at == k or not line.uses_k)


def contests(records: Iterable[Record], value: Callable[[Record], float]) -> list[Contest]:
    """All situations among launches on more than one machine."""
    records = list(records)
    name = lines.naming(one.case for one in records)
    found: dict[_Situation, Contest] = {}
    for one in records:
        case = one.case
        if one.error.startswith(NOT_RUN) or case.n < 2 or not case.nic_bytes_per_s:
            continue
        key = _Situation(
            experiment=case.experiment,
            workload=case.workload,
            nbytes=case.nbytes,
            scale=case.scale,
            dilation=case.dilation,
            n=case.n,
            nic_bytes_per_s=case.nic_bytes_per_s,
        )
        contest = found.setdefault(key, Contest(case=case))
        line = name(case)
        if line.contender != "byteps":
            _enter(contest, (line, case.k), one, value)
        elif line.main and one.verified:
            contest.byteps.setdefault(case.k, {})[case.block] = value(one)
    for contest in found.values():
        for bound in contest.cpu_bound:
            del contest.others[bound]
    return list(found.values())


def _enter(contest: Contest, key: tuple[lines.Line, int], one: Record, value: Callable[[Record], float]) -> None:
    if one.fidelity.verdict != "cpu-bound" or not one.correct:
        contest.cpu_bound.discard(key)
    elif key not in contest.others:
        contest.cpu_bound.add(key)
    values = contest.others.setdefault(key, {})
    if one.verified:
        values[one.case.block] = value(one)


def workload_in_words(case: Case) -> str:
    """The experiment and what it synchronises: "fig12 16 MiB", "sizes 1 MiB in 100 tensors", "fig15_16 vgg16"."""
    what = case.workload if spec.is_model(case.workload) else format_nbytes(case.nbytes)
    if case.workload.startswith("tensors"):
        what += f" in {case.workload.partition(':')[2]} tensors"
    return f"{case.experiment} {what}"


def part_name(case: Case, k: int) -> str:
    """The situation as claims name it: "fig12 16 MiB k=8", "fig15_16 vgg16 k=0"."""
    rate = f" {format_rate(case.nic_bytes_per_s)}" if case.experiment == "rates" else ""
    return f"{workload_in_words(case)}{rate} k={k}"


def best_of(some: Iterable[PerBlock]) -> PerBlock:
    """Block -> the least value in it; only blocks with a value of everybody, or the second best would pass for it."""
    everybody = list(some)
    blocks = set.intersection(*(set(values) for values in everybody)) if everybody else set()
    return {block: min(values[block] for values in everybody) for block in sorted(blocks)}


def seconds_of(one: Record) -> float:
    """What most comparisons are of."""
    return launch_seconds(one.seconds)


def over(records: list[Record], *, opponent: Callable[[lines.Line], bool], situation: Test) -> Parts:
    """How many times faster than the best of those opponents BytePS is, for every situation and k."""
    parts: Parts = {}
    for contest in contests(records, seconds_of):
        if not situation(contest.case):
            continue
        for k, ours in sorted(contest.byteps.items()):
            ratios = paired_ratios(best_of(contest.opponents(k, opponent)), ours)
            if ratios:
                parts[part_name(contest.case, k)] = list(ratios.values())
    return parts


def anybody(_line: lines.Line) -> bool:
    return True


def all_reduce(line: lines.Line) -> bool:
    """Those that make no use of CPU machines are all all-reduce here."""
    return not line.uses_k


def only(contender: str) -> Callable[[lines.Line], bool]:
    """That contender as it is at its best, without a strategy of ours."""
    return lambda line: line.contender == contender and line.main


def push_then_pull(line: lines.Line) -> bool:
    """MXNet without its later call that does both at once, as the paper used it."""
    return line.contender == "mxnet-sync" and lines.PUSH_THEN_PULL in line.notes


def replay(case: Case) -> bool:
    """A model of enough bytes for the emulated NIC to matter."""
    return spec.is_model(case.workload) and not groups.unshaped(case)


def bound_by_communication(case: Case) -> bool:
    return replay(case) and communication_bound(case)


def shaped_tensor(case: Case) -> bool:
    """One tensor, large enough for the emulated NIC to matter and of at least 1 MiB."""
    return case.workload == "tensor" and case.nbytes >= 2**20 and not groups.unshaped(case)


def cpu_cost(records: list[Record], contender: str) -> Parts:
    """Core-seconds per GiB of a whole GPU machine, BytePS's over the contender's, for every situation and k."""
    parts: Parts = {}
    for contest in contests(records, core_seconds_per_gib):
        for k, ours in sorted(contest.byteps.items()):
            theirs = best_of(contest.opponents(k, only(contender)))
            ratios = [value for value in paired_ratios(ours, theirs).values() if value == value]
            if ratios:
                parts[part_name(contest.case, k)] = ratios
    return parts
