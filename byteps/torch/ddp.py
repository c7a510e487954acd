"""The communication hook of DistributedDataParallel: its buckets averaged by BytePS instead of by its process group.

    byteps.torch.init()
    model = DistributedDataParallel(model)      # in any process group, for instance gloo: it still spreads the start
    model.register_comm_hook(None, byteps.torch.ddp_hook)
    model.register_comm_hook(byteps.torch.Compression.onebit, byteps.torch.ddp_hook)        # compressed

DDP makes its buckets anew after the first backward pass, in the order in which gradients became ready; the same on all
ranks.  A bucket's name is its place and size, so a new layout is new tensors and the old ones lie idle.  Buckets of one
name follow one another as they are handed over, which DDP does in the same order on all ranks.  With a codec a name
says which parameters they are, too: what it keeps of one model's gradients must not reach another's.
"""

import math
from functools import partial
from itertools import count

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch._compile import _disable_dynamo
from torch.utils.weak import WeakIdKeyDictionary

from byteps.errors import BytePSError
from byteps.session import Session, current
from byteps.torch.compression import Coded, Identity, codec_of
from byteps.torch.tensors import dtype_name, push_pull_async_inplace, synchronize
from byteps.torch.work import Work


@_disable_dynamo
def ddp_hook(state: str | Identity | None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The bucket's average over all workers, as a future that DDP waits for at the end of the backward pass.

    `state` is None, or a string for the tensors' names: models whose backward passes run at the same time, in an order
    that may differ between ranks, need one each.  Or it is a compression with a codec, or Compression.none.  The
    layers of the front are in the later buckets, which are sent first where they compete.
    """
    session = current()
    if not (state is None or isinstance(state, (str, Identity))):
        raise BytePSError(
            f"register_comm_hook({state!r}, ddp_hook): the first argument is None, a name for the model's tensors, or "
            "a Compression with a codec; for 16 bits, wrap the hook in torch's fp16_compress_wrapper"
        )
    size = session.settings.size
    if dist.get_world_size() != size:
        raise BytePSError(
            f"ddp_hook averages over all {size} workers, but torch.distributed has {dist.get_world_size()} ranks; "
            "start one worker per rank"
        )
    buffer, index = bucket.buffer(), bucket.index()
    codec = codec_of(state, buffer) if isinstance(state, Coded) else ""
    who = state if isinstance(state, str) and state else "DDP"
    if codec:
        who = f"{who} {_number(session, bucket.parameters()[0])}"
    name = f"{who}/bucket {index} of {buffer.numel()} {dtype_name(buffer.dtype)}"
    if session.trace is not None:
        session.trace.gradient(hidden=buffer.device.type != "cpu")  # the end is waited for in a thread of autograd's
    handle = push_pull_async_inplace(buffer, name=name, op="average", priority=index, codec=codec)
    wait = handle.staged or handle.pending
    waits = [] if wait is None else [wait]
    return Work(session, name, waits, partial(synchronize, handle), math.inf, buffer.device).get_future()


def _number(session: Session, parameter: torch.Tensor) -> int:
    """Of a bucket's first parameter, in the order in which such are first handed over: the same on all ranks."""
    known, fresh = session.plugins.setdefault("DDP parameters", (WeakIdKeyDictionary(), count()))
    if parameter not in known:
        known[parameter] = next(fresh)
    return int(known[parameter])
