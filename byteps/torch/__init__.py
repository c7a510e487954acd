"""The PyTorch API: `import byteps.torch as bps`, with the names that users of BytePS and Horovod know."""

from typing import Any

import torch.distributed

from byteps.errors import BytePSError
from byteps.session import init, is_initialized, local_rank, local_size, rank, shutdown, size
from byteps.torch import ops
from byteps.torch.collectives import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    cross_rank,
    cross_size,
    not_built,
)
from byteps.torch.compression import Compression
from byteps.torch.grouped import (
    Group,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    poll,
    reducescatter,
    reducescatter_async,
    synchronize,
)
from byteps.torch.optimizer import DistributedOptimizer
from byteps.torch.state import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    join,
)
from byteps.torch.tensors import (
    Handle,
    declare,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
)

# What scripts catch: every error of a job is one.
HorovodInternalError = BytePSError
byteps_push_pull = push_pull_async_inplace

mpi_threads_supported = mpi_enabled = mpi_built = gloo_enabled = gloo_built = not_built
nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = not_built

if torch.distributed.is_available():
    from byteps.torch import backend
    from byteps.torch.ddp import ddp_hook

    backend.register()

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Group",
    "Handle",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "ddp_hook",
    "declare",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "ops",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "rocm_built",
    "shutdown",
    "size",
    "synchronize",
]

_PROCESS_SETS = "every operation is over all workers; start a job for each set"
_TIMELINE = "`byteps launch --trace out.json` records a timeline"
_MESSAGES = "use torch.distributed's send and recv over the backend byteps"
_RESTART = "start a job anew from a checkpoint when a worker is lost"
_OWN_ROWS = "use allgather and pick this rank's rows, or all_to_all of the backend"
_ABSENT = {
    "CrossBarrier": "give DistributedOptimizer cross_barrier=model",
    "DistributedDataParallel": "use torch's with model.register_comm_hook(None, byteps.torch.ddp_hook)",
    "ProcessSet": _PROCESS_SETS,
    "SyncBatchNorm": "normalise over groups or layers (GroupNorm, LayerNorm), or over each worker's own batch",
    "add_process_set": _PROCESS_SETS,
    "alltoall": _OWN_ROWS,
    "alltoall_async": _OWN_ROWS,
    "ddp_hook": "this torch was built without torch.distributed",
    "elastic": _RESTART,
    "get_pushpull_speed": "`byteps launch --trace out.json` records bytes and times",
    "global_process_set": _PROCESS_SETS,
    "mpi_ops": "all names are in byteps.torch itself",
    "parallel": "use torch's DistributedDataParallel with model.register_comm_hook(None, byteps.torch.ddp_hook)",
    "recv_async": _MESSAGES,
    "remove_process_set": _PROCESS_SETS,
    "resume": _RESTART,
    "send_async": _MESSAGES,
    "sparse_allreduce_async": "give DistributedOptimizer sparse_as_dense=True",
    "start_timeline": _TIMELINE,
    "stop_timeline": _TIMELINE,
    "suspend": _RESTART,
    "sync_batch_norm": "normalise over groups or layers (GroupNorm, LayerNorm), or over each worker's own batch",
}


def __getattr__(name: str) -> Any:
    """What the official plug-in and Horovod have beyond this, with what to do instead."""
    advice = f": {_ABSENT[name]} (docs/training.md)" if name in _ABSENT else ""
    raise AttributeError(f"module 'byteps.torch' has no {name!r}{advice}")
