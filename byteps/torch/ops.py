"""The official plug-in's module of this name: `from byteps.torch.ops import push_pull_async_inplace`."""

from byteps.session import init, local_rank, local_size, rank, shutdown, size
from byteps.torch.tensors import (
    declare,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    synchronize,
)

__all__ = [
    "declare",
    "init",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]
