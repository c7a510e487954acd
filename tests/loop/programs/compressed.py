"""Compressed sums of a real job: bytes, values, what is late, training; run as every worker."""

import sys

import numpy as np
import pytest
import torch

import byteps
import byteps.torch as bps
from byteps import codecs
from byteps.codecs import BLOCK
from byteps.net import Connection
from byteps.session import current
from byteps.wire import CODING, HEADER_NBYTES

PARTITION = int(sys.argv[1])
ROUNDS = 4


class Counted:
    """Bytes that this worker sends and receives, as its connections see them."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        send, receive = Connection.send, Connection.receive_exactly

        def counted_send(connection, *buffers, **options):
            self.sent += sum(map(len, buffers))
            send(connection, *buffers, **options)

        def counted_receive(connection, view):
            receive(connection, view)
            self.received += len(view)

        Connection.send, Connection.receive_exactly = counted_send, counted_receive


def gradient(rank: int, round_: int, size: int, dtype: type = np.float32) -> np.ndarray:
    return (np.random.default_rng((rank, round_)).standard_normal(size) + rank).astype(dtype)


def bytes_are_the_formula(counted: Counted) -> None:
    """Per iteration, each way, with 1 % for heartbeats; control messages come before the first iteration's end."""
    size = 1_500_000
    numbers, halves = gradient(RANK, 0, size), gradient(RANK, 0, size).astype(np.float16)
    per_way = {}
    for codec in ("", "fp16", "onebit", "topk:0.01", "randomk:0.01"):
        array, options = (halves, {}) if codec == "fp16" else (numbers, {"codec": codec})
        byteps.push_pull(array, f"bytes {codec}", **options)
        before = counted.sent, counted.received
        for _ in range(ROUNDS):
            byteps.push_pull(array, f"bytes {codec}", **options)
        ways = [(after - mark) / ROUNDS for after, mark in zip((counted.sent, counted.received), before, strict=True)]
        per_way[codec] = max(ways)
        expected = formula(codec, size)
        assert all(abs(way / expected - 1) < 0.01 for way in ways), f"{codec}: {ways} bytes, not {expected}"
    assert abs(per_way["fp16"] / per_way[""] - 0.5) < 0.005
    assert per_way[""] / per_way["onebit"] > 25
    print(f"[{RANK}] fewer by onebit: {per_way[''] / per_way['onebit']:.2f}", flush=True)


