"""The PyTorch API: `import byteps.torch as bps`, with the names that users of BytePS and Horovod know."""

from typing import Any

import torch.distributed

from byteps.session import init, is_initialized, local_rank, local_size, rank, shutdown, size
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
    grouped_allreduce,
    not_built,
    reducescatter,
)
from byteps.torch.compression import Compression
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
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    synchronize,
)

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
    "Handle",
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
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "ddp_hook",
    "declare",
    "gloo_built",
    "gloo_enabled",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "reducescatter",
    "rocm_built",
    "shutdown",
    "size",
    "synchronize",
]

_PROCESS_SETS = "every operation is over all workers; start a job for each set"
_TIMELINE = "`byteps launch --trace out.json` records a timeline"
_ABSENT = {
    "DistributedDataParallel": "use torch's with model.register_comm_hook(None, byteps.torch.ddp_hook)",
    "ProcessSet": _PROCESS_SETS,
    "add_process_set": _PROCESS_SETS,
    "alltoall": "use allgather and pick this rank's rows",
    "ddp_hook": "this torch was built without torch.distributed",
    "elastic": "start a job anew from a checkpoint when a worker is lost",
    "global_process_set": _PROCESS_SETS,
    "remove_process_set": _PROCESS_SETS,
    "resume": "start a job anew from a checkpoint",
    "sparse_allreduce_async": "give DistributedOptimizer sparse_as_dense=True",
    "start_timeline": _TIMELINE,
    "stop_timeline": _TIMELINE,
    "suspend": "start a job anew from a checkpoint",
    "SyncBatchNorm": "normalise over groups or layers (GroupNorm, LayerNorm), or over each worker's own batch",
}


def __getattr__(name: str) -> Any:
    """What the official plug-in and Horovod have beyond this, with what to do instead."""
    advice = f": {_ABSENT[name]} (docs/training.md)" if name in _ABSENT else ""
    raise AttributeError(f"module 'byteps.torch' has no {name!r}{advice}")
