"""The same state everywhere: parameters, optimiser state and objects of one rank on all; and leaving a loop together.

An optimiser's state may exist on the root only (a checkpoint that rank 0 has read): its structure travels first,
pickled, with its tensors left out, which follow as tensors.  Objects are unpickled from members of the job only, which
share its secret.
"""

import pickle
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from byteps.errors import BytePSError
from byteps.session import current
from byteps.torch.asynchronous import Replica
from byteps.torch.collectives import (
    allgather_async_of,
    barrier,
    broadcast_,
    broadcast_async_,
    broadcast_spec,
    gather_shapes,
)
from byteps.torch.exchange import Doing
from byteps.torch.gradients import GradientReducer
from byteps.torch.tensors import dtype_name, synchronize

_MIN_ROOM = 64


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor] | torch.Tensor],
    root_rank: int = 0,
    prefix: str = "Parameter.",
) -> None:
    """The root's values in every rank's tensors: `model.state_dict()`, `model.named_parameters()` or a list of tensors.

    A barrier; the same names on every rank.
    """
    items = params.items() if isinstance(params, Mapping) else params
    named: dict[str, torch.Tensor] = {}
    seen = set()
    for index, item in enumerate(items):
        name, tensor = item if isinstance(item, tuple) else (str(index), item)
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"broadcast_parameters: {name!r} is a {type(tensor).__name__}, not a tensor; use broadcast_object"
            )
        place = tensor.data_ptr(), tensor.shape, tensor.stride()
        if tensor.numel() and place not in seen:  # a shared parameter once: in place twice at a time would add up
            seen.add(place)
            # Several models of a job may have the name; the same one with another shape or type is another tensor.
            named[f"{prefix}{name} {tuple(tensor.shape)} {dtype_name(tensor.dtype)}"] = tensor
    session = current()
    session.declare([broadcast_spec(tensor, root_rank, name) for name, tensor in sorted(named.items())])
    for handle in [broadcast_async_(tensor, root_rank, name) for name, tensor in sorted(named.items())]:
        synchronize(handle)


@dataclass(frozen=True)
class _Hole:
    """Where a tensor was."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0, prefix: str = "") -> None:
    """The root's optimiser state and options on every rank, whether or not the others have any state."""
    mine = current().rank == root_rank
    tensors: list[torch.Tensor] = []
    skeleton = broadcast_object(_take_out(optimizer.state_dict(), tensors) if mine else None, root_rank)
    if not mine:
        holes: list[_Hole] = []
        _find(skeleton, holes)
        tensors = [torch.empty(hole.shape, dtype=hole.dtype) for hole in holes]
    for handle in [broadcast_async_(tensor, root_rank) for tensor in tensors]:
        synchronize(handle)
    if not mine:
        optimizer.load_state_dict(_put_in(skeleton, tensors))


def _take_out(state: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(state, torch.Tensor):
        tensors.append(state)
        return _Hole(len(tensors) - 1, tuple(state.shape), state.dtype)
    return _map(state, lambda value: _take_out(value, tensors))


def _find(skeleton: Any, holes: list[_Hole]) -> None:
    if isinstance(skeleton, _Hole):
        holes.append(skeleton)
    _map(skeleton, lambda value: _find(value, holes))


def _put_in(skeleton: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(skeleton, _Hole):
        return tensors[skeleton.index]
    return _map(skeleton, lambda value: _put_in(value, tensors))


def _map(state: Any, function: Any) -> Any:
    if isinstance(state, dict):
        return {key: function(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)([function(value) for value in state])
    return state


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """The root's object on every rank, by pickle; the root gets its own back."""
    mine = current().rank == root_rank
    data = pickle.dumps(obj) if mine else b""
    size = broadcast_(torch.tensor([len(data)]), root_rank, None if name is None else f"size of {name}")
    # A name has one shape: a power of two bounds how many there are.
    room = max(1 << (int(size) - 1).bit_length(), _MIN_ROOM)
    buffer = torch.zeros(room, dtype=torch.uint8)
    buffer[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if mine else 0
    broadcast_(buffer, root_rank, None if name is None else f"{room} bytes of {name}")
    return obj if mine else pickle.loads(buffer[: int(size)].numpy().data)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Every rank's object, by rank, on every rank, by pickle."""
    mine = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
    counts = gather_shapes(mine)
    data = synchronize(allgather_async_of(mine, name, counts))
    return [pickle.loads(part.numpy().data) for part in torch.split(data, counts)]


def join(device: int = -1) -> int:
    """This rank is out of batches: let the others step on without it; the rank that was the last to join.

    It contributes nothing to the gradients of distributed optimizers, whose averages are over the others, until all
    ranks have joined.  Other operations of the others would wait for this rank.  Its parameters are those of its last
    step: broadcast_parameters(..., root_rank=join()) makes them the same again.  Those of asynchronous optimizers are
    the final ones, the same on all ranks, once all have joined.
    """
    plugins = current().plugins
    replicas: list[Replica] = [one for reference in plugins.get("replicas", []) if (one := reference()) is not None]
    pulls = [replica.pull() for replica in replicas]  # first: with a staleness bound the others wait for them
    last = _join_reducers(alone=not replicas)
    for replica, pull in zip(replicas, pulls, strict=True):
        replica.finish(pull)
    return last


def _join_reducers(*, alone: bool) -> int:
    """`alone`: nothing else waits for all ranks."""
    references = current().plugins.get("reducers", [])
    reducers: list[GradientReducer] = [reducer for reference in references if (reducer := reference()) is not None]
    reducers = [reducer for reducer in reducers if not reducer.taken]
    if not reducers:
        if alone:
            barrier()
        return current().settings.size - 1
    # Which optimizer the others step next is theirs to choose.
    with ThreadPoolExecutor(len(reducers), "join") as pool:
        last = list(pool.map(_join, reducers))
    return max(frozenset.intersection(*last))  # the last rank is among the last ones of every optimizer


def _join(reducer: GradientReducer) -> frozenset[int]:
    """Take part in the others' exchanges, with nothing, until all have joined; those that joined last."""
    if reducer.under_way:
        raise BytePSError(f"{reducer.name}: join() while gradients are being summed; call step() first")
    before = last = frozenset[int]()
    while len(before) < current().settings.size:
        reducer.start(Doing.JOINED)
        joined = reducer.resolve()
        for slot in reducer.slots:
            reducer.collect(slot)
        last, before = joined - before, joined
    reducer.steps = 0  # ranks have made different numbers of them
    return last