def formula(codec: str, size: int) -> float:
    """Of headers, prefixes and payloads."""
    itemsize = 2 if codec == "fp16" else 4
    total = 0
    for start in range(0, size, PARTITION // itemsize):
        numel = min(PARTITION // itemsize, size - start)
        total += HEADER_NBYTES
        if codec in ("", "fp16"):
            total += numel * itemsize
        else:
            total += codecs.get(codec).nbytes(numel) + (0 if codec.startswith("randomk") else CODING.size)
    return total


def values_are_the_codec_by_hand() -> None:
    """The first round, to the bit: nothing is left from before, and two numbers have one sum in either order."""
    size = PARTITION // 4 + 10_000
    for spelling in ("onebit", "topk:0.02"):
        codec = codecs.get(spelling)
        got = byteps.push_pull(gradient(RANK, 1, size), f"by hand {spelling}", op="average", codec=spelling)
        want = np.empty(size, np.float32)
        for start in range(0, size, PARTITION // 4):
            part = slice(start, start + PARTITION // 4)
            total = np.zeros_like(want[part])
            for rank in range(SIZE):
                payload = np.empty(codec.nbytes(total.size), np.uint8)
                codec.encode(np.zeros_like(total), payload, gradient(rank, 1, size)[part])
                codec.decode_add(payload, total, factor=1 / SIZE)
            codec.encode(total, payload)
            codec.decode(payload, want[part])
        assert np.array_equal(got, want), f"{spelling}: {np.count_nonzero(got != want)} elements are wrong"


def nothing_is_lost() -> None:
    """Sums of many rounds: what is late is bounded, whatever the number of rounds."""
    size, rounds = 60_000, 60
    for spelling in ("onebit", "topk:0.1", "randomk:0.1"):
        total = sum(
            byteps.push_pull(gradient(RANK, 2, size), f"late {spelling}", codec=spelling) for _ in range(rounds)
        )
        want = np.mean([gradient(rank, 2, size) for rank in range(SIZE)], axis=0) * rounds
        far = np.linalg.norm(total - want) / np.linalg.norm(want)
        assert far < 0.25, f"{spelling}: {far}"
    tiny = byteps.push_pull(np.float32(RANK), "tiny", op="sum", codec="onebit")
    assert tiny == sum(range(SIZE)), "a small tensor travels as it is"
    for _ in range(2):  # under way together with one without a codec
        numbers = gradient(RANK, 3, BLOCK)
        handles = [byteps.push_pull_async(numbers, f"one {codec}", op="sum", codec=codec) for codec in ("onebit", "")]
        want = sum(gradient(rank, 3, BLOCK) for rank in range(SIZE))
        np.testing.assert_allclose(byteps.synchronize(handles[1]), want, rtol=1e-5, atol=1e-5)
        assert len(set(np.abs(byteps.synchronize(handles[0])))) <= 2, "one magnitude per block"

    with pytest.raises(byteps.errors.BytePSError, match="without a name; give it one"):
        byteps.push_pull(numbers, codec="onebit")
    with pytest.raises(byteps.errors.BytePSError, match="takes float32, float64, float16, bfloat16"):
        byteps.push_pull(np.arange(3), "whole", codec="onebit")


def infinity_is_seen_by_all_and_over() -> None:
    """As loss scaling needs it: a rank's overflow is in everybody's sum of that round, and in none later."""
    for spelling in ("onebit", "topk:0.1", "randomk:0.1"):
        numbers = gradient(RANK, 4, 30_000)
        numbers[7] = np.inf if RANK == 0 else 0.0
        assert not np.isfinite(byteps.push_pull(numbers, f"inf {spelling}", codec=spelling)).all(), spelling
        numbers[7] = 0.0
        for _ in range(12):
            assert np.isfinite(byteps.push_pull(numbers, f"inf {spelling}", codec=spelling)).all(), spelling


def the_hook_of_ddp_compresses() -> None:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.Linear(1000, 6)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(bps.Compression.onebit, bps.ddp_hook)
    wrapped(torch.randn(5, 1000)).sum().backward()
    assert len(model.weight.grad.abs().unique()) == 1, "one magnitude per block"
    assert torch.equal(bps.broadcast(model.weight.grad, 0), model.weight.grad)
    for other in (bps.Compression.topk(0.01), bps.Compression.onebit):
        # Another model of the same size: another codec will do, and nothing of an earlier model is in its gradients.
        model = torch.nn.Linear(1000, 6)
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        wrapped.register_comm_hook(other, bps.ddp_hook)
        (wrapped(torch.zeros(5, 1000)) * 0).sum().backward()
        assert not model.weight.grad.any()
    for wrong in (bps.Compression.fp16, bps.Compression.topk):
        wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 6))
        wrapped.register_comm_hook(wrong, bps.ddp_hook)
        with pytest.raises(Exception, match="the first argument is None, a name"):
            wrapped(torch.zeros(5, 10)).sum().backward()
    torch.distributed.destroy_process_group()


def what_cannot_compress_is_named() -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    for wrong in ("onebit", bps.Compression.topk, bps.Compression):
        with pytest.raises(byteps.errors.BytePSError, match="is none; use Compression"):
            bps.push_pull(torch.zeros(3), name="wrong", compression=wrong)
        with pytest.raises(byteps.errors.BytePSError, match="is none; use Compression"):
            bps.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), compression=wrong)


def training_converges() -> None:
    """A linear model of 6,000 weights, to which every rank has its own data; the same weights on all ranks."""
    generator = torch.Generator().manual_seed(RANK)
    inputs = torch.randn(60, 1000, generator=generator)
    targets = inputs[:, :6] * 2
    ends = {}
    for compression in (bps.Compression.none, bps.Compression.onebit, bps.Compression.topk(0.05)):
        model = torch.nn.Linear(1000, 6)
        torch.nn.init.zeros_(model.weight)
        torch.nn.init.zeros_(model.bias)
        sgd = torch.optim.SGD(model.parameters(), lr=0.2)
        optimizer = bps.DistributedOptimizer(sgd, model.named_parameters(), compression=compression)
        for _ in range(120):
            optimizer.zero_grad()
            loss = ((model(inputs) - targets) ** 2).mean()
            loss.backward()
            optimizer.step()
        ends[getattr(compression, "codec", "none")] = loss.item()
        assert torch.equal(bps.broadcast(model.weight.detach(), 0), model.weight.detach())
    assert max(ends.values()) < 0.02, f"losses, from 4: {ends}"
    total = bps.push_pull(inputs, name="torch", compression=bps.Compression.topk(0.1))
    assert (total != 0).sum() == round(total.numel() * 0.1)
    whole = bps.push_pull(torch.arange(9), name="integers", op="sum", compression=bps.Compression.onebit)
    assert torch.equal(whole, torch.arange(9) * SIZE), "integers travel as they are"
    model.weight.byteps_compressor_type = "onebit"
    with pytest.raises(byteps.errors.BytePSError, match="give DistributedOptimizer compression="):
        bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))


counted_bytes = Counted()
byteps.init()
RANK, SIZE = byteps.rank(), byteps.size()
assert current().worker is not None
bytes_are_the_formula(counted_bytes)
values_are_the_codec_by_hand()
nothing_is_lost()
infinity_is_seen_by_all_and_over()
training_converges()
what_cannot_compress_is_named()
the_hook_of_ddp_compresses()
print("right", flush=True)
byteps.shutdown()
