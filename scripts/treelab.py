"""Brings up the labs of `scripts.tree`, and reads what passed each of their links."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from scripts import lab, tree
from scripts.leftovers import NETNS_DIR
from scripts.netns import Counters, Lab, LabError
from scripts.tree import TreeSpec

_SECONDS = 30.0


class TreeLab(Lab):
    """A lab with trunks and fabrics; hosts, processes and clearing up are those of any lab."""

    def __init__(self, spec: TreeSpec) -> None:
        super().__init__(spec.hosts)
        self.tree = spec

    def up(self) -> None:
        super().up()
        try:
            for stage in tree.additions(self.tree, self.prefix):
                for batch in stage:
                    _run([batch.tool, "-n", batch.namespace, "-batch", "-"], batch.text)
        except BaseException:
            self.down()
            raise

    def link_counters(self) -> dict[str, Counters]:
        """By link.  tx: from a host into the tree or a fabric, or from a trunk's a to its b; rx: the other way.

        Read from the switches' ends, when nothing is in flight.
        """
        switch = lab.switch_namespace(self.prefix)
        output = _run(["ip", "-n", switch, "-s", "-j", "link", "show"], "")
        ends = {link["ifname"]: link["stats64"] for link in json.loads(output)}
        found = {}
        for index, name in enumerate(self.spec.names):
            found[self.tree.link_of(index)] = _counters(ends[lab.port(index)], into="rx")
            if any(name in fabric for fabric in self.tree.fabrics):
                found[f"{name} fabric"] = _counters(ends[tree.fabric_port(index)], into="rx")
        for index, trunk in enumerate(self.tree.trunks):
            found[trunk.name] = _counters(ends[tree.trunk_port(index, "a")], into="tx")
        return found


def _counters(stats: Mapping[str, Any], *, into: str) -> Counters:
    """`into`: which of a device's directions is the link's tx."""
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


def _run(argv: Sequence[str], text: str) -> str:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)} failed: {done.stderr.strip()}; namespaces are in {NETNS_DIR}")
    return done.stdout
