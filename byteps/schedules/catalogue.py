"""Schemes by name, for settings of experiments and commands: "ring", "tree:16", "torus:2x4".

What follows the colon is a seed of a shuffled ring, pieces of a tree, a mesh or servers, rows and columns of a torus,
groups and members of a hierarchy, or ports and levels of a BCube; of "inside", a machine and a way to sum in it
(`inside.read`): "inside:nvlink/root=2".
Pure.
"""

from collections.abc import Callable, Mapping
from math import isqrt
from types import MappingProxyType

from byteps.cluster import uniform_cluster
from byteps.schedule import Schedule
from byteps.schedules import inside, levels, passed, served

Build = Callable[[int, int, str], Schedule]
"""(n workers, k further machines, what follows the colon) -> the schedule"""


def build(scheme: str, n: int, k: int = 0) -> Schedule:
    """The schedule for n workers on n machines and k more.  ValueError names what is known."""
    name, _, detail = scheme.partition(":")
    if name not in SCHEMES:
        raise ValueError(f"scheme {scheme!r} is not known; known are {', '.join(SCHEMES)}")
    if k == 0 and name in NEED_SERVERS:
        raise ValueError(f"scheme {scheme!r} needs machines beside the workers, and there are 0; give it 1 or more")
    return SCHEMES[name](n, k, detail)


def _byteps(n: int, k: int, _detail: str) -> Schedule:
    return served.byteps(uniform_cluster(n, k, 1.0))


def _factors(n: int, detail: str, what: str) -> tuple[int, int]:
    """ "2x4", or the most even split of n."""
    first, _, second = detail.partition("x")
    if not detail:
        side = next(size for size in range(isqrt(n), 0, -1) if n % size == 0)
        return side, n // side
    if not (first.isdigit() and second.isdigit()) or int(first) * int(second) != n:
        raise ValueError(f"{what} of {detail!r} for {n} workers; write two numbers whose product is {n}, such as 1x{n}")
    return int(first), int(second)


def _power(n: int, detail: str) -> tuple[int, int]:
    """ "3x2": ports and levels of a BCube of 3^2 hosts; one level if nothing is said."""
    ports, _, count = (detail or f"{n}x1").partition("x")
    if not (ports.isdigit() and count.isdigit()) or int(ports) ** int(count) != n:
        raise ValueError(f"BCube of {detail!r} for {n} workers; write PORTSxLEVELS with ports^levels = {n}")
    return int(ports), int(count)


def _side(n: int) -> int:
    if isqrt(n) ** 2 != n:
        raise ValueError(f"a ring on BCube of 2 levels for {n} workers; their number must be a square, such as 9")
    return isqrt(n)


def _pieces(detail: str, default: int) -> int:
    if detail and not detail.isdigit():
        raise ValueError(f"{detail!r} pieces; write a whole number, such as tree:16")
    return int(detail or default)


def _seed(detail: str) -> int:
    if detail and not detail.isdigit():
        raise ValueError(f"{detail!r} as a seed; write a whole number, such as shuffled-ring:7")
    return int(detail or 0)


SCHEMES: Mapping[str, Build] = MappingProxyType(
    {
        "mesh": lambda n, _k, detail: served.mesh(n, pieces=_pieces(detail, 1)),
        "relayed-mesh": lambda n, _k, detail: served.relayed_mesh(n, pieces=_pieces(detail, 16)),
        "ring": lambda n, _k, _detail: passed.ring(n),
        "shuffled-ring": lambda n, _k, detail: passed.shuffled_ring(n, _seed(detail)),
        "tree": lambda n, _k, detail: passed.tree(n, _pieces(detail, 16)),
        "halving-doubling": lambda n, _k, _detail: passed.halving_doubling(n),
        "torus": lambda n, _k, detail: levels.torus(*_factors(n, detail, "torus")),
        "hierarchical": lambda n, _k, detail: passed.hierarchical(*_factors(n, detail, "hierarchy")),
        "gray-ring": lambda n, _k, _detail: passed.bcube_ring(_side(n)),
        "rings": lambda n, _k, detail: passed.bcube_rings(*_power(n, detail)),
        "bml": lambda n, _k, detail: levels.bml(*_power(n, detail)),
        "byteps": _byteps,
        "servers": lambda n, k, detail: served.parameter_server(n, k, pieces=_pieces(detail, 1)),
        "inside": lambda n, k, detail: inside.build(detail, n, k),
    }
)
NEED_SERVERS = frozenset({"servers", "inside"})
USE_SERVERS = frozenset({"servers", "byteps", "inside"})
"""Schemes with nodes on machines beside the workers."""
