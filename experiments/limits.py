"""What limits the idea: times by theory where adders, memory or rack uplinks, and not only NICs, can be full.

Equal machines: n GPU machines in equal racks, k CPU machines among them or in racks of their own.  A rack's uplink is
the sum of its NICs over the oversubscription.  BytePS is `byteps.programme`'s optimum; for the others, per byte of M,
with m GPU machines in each of R racks, NICs of B and uplinks of U bytes/s each way:

    ring, racks in order    every machine sends 2(n-1)/n; so does every rack, by the one edge that leaves it
    ring, any order         the same, but m(n-m)/(n-1) edges leave a rack in the mean over all orders
    hierarchical            reduce-scatter in the rack, all-reduce of each part over the racks, all-gather, one by one:
                            2(m-1)/(mB) + 2(R-1)/R max(1/(mB), 1/U)
    parameter server        the CPU machines only, each 1/k

All-reduce adds on GPUs and, with GPUDirect, passes by host memory; without it, every byte that is sent or received is
written to and read from it.  A step costs a start-up on top: 2(n-1) steps of a ring, 2(m-1) + 2(R-1) of the hierarchy,
push and pull of BytePS, both twice on two levels.

With computation that overlaps perfectly an iteration takes max(computation, synchronisation).  M bytes of gradients for
F operations per GPU and iteration ("bytes per FLOP": M/F) are computed in F / (sustained FLOP/s) seconds.
Pure, except that models and presets of machines are read from their files.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from byteps import programme
from byteps.cluster import Cluster, Machine
from byteps.machine_file import preset
from byteps.programme import Limits
from experiments import analysis, paper
from experiments.analysis import Loaded
from experiments.workloads import Workload

Floats = NDArray[np.float64]

GBIT = 1e9 / 8
STEP_SECONDS = 14e-6  # NCCL's own model of a ring's step over a network (src/graph/tuning.cc, protocol Simple)
GPU_FLOP_PER_S = 10e12  # sustained: about what a V100 reaches on ResNet-50 in fp32
NBYTES = 5e8  # of the maps; it decides how much start-ups count


@dataclass(frozen=True, kw_only=True)
class Host:
    """What a machine's processors do to gradients, in bytes/s; a rate that is not known does not limit."""

    name: str
    adder_bytes_per_s: float = math.inf
    memory_bytes_per_s: float = math.inf


NIC_ONLY = Host(name="NICs alone")


@cache
def paper_host() -> Host:
    """The paper's: its adder (Figure 9b) and memory."""
    published = paper.fig9b()
    return Host(
        name=f"the paper's {published.cores}-core host",
        adder_bytes_per_s=published.fp32 * GBIT,
        memory_bytes_per_s=preset("pcie-only").capacities["CPU0.memory"],
    )


@cache
def dgx_host() -> Host:
    """One socket of a DGX H100; how fast it adds is not known to us."""
    return Host(name="one socket of a DGX H100", memory_bytes_per_s=preset("dgx-h100").capacities["CPU0.memory"])


