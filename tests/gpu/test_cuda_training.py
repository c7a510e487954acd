"""A model on a GPU trains as in one process with all samples: gradients cross to the host on a side stream."""

import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")

PROGRAM = textwrap.dedent("""
    import sys, torch, byteps.torch as bps
    from torch import nn
    bps.init()
    rank, size = bps.rank(), bps.size()
    device = "cpu" if sys.argv[1] == "mixed" and rank % 2 else "cuda"

    def net():
        torch.manual_seed(1)
        layers = nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 8)
        return nn.Sequential(*layers).to(device)

    def loss_of(model, x, y):
        return nn.functional.cross_entropy(model(x), y)

    def adam(model):
        return torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)

    for compression, crossing, tolerance in (
        (bps.Compression.none, False, 1e-5), (bps.Compression.none, True, 1e-5), (bps.Compression.fp16, False, 1e-2)
    ):
        model, oracle = net(), net()
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
        plain = adam(oracle)
        optimizer = bps.DistributedOptimizer(
            adam(model), model.named_parameters(), compression, cross_barrier=model if crossing else None
        )
        bps.broadcast_optimizer_state(optimizer, root_rank=0)
        scaler = torch.amp.GradScaler(device, init_scale=256.0, enabled=not crossing)
        for step in range(20):
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(8 * size, 64, generator=generator).to(device)
            y = torch.randint(8, (8 * size,), generator=generator).to(device)
            optimizer.zero_grad()
            scaler.scale(loss_of(model, x[rank::size], y[rank::size])).backward()
            scaler.step(optimizer)
            scaler.update()
            plain.zero_grad()
            loss_of(oracle, x, y).backward()
            plain.step()
        optimizer.synchronize()
        far = max((a - b).abs().max().item() for a, b in zip(model.parameters(), oracle.parameters()))
        assert far <= tolerance, (compression, crossing, far)
    gathered = bps.allgather(torch.full((rank + 1,), float(rank), device=device))
    assert gathered.device.type == device and gathered.tolist() == [r for r in range(size) for _ in range(r + 1)]
    print("right", flush=True)
""")


@pytest.mark.parametrize("workers, servers, devices", [(1, 0, "cuda"), (2, 1, "cuda"), (3, 0, "cuda"), (2, 1, "mixed")])
def test_a_model_on_a_gpu_trains_as_in_one_process(workers: int, servers: int, devices: str) -> None:
    """In a job whose workers all have a GPU, or some have none."""
    command = [sys.executable, "-m", "byteps", "launch", "--workers", str(workers), "--servers", str(servers), "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM, devices], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == workers
