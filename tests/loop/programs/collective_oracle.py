"""What collectives must give, and the process group that they run in; joined when this is imported, by every worker.

Argument: the partition size in bytes.
"""

import sys
import warnings
from functools import reduce

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import byteps.torch

PARTITION = int(sys.argv[1])
NATIVE = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8]
GATHERED = [torch.int8, torch.int16, torch.complex64]
ANY = [*NATIVE, *GATHERED, torch.bool, torch.float8_e5m2]

warnings.simplefilter("ignore", FutureWarning)  # new names for calls that scripts have under the old ones
torch.set_num_threads(1)
dist.init_process_group("byteps")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
assert (byteps.torch.rank(), byteps.torch.size(), dist.get_backend()) == (RANK, SIZE, "byteps")


def contribution(rank: int, shape: tuple[int, ...], dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Integers that depend on rank and index, exact in every type, as are their sums and products."""
    index = torch.arange(torch.Size(shape).numel()) + salt
    return ((index * 3 + rank * (index % 5 + 1)) % 4 + 1).reshape(shape).to(dtype)


def shapes(dtype: torch.dtype) -> list[tuple[int, ...]]:
    part = PARTITION // dtype.itemsize
    return [(), (1,), (0,), (3, 0), (7, 5), (part,), (3, part + 1)]


def reduced(op: ReduceOp, shape: tuple[int, ...], dtype: torch.dtype, ranks: range | list[int]) -> torch.Tensor:
    all_given = [contribution(rank, shape, dtype) for rank in ranks]
    if op in (ReduceOp.SUM, ReduceOp.AVG):
        exact = torch.complex128 if dtype.is_complex else torch.float64
        total = sum(each.to(exact) for each in all_given)
        if op == ReduceOp.AVG:
            whole = not (dtype.is_floating_point or dtype.is_complex)
            total = torch.div(total, len(all_given), rounding_mode="floor" if whole else None)
            total = total.float() if dtype.itemsize == 2 and not whole else total  # one rounding, from float32
        return total.to(dtype)
    functions = {
        ReduceOp.MIN: torch.minimum,
        ReduceOp.MAX: torch.maximum,
        ReduceOp.PRODUCT: torch.mul,
        ReduceOp.BAND: torch.bitwise_and,
        ReduceOp.BOR: torch.bitwise_or,
        ReduceOp.BXOR: torch.bitwise_xor,
    }
    return reduce(functions[op], all_given)


def same(got: torch.Tensor, want: torch.Tensor, what: str) -> int:
    assert got.dtype == want.dtype, f"{what}: {got.dtype}, not {want.dtype}"
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    raw = [each.contiguous().reshape(-1).view(torch.uint8) for each in (got, want)]
    assert torch.equal(*raw), f"{what}: {got} instead of {want}"
    return 1


def operations(dtype: torch.dtype) -> list[ReduceOp]:
    if dtype.is_complex:
        return [ReduceOp.SUM]
    bits = [] if dtype.is_floating_point else [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
    return [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT, *bits]
