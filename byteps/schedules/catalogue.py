"""Schemes by name, for settings of experiments and commands: "ring", "tree:16", "torus:2x4".

What follows the colon is pieces of a tree, rows and columns of a torus or groups and members of a hierarchy.  Pure.
"""

from collections.abc import Callable, Mapping
from math import isqrt
from types import MappingProxyType

from byteps.cluster import uniform_cluster
from byteps.schedule import Schedule
from byteps.schedules import levels, passed, served

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


def _pieces(detail: str) -> int:
    if detail and not detail.isdigit():
        raise ValueError(f"a tree in {detail!r} pieces; write a whole number, such as tree:16")
    return int(detail or 16)


SCHEMES: Mapping[str, Build] = MappingProxyType(
    {
        "mesh": lambda n, _k, _detail: served.mesh(n),
        "ring": lambda n, _k, _detail: passed.ring(n),
        "tree": lambda n, _k, detail: passed.tree(n, _pieces(detail)),
        "halving-doubling": lambda n, _k, _detail: passed.halving_doubling(n),
        "torus": lambda n, _k, detail: levels.torus(*_factors(n, detail, "torus")),
        "hierarchical": lambda n, _k, detail: passed.hierarchical(*_factors(n, detail, "hierarchy")),
        "byteps": _byteps,
        "servers": lambda n, k, _detail: served.parameter_server(n, k),
    }
)
NEED_SERVERS = frozenset({"servers"})
USE_SERVERS = frozenset({"servers", "byteps"})
"""Schemes with nodes on machines beside the workers."""
