"""Brings up the labs of `scripts.tree`, and reads what passed each of their links."""

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from scripts import lab, tree
from scripts.lab import Batch
from scripts.leftovers import NETNS_DIR
from scripts.netns import Counters, Lab, LabError
from scripts.tree import TreeSpec

_SECONDS = 30.0


class TreeLab(Lab):
    """A lab with trunks and fabrics; hosts, processes and clearing up are those of any lab."""

    def __init__(self, spec: TreeSpec) -> None:
        super().__init__(spec.hosts)
        self.tree = spec

    def stages(self) -> tuple[tuple[Batch, ...], ...]:
        return (*super().stages(), *tree.additions(self.tree, self.prefix))

    def link_counters(self) -> dict[str, Counters]:
        """By link.  tx: from a host into the tree or a fabric, or from a trunk's a to its b; rx: the other way.

        Read from the switches' ends, when nothing is in flight.
        """
        ends = device_stats(lab.switch_namespace(self.prefix))
        found = {}
        for index, name in enumerate(self.spec.names):
            found[self.tree.link_of(index)] = link_counters(ends[lab.port(index)], into="rx")
            if any(name in fabric for fabric in self.tree.fabrics):
                found[f"{name} fabric"] = link_counters(ends[tree.fabric_port(index)], into="rx")
        for index, trunk in enumerate(self.tree.trunks):
            found[trunk.name] = link_counters(ends[tree.trunk_port(index, "a")], into="tx")
        return found


def link_counters(stats: Mapping[str, Any], *, into: str) -> Counters:
    """Of one end; `into`: which of a device's directions is the link's tx."""
    back = "tx" if into == "rx" else "rx"
    return Counters(
        tx_bytes=stats[into]["bytes"],
        rx_bytes=stats[back]["bytes"],
        tx_packets=stats[into]["packets"],
        rx_packets=stats[back]["packets"],
        tx_wire_bytes=0,
        rx_wire_bytes=0,
        dropped_packets=stats["tx"]["dropped"],
    )


def device_stats(namespace: str) -> dict[str, dict[str, Any]]:
    """What the kernel counted, by device."""
    argv = ["ip", "-n", namespace, "-s", "-j", "link", "show"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)} failed: {done.stderr.strip()}; namespaces are in {NETNS_DIR}")
    return {link["ifname"]: link["stats64"] for link in json.loads(done.stdout)}
