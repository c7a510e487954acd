"""Every scheme at several sizes, for tests of what must hold for all of them."""

from byteps.cluster import uniform_cluster
from byteps.schedule import Schedule
from byteps.schedules import levels, passed, served


def all_schemes() -> dict[str, Schedule]:
    found: dict[str, Schedule] = {}
    for n in (1, 2, 3, 4, 5, 8):
        found[f"mesh {n}"] = served.mesh(n)
        found[f"mesh {n}, relayed"] = served.relayed_mesh(n, pieces=3)
        found[f"ring {n}"] = passed.ring(n)
        found[f"ring at random {n}"] = passed.shuffled_ring(n, n)
        found[f"tree {n}"] = passed.tree(n)
        found[f"tree {n}, 5 pieces"] = passed.tree(n, 5)
        found[f"halving and doubling {n}"] = passed.halving_doubling(n)
        found[f"in network {n}"] = served.in_network(n)
        found[f"PHub {n}"] = served.phub(n, 3)
        for k in (1, 2, n):
            found[f"server {n} {k}"] = served.parameter_server(n, k)
            found[f"whole tensors {n} {k}"] = served.whole_tensors(n, k, [7, 1, 4, 4, 9])
            if 1 < n >= k:
                found[f"BytePS {n} {k}"] = served.byteps(uniform_cluster(n, k, 1e9))
    for first, second in ((1, 1), (1, 4), (4, 1), (2, 3), (3, 3)):
        found[f"racks {first} {second}"] = served.racks_of_boxes(first, second)
        found[f"hierarchical {first} {second}"] = passed.hierarchical(first, second)
        found[f"torus {first} {second}"] = levels.torus(first, second)
        for threads in (1, 2):
            for within in ("mesh", "ring"):
                name = f"levels {first} {second}, {threads} threads, {within}"
                found[name] = levels.levels(name, [first, second], threads=threads, within=within)  # type: ignore[arg-type]
    for ports, count in ((2, 1), (2, 2), (3, 2), (2, 3)):
        found[f"HiPS {ports} {count}"] = levels.hips(ports, count)
        found[f"HiPS {ports} {count}, ring"] = levels.hips(ports, count, within="ring")
        found[f"BML {ports} {count}"] = levels.bml(ports, count)
        if count <= 2:
            found[f"rings {ports} {count}"] = passed.bcube_rings(ports, count)
    return found
