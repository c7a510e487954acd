"""What limits the idea: adders and memory against faster NICs, and uplinks of racks that are oversubscribed.

Theory alone, so everything is a line without points, in the colour of the contender that works like that.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments import limits
from experiments.analysis import Loaded
from experiments.figures.sheet import PAGE, sheet, source_text, theory_line
from experiments.limits import GBIT, SCHEMES, Host, Setting
from experiments.lines import LineStyle, colour_of

N, RACKS = 32, 4
NICS = (25, 50, 100, 200, 400, 800)  # Gbit/s
RATES: list[float] = np.geomspace(NICS[0], NICS[-1], 61).tolist()
OVERSUBSCRIPTIONS: list[float] = np.linspace(1.0, 4.0, 25).tolist()

DASHED: LineStyle = (0, (4, 2))
DASH_DOT: LineStyle = (0, (6, 1.5, 1, 1.5))
RING_DASHES: LineStyle = (0, (8, 1.5, 1, 1.5, 1, 1.5))  # so that grey prints tell it from BytePS
SHORT: LineStyle = (0, (2, 1))

BYTEPS, RING, HIERARCHY, SERVER = (colour_of(name) for name in ("byteps", "gloo-ring", "horovod", "mxnet-sync"))
LINES: tuple[tuple[str, str, LineStyle, float], ...] = (
    ("flat", BYTEPS, DASHED, 1.2),
    ("two-level", BYTEPS, ":", 1.2),
    ("mixed", BYTEPS, "-", 2.0),
    ("ring", RING, RING_DASHES, 1.4),
    ("unordered ring", RING, (0, (1, 2)), 1.2),
    ("hierarchical", HIERARCHY, "-.", 1.4),
    ("server", SERVER, DASH_DOT, 1.2),
)


def limits_nic(loaded: Loaded, folder: Path) -> list[Path]:
    """Does summing on CPUs survive faster NICs?"""
    published, dgx, measured = limits.paper_host(), limits.dgx_host(), limits.measured_host(loaded)
    hosts: list[tuple[Host, LineStyle]] = [(limits.NIC_ONLY, ":"), (dgx, DASH_DOT), (published, "-")]
    hosts += [(measured, DASHED)] if measured else []

    def goodput(scheme: str, k: int, host: Host) -> list[float]:
        settings = [Setting(n=N, k=k, nic_bytes_per_s=rate * GBIT, host=host) for rate in RATES]
        return [1 / (SCHEMES[scheme].seconds(one) * one.nic_bytes_per_s) for one in settings]

    with sheet("Does summing on CPUs survive faster NICs?", columns=3, width=PAGE, height=2.1) as page:
        for axes, k in zip(page.panels, (0, N // 2, N), strict=True):
            for host, linestyle in hosts:
                what, ys = f"BytePS, {host.name}", goodput("flat", k, host)
                theory_line(page, axes, what, RATES, ys, linestyle=linestyle, colour=BYTEPS)
            what, ys = "Ring, GPUDirect", goodput("ring", k, published)
            theory_line(page, axes, what, RATES, ys, linestyle=RING_DASHES, colour=RING)
            what, ys = "Ring through the memory of the paper's host", goodput("staged ring", k, published)
            theory_line(page, axes, what, RATES, ys, linestyle=SHORT, colour=RING)
            axes.set(xscale="log", xlabel="NIC, Gbit/s", ylim=(0, 1.05))
            axes.set_xticks(NICS, [str(rate) for rate in NICS])
            axes.minorticks_off()
            axes.set_title(f"n = {N}, k = {k}", fontsize=8)
        page.panels[0].set_ylabel("goodput / NIC rate")
        adder = f"{published.adder_bytes_per_s / GBIT:g}"
        caption = [
            "Goodput M/t of one synchronisation over the NIC's rate. BytePS: the fastest shares where NICs, adders and "
            "memory limit; a byte that arrives is written and added (two reads, one write), one that leaves is read.",
            f"The paper's host: adder {adder} Gbit/s (fp32, Figure 9b), memory {published.memory_bytes_per_s / GBIT:g} "
            f"Gbit/s. DGX H100: memory {dgx.memory_bytes_per_s / GBIT:g} Gbit/s, its adder taken as no limit."
            + (
                f" {measured.name}: adder {measured.adder_bytes_per_s / GBIT:.0f} Gbit/s (fp32, all cores, measured: "
                f"{source_text(loaded)}), its memory taken as no limit."
                if measured
                else " This machine: no record of its adder yet."
            ),
            "Ring: adds on GPUs; without GPUDirect what is sent and received is written to and read from memory.",
        ]
        return page.save(folder, "limits_nic", caption)


def limits_racks(folder: Path) -> list[Path]:
    """Time against the oversubscription of the racks' uplinks."""
    panels = [(k, outside) for k in (N // 2, N) for outside in (False, True)]
    with sheet("Racks whose uplinks are oversubscribed", rows=2, columns=2, width=PAGE, height=4.4) as page:
        for axes, (k, outside) in zip(page.panels, panels, strict=True):
            base = Setting(n=N, k=k, nic_bytes_per_s=1.0, racks=RACKS, outside=outside)
            settings = [replace(base, oversubscription=over) for over in OVERSUBSCRIPTIONS]
            for scheme, colour, linestyle, width in LINES:
                what, ys = SCHEMES[scheme].label, [SCHEMES[scheme].seconds(one) for one in settings]
                theory_line(page, axes, what, OVERSUBSCRIPTIONS, ys, linestyle=linestyle, colour=colour, width=width)
            axes.set(ylim=(0, 6.2), xticks=[1, 2, 3, 4])
            where = "in racks of their own" if outside else "in the racks of the GPU machines"
            axes.set_title(f"k = {k}, {where}", fontsize=8)
        for axes in page.panels[::2]:
            axes.set_ylabel("time of one synchronisation / (M / B)")
        for axes in page.panels[2:]:
            axes.set_xlabel("oversubscription, x : 1")
        caption = [
            f"{N} GPU machines in {RACKS} racks; an uplink carries each way what its rack's NICs could, over the "
            "oversubscription. Only NICs and uplinks limit.",
            "BytePS: every service for all workers. On two levels: a rack's services for its own workers, then across "
            "racks. Both ways: part of every gradient either way, as is fastest.",
            "Ring: its order follows the racks, one edge in and out of each; in any order: the mean over all orders. "
            "Hierarchical: its three phases one after the other.",
        ]
        return page.save(folder, "limits_racks", caption)
