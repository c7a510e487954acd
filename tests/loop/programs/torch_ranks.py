"""Who is who; run by torchrun, or as a worker."""

import os

import torch
import torch.distributed as dist

import byteps.torch as bps

dist.init_process_group("byteps")
rank, size = dist.get_rank(), dist.get_world_size()
assert (bps.rank(), bps.size()) == (rank, size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
assert int(os.environ["LOCAL_RANK"]) == rank
assert int(os.environ["LOCAL_WORLD_SIZE"]) == size
total = torch.full((3,), rank + 1.0)
dist.all_reduce(total)
assert torch.equal(total, torch.full((3,), size * (size + 1) / 2))
print(f"rank {rank}: {total.numel()} checks passed", flush=True)
dist.destroy_process_group()
