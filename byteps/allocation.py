"""Which process of how many this is, and where the first one runs, as Slurm's srun or torchrun tell it.

    srun        SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID, SLURM_NODEID, and the nodes in
                SLURM_STEP_NODELIST or SLURM_JOB_NODELIST: "node[01-03,7],gpu-a[1-2]" are six
    torchrun    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT

torchrun's variables win where both are there: it is the nearer one, started by srun.  A batch script outside srun is
no process of an allocation, since nobody starts the others.
Pure: the caller passes the environment in.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

from byteps.errors import BytePSError

_MOST_NODES = 100_000
_PORTS = range(20_000, 24_000)  # for Slurm, which names none; below those that the kernel hands out
_PARTS = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")


class AllocationError(BytePSError, ValueError):
    """A variable has a value that it cannot have, or one is missing; the text names it."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """This process among those that were started together."""

    source: Literal["Slurm", "torchrun"]
    rank: int
    size: int
    local_rank: int  # among those of this node
    local_size: int
    node: int  # number of the node
    hosts: tuple[str, ...]  # the nodes in order; under torchrun the first one only, others are not named
    conductor: str  # host name or address of rank 0's node
    port: int  # for the use of whoever coordinates on rank 0's node, and the next two; the same on every rank

    @property
    def one_per_node(self) -> bool:
        return self.local_size == 1


def from_environment(env: Mapping[str, str]) -> Allocation | None:
    """What the variables say; None outside of both."""
    if "RANK" in env and "WORLD_SIZE" in env:
        return _torchrun(env)
    if "SLURM_PROCID" in env:
        return _slurm(env)
    return None


def _torchrun(env: Mapping[str, str]) -> Allocation:
    size = _number(env, "WORLD_SIZE", least=1)
    rank = _number(env, "RANK", most=size - 1)
    local_size = _number(env, "LOCAL_WORLD_SIZE", least=1, default=1)
    master = env.get("MASTER_ADDR", "").strip()
    if not master:
        raise AllocationError("MASTER_ADDR is missing beside RANK and WORLD_SIZE; it names the host of rank 0")
    port = _number(env, "MASTER_PORT", least=1, most=65_532)
    return Allocation(
        source="torchrun",
        rank=rank,
        size=size,
        local_rank=_number(env, "LOCAL_RANK", most=local_size - 1, default=rank % local_size),
        local_size=local_size,
        node=_number(env, "GROUP_RANK", default=rank // local_size),
        hosts=(master,),
        conductor=master,
        port=port + 1,  # rank 0's own store listens on the port itself
    )


def _slurm(env: Mapping[str, str]) -> Allocation:
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    size = _number(env, tasks, least=1)
    nodelist = "SLURM_STEP_NODELIST" if env.get("SLURM_STEP_NODELIST") else "SLURM_JOB_NODELIST"
    hosts = expand_nodes(env.get(nodelist, ""), variable=nodelist)
    local_size = _tasks_here(env, size, len(hosts))
    job = _number(env, "SLURM_JOB_ID", default=0)
    step = _number(env, "SLURM_STEP_ID", default=0)
    return Allocation(
        source="Slurm",
        rank=_number(env, "SLURM_PROCID", most=size - 1),
        size=size,
        local_rank=_number(env, "SLURM_LOCALID", most=local_size - 1, default=0),
        local_size=local_size,
        node=_number(env, "SLURM_NODEID", most=len(hosts) - 1, default=0),
        hosts=hosts,
        conductor=hosts[0],
        port=_PORTS[(job * 7 + step * 3) % len(_PORTS)],
    )


def _tasks_here(env: Mapping[str, str], size: int, nodes: int) -> int:
    """Of this node.  SLURM_NTASKS_PER_NODE is the job's wish, which a step need not follow, so it comes last."""
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if text := env.get(name, "").strip():
            counts = _repeated(text, name)
            node = _number(env, "SLURM_NODEID", default=0)
            if node < len(counts) and sum(counts) == size:
                return counts[node]
    wished = _number(env, "SLURM_NTASKS_PER_NODE", least=1, default=0)
    return wished if wished and wished * nodes == size else -(-size // nodes)


def _repeated(text: str, variable: str) -> list[int]:
    """ "2(x3),1" is 2, 2, 2, 1."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if not match or len(counts) + int(match[2] or 1) > _MOST_NODES:
            raise AllocationError(f"{variable}={text!r} is not a list of numbers of tasks such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def expand_nodes(text: str, *, variable: str = "SLURM_JOB_NODELIST") -> tuple[str, ...]:
    """The names that Slurm's short form stands for, in order: "gpu[01-03,7]" is gpu01, gpu02, gpu03, gpu7.

    AllocationError names `variable` and what is wrong with its value.
    """
    try:
        names = [name for item in _split(text.strip()) for name in _expand(item)]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{twice!r} is in it twice")
    except ValueError as error:
        raise AllocationError(
            f"{variable}={text!r} is not a list of nodes: {error}; use such as node[01-03,7],gpu-a[1-2]"
        ) from None
    return tuple(names)


def _split(text: str) -> Iterator[str]:
    """At the commas outside brackets."""
    depth, start = 0, 0
    for index, letter in enumerate(text + ","):
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise ValueError("brackets do not match")
        if letter == "," and depth == 0:
            if not text[start:index]:
                raise ValueError("a name is empty")
            yield text[start:index]
            start = index + 1
    if depth:
        raise ValueError("brackets do not match")


def _expand(item: str) -> list[str]:
    """One item: text and any number of brackets, the last one of which varies fastest."""
    parts = [
        _numbers(match[1]) if match[1] is not None else [match[2]]  # an empty bracket is a match, too
        for match in _PARTS.finditer(item)
    ]
    count = 1
    for part in parts:
        count *= len(part)
    if count > _MOST_NODES:
        raise ValueError(f"more than {_MOST_NODES} nodes")
    return ["".join(words) for words in product(*parts)]


def _numbers(text: str) -> list[str]:
    """ "01-03,7" is 01, 02, 03, 7: as many digits as the first of a range."""
    found: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if not match:
            raise ValueError(f"{part!r} is not a number or a range such as 01-03")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= _MOST_NODES:
            raise ValueError(f"the range {part!r} goes backwards or is too long")
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found


def _number(env: Mapping[str, str], name: str, *, least: int = 0, most: int = 10**9, default: int | None = None) -> int:
    """A whole number; AllocationError if it is missing without a default, or out of bounds."""
    text = env.get(name, "").strip()
    if not text:
        if default is None:
            raise AllocationError(f"{name} is missing; it is a whole number from {least} to {most}")
        return default
    if not re.fullmatch(r"\d{1,10}", text) or not least <= int(text) <= most:
        raise AllocationError(f"{name}={text!r} is not valid; it takes a whole number from {least} to {most}")
    return int(text)
