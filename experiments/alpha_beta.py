"""What all-reduces of the lab cost, a + b s seconds for s bytes: fitted to launches, beside the formulas of a ring.

    a    2(n-1) start-ups of a message; with nothing but the latency of the idle network it is what software adds
    b    2(n-1)/n bytes through every NIC per byte of the tensor, over what TCP leaves of its rate

An idle link of the lab lets a burst pass at once (its token bucket: `scripts.lab.shaping`), which no link of that rate
would do.  So the time of what a NIC carries of a tensor, up to one burst, is added to every measured time before the
fit; sizes below it say something of a alone.

The merge rule (`byteps.merge`) is then asked with these constants, for ResNet-50 on a cluster that the lab stands for:
tensors divided by `SCALE`, computation dilated as in replays.
Pure: no I/O.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from byteps import theory
from byteps.merge import AlphaBeta, fitted
from experiments import schemes, workloads
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
    launches: int
    worst: float  # the largest |fitted / measured - 1|

    @property
    def startup_per_message(self) -> float:
        return self.cost.startup_seconds / (2 * (self.n - 1))


def unburst_seconds(case: Case, seconds: float) -> float:
    """What a launch's time would be without the bucket's burst, of a ring."""
    rate = case.nic_bytes_per_s
    carried = 2 * (case.n - 1) / case.n * case.nbytes
    free = min(carried, shaping(rate).burst_bytes * theory.TCP_PAYLOAD_FRACTION)
    return seconds + free / (rate * theory.TCP_PAYLOAD_FRACTION)


def fits(records: Iterable[Record]) -> list[Fit]:
    """By contender and n; all launches of all sizes in one fit.  Those of fewer than two sizes are left out."""
    groups: dict[tuple[str, int, float], list[Record]] = {}
    for one in records:
        if one.verified and one.case.n > 1:
            groups.setdefault((one.case.contender, one.case.n, one.case.nic_bytes_per_s), []).append(one)
    found = []
    for (contender, n, rate), launches in sorted(groups.items()):
        if len({one.case.nbytes for one in launches}) < 2:
            continue
        times = [(float(one.case.nbytes), unburst_seconds(one.case, launch_seconds(one.seconds))) for one in launches]
        cost = fitted(times)
        latency = min(float(one.facts.get(LATENCY_FACT, "nan")) for one in launches)
        found.append(
            Fit(
                contender=contender,
                n=n,
                nic_bytes_per_s=rate,
                cost=cost,
                formula=AlphaBeta(
                    startup_seconds=2 * (n - 1) * latency,
                    seconds_per_byte=theory.ring_seconds(1.0, n, rate * theory.TCP_PAYLOAD_FRACTION),
                ),
                launches=len(launches),
                worst=max(abs(cost.seconds(nbytes) / seconds - 1) for nbytes, seconds in times),
            )
        )
    return found


def merging(fit: Fit) -> Merging:
    """The rule with these constants, against a message per layer and one of everything."""
    dilation = workloads.dilation(REAL_NIC_BYTES_PER_S, fit.nic_bytes_per_s, SCALE)
    return schemes.merging(MODEL, fit.n, fit.cost, scale=SCALE, dilation=dilation)