def measured_host(loaded: Loaded) -> Host | None:
    """The machine of the adder benchmark, all cores, fp32; how fast its memory is, is not known."""
    table = analysis.frame(loaded.records)
    rates = table[table["verified"] & (table["dtype"] == "fp32") & (table["cores"] == "all")]["gbit_per_s"]
    if rates.empty:
        return None
    machine = next(one.host for one in loaded.records if one.verified)
    return Host(name=f"{machine['cores']} cores, {machine['cpu']}", adder_bytes_per_s=float(rates.median()) * GBIT)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Equal machines in equal racks."""

    n: int
    k: int
    nic_bytes_per_s: float
    racks: int = 1  # of GPU machines; one alone has no uplink
    oversubscription: float = 1.0
    outside: bool = False  # CPU machines in racks of their own, of as many machines
    host: Host = NIC_ONLY

    def __post_init__(self) -> None:
        if self.racks < 1 or self.n % self.racks:
            raise ValueError(f"racks = {self.racks}: {self.n} GPU machines do not fill as many equal racks")

    @property
    def per_rack(self) -> int:
        """GPU machines in a rack."""
        return self.n // self.racks

    @property
    def uplink_bytes_per_s(self) -> float:
        """Of the fullest rack with GPU machines, each way."""
        if self.racks == 1:
            return math.inf
        return min(self.limits.cluster.uplinks[f"rack{index}"] for index in range(self.racks))

    @cached_property
    def limits(self) -> Limits:
        """As a cluster, with the rates of adders and memories."""
        racks = [f"rack{index // self.per_rack}" for index in range(self.n)]
        for index in range(self.k):
            racks.append(f"cpurack{index // self.per_rack}" if self.outside else f"rack{index % self.racks}")
        machines = tuple(
            Machine(
                name=f"gpu{index}" if index < self.n else f"cpu{index - self.n}",
                role="gpu" if index < self.n else "cpu",
                nic_bytes_per_s=self.nic_bytes_per_s,
                rack=rack if self.racks > 1 else "",
            )
            for index, rack in enumerate(racks)
        )
        adder, memory = (
            {machine.name: rate for machine in machines} if rate < math.inf else {}
            for rate in (self.host.adder_bytes_per_s, self.host.memory_bytes_per_s)
        )
        cluster = Cluster(machines=machines, oversubscription=self.oversubscription)
        return Limits(cluster=cluster, adders=adder, memories=memory)


def ring_seconds(setting: Setting) -> float:
    """Per byte of M, on GPUs, its order that of the racks."""
    return 2 * (setting.n - 1) / setting.n / min(setting.nic_bytes_per_s, setting.uplink_bytes_per_s)


def unordered_ring_seconds(setting: Setting) -> float:
    """The same in the mean over all orders."""
    n, m = setting.n, setting.per_rack
    edges = m * (n - m) / (n - 1)
    return 2 * (n - 1) / n * max(1 / setting.nic_bytes_per_s, edges / setting.uplink_bytes_per_s)


def staged_ring_seconds(setting: Setting) -> float:
    """Without GPUDirect: memory is written and read for what is sent, and for what is received."""
    return max(ring_seconds(setting), 4 * 2 * (setting.n - 1) / setting.n / setting.host.memory_bytes_per_s)


def hierarchical_seconds(setting: Setting) -> float:
    m, racks = setting.per_rack, setting.racks
    across = max(1 / (m * setting.nic_bytes_per_s), 1 / setting.uplink_bytes_per_s)
    return 2 * (m - 1) / m / setting.nic_bytes_per_s + 2 * (racks - 1) / racks * across


def server_seconds(setting: Setting) -> float:
    """A parameter server on the CPU machines alone."""
    if not setting.k:
        return math.inf
    own = [0.0] * setting.n + [1 / setting.k] * setting.k
    return max(programme.busy_seconds(1.0, setting.limits, own).values())


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A way to sum gradients."""

    label: str
    seconds: Callable[[Setting], float]  # per byte of M
    steps: Callable[[Setting], int]  # one after the other, each with a start-up


