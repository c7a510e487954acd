"""The PyTorch API: `import byteps.torch as bps`, with the names that users of BytePS and Horovod know."""

from byteps.session import init, local_rank, local_size, rank, shutdown, size
from byteps.torch.tensors import (
    Handle,
    broadcast,
    declare,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    synchronize,
)

__all__ = [
    "Handle",
    "broadcast",
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
