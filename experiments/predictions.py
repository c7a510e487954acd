"""How far the simulation lies from the emulated cluster, and whether it was there first.

An emulated launch is paired with the simulated case of the same machines, NICs, bytes and line.  It was *predicted* if
the simulation was there first: the oldest record of that case, from which on all records agree with the newest, is
older.  Simulated once more to the same result, a prediction stands; a changed one begins anew.
Pure: no I/O.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from byteps.theory import TCP_PAYLOAD_FRACTION
from experiments import lines
from experiments.record import Case, Record
from experiments.statistics import launch_seconds

AGREE = 1e-3  # relative: two simulations of a case that say the same


@dataclass(kw_only=True)
class Comparison:
    """One emulated point and the simulation of it."""

    case: Case  # simulated
    line: lines.Line
    simulated_seconds: float
    stands_since: str  # when the oldest record was made from which on all say the same
    launches: dict[int, Record] = field(default_factory=dict)  # block -> verified launch

    @property
    def predicted(self) -> bool:
        """It was there before every launch."""
        return all(self.stands_since < one.started_at for one in self.launches.values())

    @property
    def launch_seconds(self) -> list[float]:
        return [launch_seconds(one.seconds) for one in self.launches.values()]

    @property
    def emulated_seconds(self) -> float:
        return median(self.launch_seconds)

    @property
    def errors(self) -> list[float]:
        """Of the simulated speed, launch by launch."""
        return [seconds / self.simulated_seconds - 1 for seconds in self.launch_seconds]

    @property
    def error(self) -> float:
        return self.emulated_seconds / self.simulated_seconds - 1

    def goodput(self, seconds: float) -> float:
        """As a fraction of the NIC's."""
        return self.case.nbytes / seconds / (self.case.nic_bytes_per_s * TCP_PAYLOAD_FRACTION)


def compare(emulated: Sequence[Record], simulated: Sequence[Record]) -> list[Comparison]:
    """Every simulated case that was emulated too; emulated launches that are not faithful are left out."""
    found: dict[tuple[object, ...], Comparison] = {}
    for oldest, newest in standing(simulated):
        case = newest.case
        line = lines.line_of(case.contender, case.settings)
        found[_same(case, line)] = Comparison(
            case=case,
            line=line,
            simulated_seconds=launch_seconds(newest.seconds),
            stands_since=oldest.started_at,
        )
    kept = [one for one in emulated if one.provenance == "emulated"]
    name = lines.naming(one.case for one in kept)
    for one in kept:
        pair = found.get(_same(one.case, name(one.case)))
        if pair and one.verified:
            pair.launches[one.case.block] = one
    return [pair for pair in found.values() if pair.launches]


def standing(simulated: Iterable[Record]) -> list[tuple[Record, Record]]:
    """Of every case that was simulated the newest record, and before it the oldest from which on all agree with it."""
    history: dict[str, list[Record]] = defaultdict(list)
    for one in sorted(simulated, key=lambda one: one.started_at):
        if one.verified and one.provenance == "simulated":
            history[one.case_hash].append(one)
    return [(_oldest_that_agrees(records), records[-1]) for records in history.values()]


def _oldest_that_agrees(records: Sequence[Record]) -> Record:
    """Records of one case, oldest first."""
    oldest = newest = records[-1]
    for one in reversed(records):
        if abs(launch_seconds(one.seconds) / launch_seconds(newest.seconds) - 1) > AGREE:
            break
        oldest = one
    return oldest


def _same(case: Case, line: lines.Line) -> tuple[object, ...]:
    size = (case.workload, case.nbytes, case.scale, f"{case.dilation:.6g}", case.nic_bytes_per_s)
    return case.experiment, case.n, case.k, *size, line.contender, line.strategy, line.notes
