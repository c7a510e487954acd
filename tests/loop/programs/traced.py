"""Steps of a training with push_pull; run as a worker.  Arguments: how many, and then leave, die (rank 1) or hang."""

import os
import signal
import sys

import torch

import byteps.torch as bps

steps, then = int(sys.argv[1]), sys.argv[2]
bps.init()
torch.manual_seed(bps.rank())
model = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.ReLU(), torch.nn.Linear(700, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(steps):
    optimizer.zero_grad()
    model(torch.randn(4, 300)).square().sum().backward()
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
