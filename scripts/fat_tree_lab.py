"""Brings up the labs of `scripts.fat_tree`, and reads what passed each of their links."""

from pathlib import Path

from scripts import fat_tree, lab
from scripts.fat_tree import FatTreeSpec
from scripts.lab import Batch
from scripts.netns import Counters, Lab, LabError
from scripts.treelab import device_stats, link_counters

_NEEDED = ("fib_multipath_hash_fields", "fib_multipath_hash_seed")


def why_no_fat_tree(folder: Path = Path("/proc/sys/net/ipv4")) -> str:
    """Why this kernel cannot spread flows as a Fat-Tree does, or ""."""
    missing = [name for name in _NEEDED if not (folder / name).exists()]
    if not missing:
        return ""
    return (
        f"this kernel has no {' and no '.join(missing)}; an emulated Fat-Tree needs Linux 6.11 or newer, "
        "built with CONFIG_IP_ROUTE_MULTIPATH"
    )


class FatTreeLab(Lab):
    """A lab whose switches are routers; hosts, processes and clearing up are those of any lab."""

    def __init__(self, spec: FatTreeSpec) -> None:
        super().__init__(spec.hosts)
        self.tree = spec

    def up(self) -> None:
        if reason := why_no_fat_tree():
            raise LabError(reason)
        super().up()

    def stages(self) -> tuple[tuple[Batch, ...], ...]:
        return (*super().stages(), *fat_tree.additions(self.tree, self.prefix))

    def link_counters(self) -> dict[str, Counters]:
        """By the name of a link between routers; tx: upwards, rx: downwards.  Read when nothing is in flight."""
        found = {}
        for router in dict.fromkeys(one.lower for one in self.tree.cables):
            ends = device_stats(lab.host_namespace(self.prefix, router))
            found.update(
                {
                    one.name: link_counters(ends[one.lower_device], into="tx")
                    for one in self.tree.cables
                    if one.lower == router
                }
            )
        return found
