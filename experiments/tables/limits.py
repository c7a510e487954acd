"""What limits the idea, in numbers: the tables of docs/limits.md, which `python -m experiments limits` prints."""

from dataclasses import replace

import numpy as np

from byteps.assign import cluster_shares
from byteps.partition import DEFAULT_PARTITION_BYTES
from byteps.programme import mixed, two_level
from byteps.units import format_nbytes, format_rate
from experiments import limits, paper, placement, workloads
from experiments.analysis import Loaded
from experiments.document import Table
from experiments.limits import AWS, GBIT, NBYTES, SCHEMES, Setting
from experiments.tables.markdown import NOTHING, table

N, RACKS = 32, 4
OVERSUBSCRIPTIONS = (1.0, 2.0, 4.0)
ENDLESS = 1e4 * GBIT


def text(adder: Loaded) -> str:
    """All tables, with the adder of these records."""
    parts = (
        ("NIC rates: where more than NICs limits, and where a ring with GPUDirect overtakes", nics(adder)),
        (f"Racks: time / (M / B), n = {N} in {RACKS} racks", racks()),
        ("BytePS, both ways: how much of M is summed flat, and what limits", ways()),
        (f"Models: BytePS over all-reduce in time of an iteration (per price), k = n = {N}, uplinks 1 : 1", models()),
        ("Unequal NICs: time by the scaled-k rule / by the linear programme", unequal()),
        (
            f"Whole partitions of {format_nbytes(DEFAULT_PARTITION_BYTES)}: time / optimum (largest load / share)",
            balance(),
        ),
    )
    return "\n\n".join(f"{title}\n\n{rows}" for title, rows in parts)


def nics(adder: Loaded) -> Table:
    """By host and k."""
    measured = limits.measured_host(adder)
    hosts = [limits.paper_host(), limits.dgx_host(), *([measured] if measured else [])]
    rows = []
    for host in hosts:
        for k in (0, N // 2, N):
            at = Setting(n=N, k=k, nic_bytes_per_s=1.0, host=host)
            ideal = SCHEMES["flat"].seconds(replace(at, host=limits.NIC_ONLY))
            ring = SCHEMES["ring"].seconds(at)
            alone, ahead = (_highest(at, times) for times in (ideal * 1.001, ring * 0.999))
            rows.append((host.name, str(k), alone, ahead if k else NOTHING))
    return table(("host", "k", "NICs alone limit up to", "ahead of the ring up to"), rows)


def _highest(at: Setting, times: float) -> str:
    """The NIC rate up to which BytePS takes at most so many times M / B."""

    def holds(rate: float) -> bool:
        return SCHEMES["flat"].seconds(replace(at, nic_bytes_per_s=rate)) * rate <= times

    rate = limits.highest_rate(holds, high=ENDLESS)
    return "any" if rate == ENDLESS else format_rate(rate)


def racks() -> Table:
    """By place of the CPU machines and oversubscription."""
    names = ("flat", "two-level", "mixed", "server", "ring", "unordered ring", "hierarchical")
    rows = []
    for k, outside in ((0, False), (N // 2, False), (N // 2, True), (N, False), (N, True)):
        for over in OVERSUBSCRIPTIONS:
            at = Setting(n=N, k=k, nic_bytes_per_s=1.0, racks=RACKS, oversubscription=over, outside=outside)
            times = [SCHEMES[name].seconds(at) for name in names]
            where = NOTHING if not k else "own racks" if outside else "same racks"
            rows.append((str(k), where, f"{over:g}", *(f"{one:.2f}" if one < np.inf else NOTHING for one in times)))
    return table(("k", "CPU machines in", "x : 1", *(SCHEMES[name].label for name in names)), rows)


def ways() -> Table:
    """Of the best of both ways, at 4 : 1."""
    rows = []
    for k, outside in ((N // 2, False), (N // 2, True), (N, False), (N, True)):
        at = Setting(n=N, k=k, nic_bytes_per_s=1.0, racks=RACKS, oversubscription=4.0, outside=outside)
        for what, plan in (("on two levels", two_level(1.0, at.limits)), ("both ways", mixed(1.0, at.limits))):
            parts: dict[str, float] = {}
            for name, price in plan.binding.items():
                kind = name.rstrip("0123456789")
                parts[kind] = parts.get(kind, 0.0) + price
            words = ", ".join(f"{kind} {100 * price:.0f} %" for kind, price in parts.items() if price > 0.005)
            where = "own racks" if outside else "same racks"
            rows.append((str(k), where, what, f"{plan.seconds:.3f}", f"{sum(plan.flat):.2f}", words))
    return table(("k", "CPU machines in", "way", "time / (M / B)", "flat", "limited by"), rows)


def models() -> Table:
    """By model, NIC and speed of the GPU."""
    rows = []
    for faster in (1.0, 10.0):
        for name, title in paper.TITLES.items():
            workload = workloads.with_times(workloads.read(name))
            demand = np.array([limits.demand(workload) * faster])
            cells = [_gain(rate, demand) for rate in (10, 25, 100, 200, 400)]
            rows.append((title, "V100" if faster == 1 else f"{faster:g} V100", f"{demand[0] * 1e6:.0f}", *cells))
    header = ("model", "GPU", "bytes per 10^6 FLOP", "10 Gbit/s", "25", "100", "200", "400")
    return table(header, rows)


def _gain(rate_gbps: float, demand: limits.Floats) -> str:
    host = limits.paper_host()
    at = Setting(n=N, k=N, nic_bytes_per_s=rate_gbps * GBIT, racks=RACKS, host=host)
    faster = limits.gains(NBYTES, at, demand)[0]
    return f"{faster:.2f} ({limits.gains_per_price(NBYTES, at, demand, AWS)[0]:.2f})"


def unequal() -> Table:
    """8 GPU machines, some with a quarter of the others' rate; CPU machines with that too."""
    rows = []
    for k in (0, 2, 4, 8):
        cells = []
        for slow in (0, 1, 4, 6, 7, 8):
            cluster = placement.unequal_cluster([25.0] * slow + [100.0] * (8 - slow), [25.0] * k)
            exact = placement.seconds_of(cluster, cluster_shares(cluster))
            rule = placement.seconds_of(cluster, placement.scaled_k_shares(cluster))
            cells.append(f"{rule / exact:.2f}")
        rows.append((str(k), *cells))
    return table(("CPU machines of 25 Gbit/s", *(f"{slow} of 8 slow" for slow in (0, 1, 4, 6, 7, 8))), rows)


def balance() -> Table:
    """By model, for two clusters."""
    rows = []
    for name, title in paper.TITLES.items():
        found = [
            placement.balance(name, n, k, DEFAULT_PARTITION_BYTES, kind)
            for n, k in ((8, 4), (32, 16))
            for kind in ("exact", "hash")
        ]
        cells = [f"{one.time:.3f} ({one.load:.2f})" for one in found]
        rows.append((title, str(found[0].num_partitions), *cells))
    return table(("model", "partitions", "8 + 4, exact", "hash", "32 + 16, exact", "hash"), rows)
