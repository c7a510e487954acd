"""What all-reduces of the lab cost, a + b s seconds for s bytes: fitted to launches, beside the formulas of a ring.

    a    2(n-1) start-ups of a message; with nothing but the latency of the idle network it is what software adds
    b    2(n-1)/n bytes through every NIC per byte of the tensor, over what TCP leaves of its rate

An idle link of the lab lets a burst pass at once (its token bucket: `scripts.lab.shaping`), which no link of that rate
would do.  So the time of what a NIC carries of a tensor, up to one burst, is added to every measured time before the
fit.  And while a message waits for its start-up, the bucket fills, and what comes next makes up for it: between one
burst and many, start-ups are hidden and times lie below a + b s.  The fit is of the sizes on either side: those that a
burst holds, which tell a, and those that are shaped (`groups.least_shaped_nbytes`), which tell b.

The merge rule (`byteps.merge`) is then asked with these constants, for ResNet-50 on a cluster that the lab stands for:
tensors divided by `SCALE`, computation dilated as in replays.
Pure: no I/O.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from byteps import theory
from byteps.merge import AlphaBeta, fitted
from experiments import schemes, workloads
from experiments.groups import least_shaped_nbytes
from experiments.record import LATENCY_FACT, Case, Record
from experiments.schemes import Merging
from experiments.statistics import launch_seconds
from scripts.lab import shaping

MODEL = "resnet50"
SCALE = 64.0
REAL_NIC_BYTES_PER_S = 10 * schemes.GBIT  # as in the experiments of the rule's authors


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Of one contender on n machines."""

    contender: str
    n: int
    nic_bytes_per_s: float
    cost: AlphaBeta
    formula: AlphaBeta
    fitted: tuple[tuple[float, float], ...]  # (bytes, seconds without the burst), one per launch
    left_out: tuple[tuple[float, float], ...]  # of sizes between

    @property
    def startup_per_message(self) -> float:
        return self.cost.startup_seconds / (2 * (self.n - 1))

    @property
    def worst(self) -> float:
        """The largest |fitted / measured - 1|."""
        return max(abs(self.cost.seconds(nbytes) / seconds - 1) for nbytes, seconds in self.fitted)


def carried_nbytes(case: Case) -> float:
    """What a ring makes every NIC send."""
    return 2 * (case.n - 1) / case.n * case.nbytes


def burst_nbytes(one: Record) -> int:
    """What an idle link of the launch lets pass at once; only emulated ones do."""
    return shaping(one.case.nic_bytes_per_s).burst_bytes if one.provenance == "emulated" else 0


def unburst_seconds(one: Record) -> float:
    """What a launch's time would be without a burst, of a ring."""
    free = min(carried_nbytes(one.case), burst_nbytes(one) * theory.TCP_PAYLOAD_FRACTION)
    return launch_seconds(one.seconds) + free / (one.case.nic_bytes_per_s * theory.TCP_PAYLOAD_FRACTION)


def hides_startups(one: Record) -> bool:
    """Whether the bucket fills while messages wait for their start-ups, and no more than makes up for them."""
    burst = burst_nbytes(one)
    return 0 < burst < carried_nbytes(one.case) and one.case.nbytes < least_shaped_nbytes(one.case.nic_bytes_per_s)


def fits(records: Iterable[Record]) -> list[Fit]:
    """By contender and n; all launches in one fit, where there are two sizes for it."""
    groups: dict[tuple[str, int, float], list[Record]] = {}
    for one in records:
        if one.verified and one.case.n > 1:
            groups.setdefault((one.case.contender, one.case.n, one.case.nic_bytes_per_s), []).append(one)
    found = []
    for (contender, n, rate), launches in sorted(groups.items()):
        used, left_out = (
            tuple((float(one.case.nbytes), unburst_seconds(one)) for one in launches if hides_startups(one) == hidden)
            for hidden in (False, True)
        )
        if len({nbytes for nbytes, _ in used}) < 2:
            continue
        latency = min(float(one.facts.get(LATENCY_FACT, "nan")) for one in launches)
        found.append(
            Fit(
                contender=contender,
                n=n,
                nic_bytes_per_s=rate,
                cost=fitted(used),
                formula=AlphaBeta(
                    startup_seconds=2 * (n - 1) * latency,
                    seconds_per_byte=theory.ring_seconds(1.0, n, rate * theory.TCP_PAYLOAD_FRACTION),
                ),
                fitted=used,
                left_out=left_out,
            )
        )
    return found


def merging(fit: Fit) -> Merging:
    """The rule with these constants, against a message per layer and one of everything."""
    dilation = workloads.dilation(REAL_NIC_BYTES_PER_S, fit.nic_bytes_per_s, SCALE)
    return schemes.merging(MODEL, fit.n, fit.cost, scale=SCALE, dilation=dilation)
