"""The schemes in numbers: the tables of docs/schemes.md, which `python -m experiments schemes` prints."""

import numpy as np

from byteps.poseidon import Layer, choose, factor_elements, server_elements
from byteps.units import format_nbytes
from experiments import policies, schemes
from experiments.analysis import Loaded
from experiments.document import Table
from experiments.emulated_schemes import iterations, lines
from experiments.tables.markdown import NOTHING, interval, table


def text() -> str:
    """All tables."""
    parts = (
        ("Topologies: time / (W/B), by formula and simulated", topologies()),
        ("BML: an iteration on BCube(3,2) against one NIC per server, 10 Gbit/s", bml()),
        ("MG-WFBP: images/s of 8 nodes, predicted (measured by its authors)", merging()),
        ("Poseidon: elements per machine, 8 workers, 8 shards, batch 32", factors()),
        ("BSP, SSP, ASP: four workers, one of which computes three times as long", policy_rows()),
        ("The fastest scheme by network and size, and how much longer the others take", choices()),
        ("One scheme for all of them: time / that of the fastest", regrets()),
    )
    return "\n\n".join(f"{title}\n\n{rows}" for title, rows in parts)


def emulated(loaded: Loaded) -> Table:
    """Of every scheme and network: what its busiest NIC carries, and what launches took of it."""
    rows = [
        (name, f"{formula:.3f}", interval(values), f"{formula / float(np.median(values)):.3f}")
        for name, (formula, _, values) in lines(loaded.records).items()
    ]
    return table(("scheme, network", "busiest NIC, W", "time / (W/B)", "bound / time"), rows)


def saved(loaded: Loaded) -> Table:
    """BML against a mesh on one NIC, by model and batch."""
    rows = [
        (workload, interval(star), interval(cube), f"{1 - float(np.median(cube)) / float(np.median(star)):.1%}")
        for workload, (star, cube) in iterations(loaded.records).items()
    ]
    return table(("workload", "mesh, one NIC, s", "BML on BCube, s", "saved"), rows)


def topologies() -> Table:
    """Largest of all seeds last."""
    rows = []
    for servers in (9, 256, 1024):
        for point in schemes.topologies(servers):
            times = f"{point.median:.3f}"
            if len(set(point.times)) > 1:
                times += f" ({min(point.times):.3f} to {max(point.times):.3f})"
            rows.append((point.topology, str(point.servers), point.scheme, f"{point.formula:.3f}", times))
    return table(("topology", "servers", "scheme", "busiest NIC, formula", "simulated"), rows)


def bml() -> Table:
    """Both models, by batch."""
    rows = [
        (one.model, str(one.batch), f"{one.star_seconds:.4g} s", f"{one.bcube_seconds:.4g} s", f"{one.saved:.1%}")
        for one in schemes.bml()
    ]
    return table(("model", "batch per server", "mesh, one NIC", "BML, two NICs", "saved"), rows)


def merging() -> Table:
    """The published size."""
    rows = []
    for model, measured in schemes.MGWFBP_MEASURED.items():
        one = schemes.merging(model, 8, schemes.mgwfbp_cost(8))
        cells = (
            f"{ours:.0f} ({theirs:.0f})"
            for ours, theirs in zip((one.layerwise, one.merged, one.single), measured, strict=True)
        )
        rows.append((model, *cells, str(one.groups)))
    return table(("model", "layer by layer", "MG-WFBP", "all at once", "messages"), rows)


def factors() -> Table:
    """Fully connected layers of VGG-16 and LeNet-5."""
    layers = {
        "VGG-16 fc6": Layer(rows=4096, columns=25088),
        "VGG-16 fc8": Layer(rows=1000, columns=4096),
        "LeNet-5 ip1": Layer(rows=500, columns=800),
        "LeNet-5 ip2": Layer(rows=10, columns=500),
    }
    ways = choose(list(layers.values()), workers=8, servers=8, batch=32)
    rows = [
        (name, f"{server_elements(layer, 8, 8):.3g}", f"{factor_elements(layer, 8, 32):.3g}", way)
        for (name, layer), way in zip(layers.items(), ways, strict=True)
    ]
    return table(("layer", "parameter server", "sufficient factors", "choice"), rows)


def policy_rows() -> Table:
    """Every scheme with servers, policy and kind of straggler."""
    rows = []
    for scheme in policies.schemes():
        for straggler in policies.STRAGGLERS:
            for policy in policies.POLICIES:
                one = policies.outcome(scheme, policy, straggler, 3.0)
                rates = (f"{one.fast_rate:.2f}", f"{one.slow_rate:.2f}")
                rows.append((scheme, straggler, policy.name, *rates, str(one.apart), f"{one.missed:.1f}"))
    return table(
        ("scheme", "slow worker", "policy", "fastest, it/s", "slowest, it/s", "clocks apart", "pushes missed, at most"),
        rows,
    )


def choices() -> Table:
    """Times as multiples of the fastest."""
    found = schemes.choices()
    names = sorted({name for row in found.values() for name in row})
    rows = []
    for (network, nbytes), times in found.items():
        best = min(times.values())
        cells = [f"{times[name] / best:.2f}" if name in times else NOTHING for name in names]
        rows.append((network, format_nbytes(round(nbytes)), min(times, key=lambda name: times[name]), *cells))
    return table(("network", "bytes", "fastest", *names), rows)


def regrets() -> Table:
    """Best first."""
    found = sorted(schemes.regrets().items(), key=lambda item: item[1][0])
    return table(("scheme", "mean", "worst"), [(name, f"{mean:.2f}", f"{worst:.2f}") for name, (mean, worst) in found])
