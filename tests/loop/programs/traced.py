"""Steps of a training; run as a worker.

Arguments: how many; then: leave, die (rank 1) or hang; by push_pull (default), optimizer, crossing, hook or backend.
"""

import os
import signal
import sys

import torch

import byteps.torch as bps

steps, then, way = int(sys.argv[1]), sys.argv[2], (sys.argv[3:] or ["push_pull"])[0]
bps.init()
torch.manual_seed(bps.rank())
model = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.ReLU(), torch.nn.Linear(700, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if way in ("hook", "backend"):
    torch.distributed.init_process_group("gloo" if way == "hook" else "byteps")
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.1)
    if way == "hook":
        model.register_comm_hook(None, bps.ddp_hook)
elif way != "push_pull":
    crossing = model if way == "crossing" else None
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), cross_barrier=crossing)
for _ in range(steps):
    optimizer.zero_grad()
    model(torch.randn(4, 300)).square().sum().backward()
    if way == "push_pull":
        handles = [bps.push_pull_async_inplace(p.grad, name) for name, p in model.named_parameters()]
        for handle in handles:
            bps.synchronize(handle)
    optimizer.step()
print("stepped", flush=True)
if then == "die" and bps.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if then == "die":
    bps.push_pull(torch.ones(3), "never summed")
while then == "hang":
    signal.pause()
bps.shutdown()
