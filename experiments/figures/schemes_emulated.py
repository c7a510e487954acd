"""The schemes of the literature on emulated hosts, against what their busiest NIC carries."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from baselines.wiring import shape
from byteps.network import bcube, star
from byteps.scheduled import link_loads
from byteps.schedules.catalogue import build
from byteps.theory import TCP_PAYLOAD_FRACTION
from experiments.analysis import Loaded
from experiments.figures.sheet import COLUMN, sheet, source_text
from experiments.lines import colour_of
from experiments.record import Record
from experiments.statistics import launch_seconds

FILLED: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 4.4}
TICK: dict[str, Any] = {"linestyle": "none", "marker": "|", "markersize": 11, "color": "0.35"}


def busiest_nic(scheme: str, network: str, n: int) -> float:
    """Bytes through it one way, as a multiple of the tensor's."""
    ports, levels = shape(network)
    there = bcube(ports, levels, 1.0) if ports else star([1.0] * n)
    return max(link_loads(build(scheme, n), there).values())


def schemes_emulated(loaded: Loaded, folder: Path) -> list[Path]:
    """Time over W/B for every scheme and network, a mark per launch."""
    lines = _lines(loaded.records)
    with sheet("Schemes on nine emulated hosts", width=COLUMN, height=2.3) as page:
        (axes,) = page.panels
        for row, (formula, colour, values) in enumerate(lines.values()):
            axes.plot([formula], [row], **TICK)
            axes.plot(values, [row] * len(values), color=colour, **FILLED)
        axes.set_yticks(range(len(lines)), list(lines), fontsize=7)
        axes.invert_yaxis()
        axes.set(xlabel="time / (W/B)", xlim=(0, None))
        page.legend.add("Theory", "what the busiest NIC carries", **TICK)
        page.legend.add("Emulated", "a launch", color="0.2", **FILLED)
        caption = [
            "W bytes per host, NICs of B each way with headers taken off; hosts of BCube(3,2) have two NICs. "
            f"Our executor runs all but gloo's ring. {source_text(loaded)}.",
        ]
        return page.save(folder, "schemes_emulated", caption)


def _lines(records: Iterable[Record]) -> dict[str, tuple[float, str, list[float]]]:
    """By name: the formula, a colour, and what launches took."""
    found: dict[str, tuple[float, str, list[float]]] = {}
    for one in records:
        if not one.verified:
            continue
        case = one.case
        network = case.settings.get("network", "star")
        ours = case.contender == "schedule"
        scheme = case.settings.get("scheme", "ring")
        title = "star" if network == "star" else f"BCube({network.partition(':')[2].replace('x', ',')})"
        name = f"{scheme.partition(':')[0] if ours else 'gloo ring'}, {title}"
        formula = busiest_nic(scheme, network, case.n)
        per_tensor = case.nbytes / (case.nic_bytes_per_s * TCP_PAYLOAD_FRACTION)
        line = found.setdefault(name, (formula, colour_of(case.contender), []))
        line[2].append(launch_seconds(one.seconds) / per_tensor)
    return dict(
        sorted(found.items(), key=lambda item: (item[0].rpartition(", ")[2] == "star", item[1][0]), reverse=True)
    )


def schemes_bml(loaded: Loaded, folder: Path) -> list[Path]:
    """Iterations on BCube over those on one NIC, by model and batch."""
    times: dict[str, dict[str, list[float]]] = {}
    for one in loaded.records:
        if one.verified:
            network = one.case.settings.get("network", "star")
            times.setdefault(one.case.workload, {}).setdefault(network, []).append(launch_seconds(one.seconds))
    whole = {name: both for name, both in times.items() if len(both) > 1}
    name = loaded.experiment
    with sheet("BML: BCube(3,2) against one NIC per server", width=COLUMN, height=1.6) as page:
        (axes,) = page.panels
        for row, both in enumerate(whole.values()):
            base = sorted(both["star"])[len(both["star"]) // 2]
            (other,) = (values for network, values in both.items() if network != "star")
            values = [value / base for value in other]
            axes.plot(values, [row] * len(values), color=colour_of("schedule"), **FILLED)
        axes.axvline(0.5, color="0.35", linewidth=1.2)
        axes.set_yticks(range(len(whole)), [title.replace("@bml", ", batch ") for title in whole], fontsize=7)
        axes.set(xlabel="iteration / that of a mesh on one NIC", xlim=(0, 1.05))
        page.legend.add("Theory", "twice the NICs", color="0.35", linewidth=1.2)
        page.legend.add("Emulated", "a launch", color=colour_of("schedule"), **FILLED)
        caption = [
            "Published: up to 52.1 % less for VGG-19, 18.7 to 56.4 % for LeNet-5. "
            f"Computation is replayed at the rate of two K40c. {source_text(loaded)}."
        ]
        return page.save(folder, f"schemes_{name}", caption)