SCHEMES: Mapping[str, Scheme] = {
    "ring": Scheme(label="Ring", seconds=ring_seconds, steps=lambda s: 2 * (s.n - 1)),
    "hierarchical": Scheme(
        label="Hierarchical all-reduce",
        seconds=hierarchical_seconds,
        steps=lambda s: 2 * (s.per_rack - 1) + 2 * (s.racks - 1),
    ),
    "flat": Scheme(label="BytePS", seconds=lambda s: programme.flat(1.0, s.limits).seconds, steps=lambda s: 2),
    "two-level": Scheme(
        label="BytePS on two levels", seconds=lambda s: programme.two_level(1.0, s.limits).seconds, steps=lambda s: 4
    ),
    "mixed": Scheme(
        label="BytePS, both ways", seconds=lambda s: programme.mixed(1.0, s.limits).seconds, steps=lambda s: 4
    ),
    "unordered ring": Scheme(label="Ring in any order", seconds=unordered_ring_seconds, steps=lambda s: 2 * (s.n - 1)),
    "staged ring": Scheme(label="Ring through host memory", seconds=staged_ring_seconds, steps=lambda s: 2 * (s.n - 1)),
    "server": Scheme(label="Parameter server", seconds=server_seconds, steps=lambda s: 2),
}
ALL_REDUCE, BYTEPS = ("ring", "hierarchical"), ("flat", "mixed")
CHOICES = ALL_REDUCE + BYTEPS  # the simplest first
TIE = 1.01


@cache
def _seconds(scheme: str, setting: Setting) -> float:
    return SCHEMES[scheme].seconds(setting)


def sync_seconds(nbytes: float, scheme: str, setting: Setting) -> float:
    """One synchronisation of M bytes, start-ups included."""
    return nbytes * _seconds(scheme, setting) + SCHEMES[scheme].steps(setting) * STEP_SECONDS


def demand(workload: Workload) -> float:
    """Bytes per FLOP of a model on a GPU that took as long as is published, had it reached GPU_FLOP_PER_S."""
    return workload.nbytes / workload.iteration_seconds / GPU_FLOP_PER_S


def compute_seconds(nbytes: float, demands: Floats) -> Floats:
    """Of models with so many bytes per FLOP."""
    return nbytes / (demands * GPU_FLOP_PER_S)


def iteration_seconds(nbytes: float, scheme: str, setting: Setting, demands: Floats) -> Floats:
    return np.maximum(compute_seconds(nbytes, demands), sync_seconds(nbytes, scheme, setting))


def winners(nbytes: float, setting: Setting, demands: Floats) -> list[str]:
    """The first of CHOICES that is as fast as any, to one percent; "" where computation hides even the ring."""
    times = np.array([iteration_seconds(nbytes, scheme, setting, demands) for scheme in CHOICES])
    first = (times <= TIE * times.min(axis=0)).argmax(axis=0)
    hidden = times[0] <= TIE * compute_seconds(nbytes, demands)
    return ["" if none else CHOICES[index] for index, none in zip(first, hidden, strict=True)]


def gains(nbytes: float, setting: Setting, demands: Floats) -> Floats:
    """How many times faster an iteration is with the best BytePS than with the best all-reduce."""
    return _least(nbytes, ALL_REDUCE, setting, demands) / _least(nbytes, BYTEPS, setting, demands)


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Of a machine per hour."""

    gpu_machine: float
    cpu_machine: float
    source: str

    def of(self, setting: Setting) -> float:
        return setting.n * self.gpu_machine + setting.k * self.cpu_machine


AWS = Prices(gpu_machine=25.0, cpu_machine=4.2, source="AWS in 2020, as the paper quotes it")


def gains_per_price(nbytes: float, setting: Setting, demands: Floats, prices: Prices) -> Floats:
    """The same with CPU machines over all-reduce without any, divided by what they add to the price."""
    alone = replace(setting, k=0)
    faster = _least(nbytes, ALL_REDUCE, alone, demands) / _least(nbytes, BYTEPS, setting, demands)
    return faster * prices.of(alone) / prices.of(setting)


def _least(nbytes: float, schemes: Iterable[str], setting: Setting, demands: Floats) -> Floats:
    least: Floats = np.min([iteration_seconds(nbytes, scheme, setting, demands) for scheme in schemes], axis=0)
    return least


def highest_rate(holds: Callable[[float], bool], low: float = 10 * GBIT, high: float = 1e4 * GBIT) -> float:
    """The NIC rate up to which something holds, by bisection; `high` if it always does."""
    if holds(high):
        return high
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
